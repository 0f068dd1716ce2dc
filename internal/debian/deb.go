package debian

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Sizes of deb(5) and ar(5), in bytes.
const (
	arMagic    = "!<arch>\n"
	arHeader   = 60
	maxBinary  = 64       // of debian-binary, which is "2.0\n"
	maxMembers = 64       // before data.tar
	maxControl = 64 << 20 // of control.tar, compressed
)

// ReadDeb reads a package file from its beginning: control gets the control archive, then data that of the files, each with
// the member's name, whose ending says how it is compressed, and its bytes. Neither has to read them to their end.
func ReadDeb(r io.Reader, control, data func(name string, r io.Reader) error) error {
	magic := make([]byte, len(arMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != arMagic {
		return notDeb(err, "it does not begin as an archive of ar does")
	}
	seen := 0 // members that matter: debian-binary, control.tar, data.tar
	for range maxMembers {
		name, size, err := nextMember(r)
		if err != nil {
			return err
		}
		content := &io.LimitedReader{R: r, N: size}
		switch {
		case seen == 0:
			if err := checkFormat(name, size, content); err != nil {
				return err
			}
			seen++
		case strings.HasPrefix(name, "_"): // deb(5): for others, to be skipped
		case seen == 1 && strings.HasPrefix(name, "control.tar"):
			if size > maxControl {
				return notDeb(nil, "its control archive has %d bytes", size)
			}
			if err := control(name, content); err != nil {
				return err
			}
			seen++
		case seen == 2 && strings.HasPrefix(name, "data.tar"):
			if err := data(name, content); err != nil {
				return err
			}
			// Not all of it need be wanted, and all of it must be there.
			if _, err := io.Copy(io.Discard, content); err != nil || content.N > 0 {
				return notDeb(err, "it ends within %s", name)
			}
			return nil
		default:
			return notDeb(nil, "it has %q where it should not", name)
		}
		if _, err := io.CopyN(io.Discard, r, content.N+size%2); err != nil {
			return notDeb(err, "it ends within %s", name)
		}
	}
	return notDeb(nil, "it has too many members")
}

func nextMember(r io.Reader) (name string, size int64, err error) {
	h := make([]byte, arHeader)
	if _, err := io.ReadFull(r, h); err != nil {
		return "", 0, notDeb(err, "it ends where a member should begin")
	}
	size, err = strconv.ParseInt(string(bytes.TrimRight(h[48:58], " ")), 10, 64)
	if err != nil || size < 0 || string(h[58:]) != "`\n" {
		return "", 0, notDeb(nil, "it has a damaged header of a member")
	}
	return strings.TrimSuffix(string(bytes.TrimRight(h[:16], " ")), "/"), size, nil
}

func checkFormat(name string, size int64, r io.Reader) error {
	if name != "debian-binary" || size > maxBinary {
		return notDeb(nil, "its first member is %q", name)
	}
	version, err := io.ReadAll(r)
	if err != nil || !bytes.HasPrefix(version, []byte("2.")) {
		return notDeb(err, "its format is %q, and 2.0 is known", bytes.TrimSpace(version))
	}
	return nil
}

func notDeb(err error, format string, args ...any) error {
	what := fmt.Errorf("it is no Debian package that can be read: "+format, args...)
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return what
	}
	return fmt.Errorf("%w: %w", what, err)
}
