mkdir d && echo x > d/file && chmod 640 d/file && ln -s file d/link && ln d/file d/hard
tar --owner=1000 --group=1500 --numeric-owner -cf archive.tar d
rm -r d
gzip archive.tar
