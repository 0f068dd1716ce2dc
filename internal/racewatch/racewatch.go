// Package racewatch tells the race detector what code reads and writes that it does not look at: an inner loop with //go:norace, of which
// each look would take ten times as long as the loop itself, or a package that make race leaves without it. Without the detector it does
// nothing, and costs nothing.
package racewatch
