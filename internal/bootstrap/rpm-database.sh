# Runs in the first root: makes the database of /target anew, of headers in which no time differs from run to run.
set -eu
umask 022
rpm --root /target --noplugins --initdb
rpmdb --root /target --importdb </run/sconce-bootstrap/headers
