//go:build race

package sandbox

// A program with the race detector sleeps for a second before it ends, in case other goroutines race meanwhile. Init and the starter are many
// programs, each of which is waited for.
func init() { initEnv = append(initEnv, "GORACE=atexit_sleep_ms=0") }
