package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// driverVersion is a version of NVIDIA's driver for Linux: 550, 54, 15. Its first number is called the branch.
type driverVersion []int

// parseDriver reads a version such as "550.54.15" or "550". It is nil for anything else.
func parseDriver(s string) driverVersion {
	var v driverVersion
	for part := range strings.SplitSeq(s, ".") {
		n, err := strconv.ParseUint(part, 10, 31)
		if err != nil {
			return nil
		}
		v = append(v, int(n))
	}
	return v
}

func (v driverVersion) branch() int { return v[0] }

// olderThan compares as far as both are known: 550 is not older than 550.54.15, for it may be any of its branch.
func (v driverVersion) olderThan(o driverVersion) bool {
	n := min(len(v), len(o))
	return slices.Compare(v[:n], o[:n]) < 0
}

func (v driverVersion) String() string {
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

// cudaVersion is a release of the CUDA toolkit. Minor is -1 when only the major number is known.
type cudaVersion struct{ major, minor int }

func (v cudaVersion) String() string {
	if v.minor < 0 {
		return strconv.Itoa(v.major)
	}
	return fmt.Sprintf("%d.%d", v.major, v.minor)
}

func (v cudaVersion) compare(o cudaVersion) int {
	return cmp.Or(cmp.Compare(v.major, o.major), cmp.Compare(v.minor, o.minor))
}

// parseCUDA reads the first numbers of a version such as "12", "12.4" or "12.4.127".
func parseCUDA(s string) (v cudaVersion, ok bool) {
	major, rest, more := strings.Cut(s, ".")
	n, err := strconv.ParseUint(major, 10, 15)
	if err != nil || n == 0 {
		return cudaVersion{}, false
	}
	v = cudaVersion{int(n), -1}
	if more {
		minor, _, _ := strings.Cut(rest, ".")
		if n, err := strconv.ParseUint(minor, 10, 15); err == nil {
			v.minor = int(n)
		}
	}
	return v, true
}

// toolkit is a release of CUDA with the first driver that was made for it and the PTX ISA that came with it.
type toolkit struct {
	cuda   cudaVersion
	driver driverVersion
	ptx    ptxVersion
}

// toolkits are from the CUDA Toolkit release notes, "CUDA Toolkit and Corresponding Driver Versions" (Linux, the first release
// of each minor version; since 13.3 the notes give branches only), and from the PTX ISA, "Release Notes", table "PTX Release
// History", which alone has 12.7. Both as of CUDA 13.4.
var toolkits = []toolkit{
	{cudaVersion{10, 2}, driverVersion{440, 33}, ptxVersion{6, 5}},
	{cudaVersion{11, 0}, driverVersion{450, 51, 5}, ptxVersion{7, 0}},
	{cudaVersion{11, 1}, driverVersion{455, 23}, ptxVersion{7, 1}},
	{cudaVersion{11, 2}, driverVersion{460, 27, 3}, ptxVersion{7, 2}},
	{cudaVersion{11, 3}, driverVersion{465, 19, 1}, ptxVersion{7, 3}},
	{cudaVersion{11, 4}, driverVersion{470, 42, 1}, ptxVersion{7, 4}},
	{cudaVersion{11, 5}, driverVersion{495, 29, 5}, ptxVersion{7, 5}},
	{cudaVersion{11, 6}, driverVersion{510, 39, 1}, ptxVersion{7, 6}},
	{cudaVersion{11, 7}, driverVersion{515, 43, 4}, ptxVersion{7, 7}},
	{cudaVersion{11, 8}, driverVersion{520, 61, 5}, ptxVersion{7, 8}},
	{cudaVersion{12, 0}, driverVersion{525, 60, 13}, ptxVersion{8, 0}},
	{cudaVersion{12, 1}, driverVersion{530, 30, 2}, ptxVersion{8, 1}},
	{cudaVersion{12, 2}, driverVersion{535, 54, 3}, ptxVersion{8, 2}},
	{cudaVersion{12, 3}, driverVersion{545, 23, 6}, ptxVersion{8, 3}},
	{cudaVersion{12, 4}, driverVersion{550, 54, 14}, ptxVersion{8, 4}},
	{cudaVersion{12, 5}, driverVersion{555, 42, 2}, ptxVersion{8, 5}},
	{cudaVersion{12, 6}, driverVersion{560, 28, 3}, ptxVersion{8, 5}},
	{cudaVersion{12, 7}, driverVersion{565}, ptxVersion{8, 6}},
	{cudaVersion{12, 8}, driverVersion{570, 26}, ptxVersion{8, 7}},
	{cudaVersion{12, 9}, driverVersion{575, 51, 3}, ptxVersion{8, 8}},
	{cudaVersion{13, 0}, driverVersion{580, 65, 6}, ptxVersion{9, 0}},
	{cudaVersion{13, 1}, driverVersion{590, 44, 1}, ptxVersion{9, 1}},
	{cudaVersion{13, 2}, driverVersion{595, 45, 4}, ptxVersion{9, 2}},
	{cudaVersion{13, 3}, driverVersion{610}, ptxVersion{9, 3}},
	{cudaVersion{13, 4}, driverVersion{615}, ptxVersion{9, 4}},
}

// minimumDriver is the oldest driver on which programs for a release of CUDA start: that of the whole major version since CUDA
// 11. CUDA Toolkit release notes, "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility". It
// is nil for releases that are not known.
func minimumDriver(v cudaVersion) driverVersion {
	switch v.major {
	case 10:
		if v.minor == 2 {
			return toolkits[0].driver
		}
	case 11:
		return driverVersion{450, 80, 2}
	case 12:
		return driverVersion{525, 60, 13}
	case 13:
		return driverVersion{580, 65, 6}
	}
	return nil
}

// cudaOf is the newest release of CUDA that a driver was made for: it has all of its functions and compiles its PTX. The
// result is zero for a driver older than all that are known.
func cudaOf(d driverVersion) cudaVersion {
	var v cudaVersion
	for _, t := range toolkits {
		if d.branch() >= t.driver.branch() {
			v = t.cuda
		}
	}
	return v
}

// branchForPTX is the first branch of drivers that compiles a version of the PTX ISA: 0 when all of today's do, -1 when the
// version is newer than this table.
func branchForPTX(v ptxVersion) int {
	for i, t := range toolkits {
		if v.compare(t.ptx) <= 0 {
			if i == 0 {
				return 0
			}
			return t.driver.branch()
		}
	}
	return -1
}

// driverForPTX says it in words that stand behind "driver": "550 or newer".
func driverForPTX(v ptxVersion) string {
	switch b := branchForPTX(v); b {
	case -1:
		return fmt.Sprintf("newer than %d", toolkits[len(toolkits)-1].driver.branch())
	case 0:
		return ""
	default:
		return fmt.Sprintf("%d or newer", b)
	}
}

// compiles is whether a driver compiles a version of the PTX ISA. Of versions that are not known here nothing is.
func (v driverVersion) compiles(ptx ptxVersion) bool {
	b := branchForPTX(ptx)
	return b >= 0 && v.branch() >= b || b < 0 && v.branch() > toolkits[len(toolkits)-1].driver.branch()
}

// zstdDriver is the first driver that unpacks device code compressed by zstd, the one that came with CUDA 12.4, whose nvcc was
// the first to make such code (nvcc, option --compress-mode, and the CUDA 12.4 release notes).
var zstdDriver = driverVersion{550, 54, 14}

// compatBranches are the branches of drivers on which cuda-compat packages are supported, as far as the package is newer: the
// columns of the table in CUDA Compatibility, "Use the Right CUDA Forward Compatibility Package", of today and of the past
// years. On new feature branches NVIDIA does not support them.
var compatBranches = []int{450, 470, 510, 525, 535, 550, 570, 580, 590, 595, 610, 615}

// takesCompat tells what a GPU makes of a cuda-compat package: yes for capabilities that only chips for data centres have (V100,
// A100, H100, B200, B300), maybe for those that workstations' and players' have too, which end with error 804 (CUDA
// Compatibility, "Forward Compatibility").
func takesCompat(sm int) bool { return slices.Contains([]int{60, 70, 80, 90, 100, 103, 107}, sm) }
