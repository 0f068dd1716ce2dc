# Runs in the first root: the distribution's own rpm installs all packages into /target, a root of their own, with their scripts, and
# writes which ones are there, and what its database says of them.
set -eu
umask 022
run=/run/sconce-bootstrap
# The lock's hashes say more than signatures, which were checked when it was made. Plugins talk to a running system.
rpm="rpm --root /target --noplugins"

$rpm --initdb
$rpm -i --nosignature /run/sconce-packages/*.rpm
$rpm -qa --qf '%{NAME} %{ARCH} %{EVR}\n' >"$run/installed"
rpm --eval '%{_dbpath}' >"$run/database"
rpmdb --root /target --exportdb >"$run/headers"
