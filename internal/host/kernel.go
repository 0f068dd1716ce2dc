package host

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// KernelRelease returns what uname -r prints.
func KernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// ReleaseBefore reports whether a kernel release, such as 5.14.0-503.el9, is older than a version, such as 5.11. Only
// the first two numbers count.
func ReleaseBefore(release, version string) bool {
	a, b := majorMinor(release), majorMinor(version)
	return a[0] < b[0] || a[0] == b[0] && a[1] < b[1]
}

func majorMinor(release string) (v [2]int) {
	numbers := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	for i := range min(len(numbers), len(v)) {
		v[i], _ = strconv.Atoi(numbers[i])
	}
	return v
}
