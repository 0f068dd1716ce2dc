// Package cuda knows the releases of CUDA: which driver each came with, which it needs at least, and which PTX it writes.
package cuda

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Driver is a version of NVIDIA's driver for Linux: 550, 54, 15. Its first number is called the branch.
type Driver []int

// ParseDriver reads a version such as "550.54.15" or "550". It is nil for anything else.
func ParseDriver(s string) Driver {
	var v Driver
	for part := range strings.SplitSeq(s, ".") {
		n, err := strconv.ParseUint(part, 10, 31)
		if err != nil {
			return nil
		}
		v = append(v, int(n))
	}
	return v
}

// Branch is the first number.
func (v Driver) Branch() int { return v[0] }

// OlderThan compares as far as both are known: 550 is not older than 550.54.15, for it may be any of its branch.
func (v Driver) OlderThan(o Driver) bool {
	n := min(len(v), len(o))
	return slices.Compare(v[:n], o[:n]) < 0
}

func (v Driver) String() string {
	var b strings.Builder
	for i, n := range v {
		if i == 0 {
			fmt.Fprint(&b, n)
			continue
		}
		fmt.Fprintf(&b, ".%02d", n)
	}
	return b.String()
}

// Version is a release of the CUDA toolkit. Minor is -1 when only the major number is known.
type Version struct{ Major, Minor int }

func (v Version) String() string {
	if v.Minor < 0 {
		return strconv.Itoa(v.Major)
	}
	return fmt.Sprintf("%d.%d", v.Major, v.Minor)
}

// Compare orders releases.
func (v Version) Compare(o Version) int {
	return cmp.Or(cmp.Compare(v.Major, o.Major), cmp.Compare(v.Minor, o.Minor))
}

// ParseVersion reads the first numbers of a version such as "12", "12.4" or "12.4.127".
func ParseVersion(s string) (v Version, ok bool) {
	major, rest, more := strings.Cut(s, ".")
	n, err := strconv.ParseUint(major, 10, 15)
	if err != nil || n == 0 {
		return Version{}, false
	}
	v = Version{int(n), -1}
	if more {
		minor, _, _ := strings.Cut(rest, ".")
		if n, err := strconv.ParseUint(minor, 10, 15); err == nil {
			v.Minor = int(n)
		}
	}
	return v, true
}

// PTX is a version of the PTX ISA.
type PTX struct{ Major, Minor int }

func (v PTX) String() string {
	if v.Major == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d", v.Major, v.Minor)
}

// Compare orders versions.
func (v PTX) Compare(o PTX) int {
	return cmp.Or(cmp.Compare(v.Major, o.Major), cmp.Compare(v.Minor, o.Minor))
}

// ParsePTX reads a version such as "8.4". It is zero for anything else.
func ParsePTX(s string) (v PTX) {
	if _, err := fmt.Sscanf(s, "%d.%d", &v.Major, &v.Minor); err != nil {
		return PTX{}
	}
	return v
}

// toolkit is a release of CUDA with the first driver that was made for it and the PTX ISA that came with it.
type toolkit struct {
	cuda   Version
	driver Driver
	ptx    PTX
}

