package device

import "runtime"

// multiarch is the name of this processor's library directory on Debian (Debian Policy 9.1.1).
func multiarch() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}
