//go:build race

package layer

import (
	"runtime"
	"unsafe"
)

// watchRead tells the race detector that all of p is read, by code that it does not see: make race leaves github.com/klauspost/compress/flate,
// in which no goroutine is started, without it.
func watchRead(p []byte) {
	if len(p) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
}