// toolkits are from the CUDA Toolkit release notes, "CUDA Toolkit and Corresponding Driver Versions" (Linux, the first release
// of each minor version; since 13.3 the notes give branches only), and from the PTX ISA, "Release Notes", table "PTX Release
// History", which alone has 12.7. Both as of CUDA 13.4.
var toolkits = []toolkit{
	{Version{10, 2}, Driver{440, 33}, PTX{6, 5}},
	{Version{11, 0}, Driver{450, 51, 5}, PTX{7, 0}},
	{Version{11, 1}, Driver{455, 23}, PTX{7, 1}},
	{Version{11, 2}, Driver{460, 27, 3}, PTX{7, 2}},
	{Version{11, 3}, Driver{465, 19, 1}, PTX{7, 3}},
	{Version{11, 4}, Driver{470, 42, 1}, PTX{7, 4}},
	{Version{11, 5}, Driver{495, 29, 5}, PTX{7, 5}},
	{Version{11, 6}, Driver{510, 39, 1}, PTX{7, 6}},
	{Version{11, 7}, Driver{515, 43, 4}, PTX{7, 7}},
	{Version{11, 8}, Driver{520, 61, 5}, PTX{7, 8}},
	{Version{12, 0}, Driver{525, 60, 13}, PTX{8, 0}},
	{Version{12, 1}, Driver{530, 30, 2}, PTX{8, 1}},
	{Version{12, 2}, Driver{535, 54, 3}, PTX{8, 2}},
	{Version{12, 3}, Driver{545, 23, 6}, PTX{8, 3}},
	{Version{12, 4}, Driver{550, 54, 14}, PTX{8, 4}},
	{Version{12, 5}, Driver{555, 42, 2}, PTX{8, 5}},
	{Version{12, 6}, Driver{560, 28, 3}, PTX{8, 5}},
	{Version{12, 7}, Driver{565}, PTX{8, 6}},
	{Version{12, 8}, Driver{570, 26}, PTX{8, 7}},
	{Version{12, 9}, Driver{575, 51, 3}, PTX{8, 8}},
	{Version{13, 0}, Driver{580, 65, 6}, PTX{9, 0}},
	{Version{13, 1}, Driver{590, 44, 1}, PTX{9, 1}},
	{Version{13, 2}, Driver{595, 45, 4}, PTX{9, 2}},
	{Version{13, 3}, Driver{610}, PTX{9, 3}},
	{Version{13, 4}, Driver{615}, PTX{9, 4}},
}

// MinimumDriver is the oldest driver on which programs for a release of CUDA start: that of the whole major version since CUDA
// 11. CUDA Toolkit release notes, "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility". It
// is nil for releases that are not known.
func MinimumDriver(v Version) Driver {
	switch v.Major {
	case 10:
		if v.Minor == 2 {
			return toolkits[0].driver
		}
	case 11:
		return Driver{450, 80, 2}
	case 12:
		return Driver{525, 60, 13}
	case 13:
		return Driver{580, 65, 6}
	}
	return nil
}

// Newest is the newest release of CUDA that a driver was made for: it has all of its functions and compiles its PTX. The
// result is zero for a driver older than all that are known.
func Newest(d Driver) Version {
	var v Version
	for _, t := range toolkits {
		if d.Branch() >= t.driver.Branch() {
			v = t.cuda
		}
	}
	return v
}

// branchForPTX is the first branch of drivers that compiles a version of the PTX ISA: 0 when all of today's do, -1 when the
// version is newer than this table.
func branchForPTX(v PTX) int {
	for i, t := range toolkits {
		if v.Compare(t.ptx) <= 0 {
			if i == 0 {
				return 0
			}
			return t.driver.Branch()
		}
	}
	return -1
}

// DriverForPTX says it in words that stand behind "driver": "550 or newer".
func DriverForPTX(v PTX) string {
	switch b := branchForPTX(v); b {
	case -1:
		return fmt.Sprintf("newer than %d", toolkits[len(toolkits)-1].driver.Branch())
	case 0:
		return ""
	default:
		return fmt.Sprintf("%d or newer", b)
	}
}

// Compiles is whether a driver compiles a version of the PTX ISA. Of versions that are not known here nothing is.
func (v Driver) Compiles(ptx PTX) bool {
	b := branchForPTX(ptx)
	return b >= 0 && v.Branch() >= b || b < 0 && v.Branch() > toolkits[len(toolkits)-1].driver.Branch()
}

// ZstdDriver is the first driver that unpacks device code compressed by zstd, the one that came with CUDA 12.4, whose nvcc was
// the first to make such code (nvcc, option --compress-mode, and the CUDA 12.4 release notes).
var ZstdDriver = Driver{550, 54, 14}

// CompatBranches are the branches of drivers on which cuda-compat packages are supported, as far as the package is newer: the
// columns of the table in CUDA Compatibility, "Use the Right CUDA Forward Compatibility Package", of today and of the past
// years. On new feature branches NVIDIA does not support them.
var CompatBranches = []int{450, 470, 510, 525, 535, 550, 570, 580, 590, 595, 610, 615}

// TakesCompat tells what a GPU makes of a cuda-compat package: yes for capabilities that only chips for data centres have (V100,
// A100, H100, B200, B300), maybe for those that workstations' and players' have too, which end with error 804 (CUDA
// Compatibility, "Forward Compatibility").
func TakesCompat(sm int) bool { return slices.Contains([]int{60, 70, 80, 90, 100, 103, 107}, sm) }
