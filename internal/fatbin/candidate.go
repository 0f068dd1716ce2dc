package fatbin

import (
	"bytes"
	"path"
)

// What [MayHold] asks about a file.
const (
	MinSize  = 4 << 10 // bytes; no file of at most this size is worth a look
	HeadSize = 4       // bytes at the beginning
)

// MayHold tells by a file's name and its first bytes, HeadSize of them, whether it can hold device code. Only then is it worth a
// [Scan].
func MayHold(name string, head []byte) bool {
	if bytes.HasPrefix(head, []byte("\x7fELF")) {
		return true
	}
	switch path.Ext(name) {
	case ".a", ".cubin", ".fatbin":
		return true
	}
	return false
}
