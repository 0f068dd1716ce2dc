mkdir work work/etc
echo passwd > work/etc/passwd
echo two > work/two
tar --owner=7 --group=8 -P --transform 's,^work,,' -cf absolute.tar work/etc work/two
tar --owner=7 --group=8 -P --transform 's,^work,../../x,' -cf up.tar work/etc work/two
rm -r work
