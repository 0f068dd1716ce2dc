//go:build race

package racewatch

import (
	"runtime"
	"unsafe"
)

// Read says that all of p is read.
func Read(p []byte) {
	if len(p) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
}

// Write says that all of p is written.
func Write(p []byte) {
	if len(p) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
}
