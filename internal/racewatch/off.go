//go:build !race

package racewatch

// Read says that all of p is read.
func Read([]byte) {}

// Write says that all of p is written.
func Write([]byte) {}
