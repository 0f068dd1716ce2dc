mkdir work
echo one > work/one
chmod 700 work
tar --owner=7 --group=8 -C work -cf root.tar .
rm -r work
