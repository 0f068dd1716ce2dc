package fuse

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Send hands the device over to the server at the other end of the Unix socket sock. The caller must close its own
// descriptor before it looks into the mount: as long as one is open, the kernel keeps waiting for a server that has died.
func Send(sock, fd int) error {
	if err := unix.Sendmsg(sock, []byte{0}, unix.UnixRights(fd), nil, 0); err != nil {
		return fmt.Errorf("hand over %s: %w", Device, err)
	}
	return nil
}

// Receive takes the device from [Send]. The error is io.EOF when the other end was closed without sending.
func Receive(conn *net.UnixConn) (*os.File, error) {
	data, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := conn.ReadMsgUnix(data, oob)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, fmt.Errorf("receive %s: %w", Device, err)
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err == nil && len(fds) == 1 {
			return os.NewFile(uintptr(fds[0]), Device), nil
		}
	}
	return nil, errors.New("receive " + Device + ": the message carries none")
}
