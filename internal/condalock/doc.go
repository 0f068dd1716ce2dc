// Package condalock decides which conda packages an environment is made of, and reads and writes what others and sconce decided.
//
// An [Environment] is what people write: channels, conda specs, a pip list, variables. A [Solver] asks py-rattler, run by uv with a
// script of our own, for the packages: for any platform, with the virtual packages that [Virtual] makes of what is known of the
// target. A [Lock] is the answer in a file that others read too: conda-lock.yml (CEP 37), @EXPLICIT (CEP 23); pixi.lock is read.
// [Config] is where channels are for this user: .condarc, CONDA_… and rattler's configuration. None of it gets into a lock, which
// holds public addresses and hashes: mirrors and logins are the user's own.
//
// What conda brings of Python's packages, the resolver of those must know: see [WriteStubs].
package condalock
