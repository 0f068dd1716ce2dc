chmod 600 x
mkdir -m 700 private
touch private/file
mkdir -m 1777 sticky
touch -- setuid
chmod 4755 setuid
