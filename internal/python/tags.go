package python

import (
	"fmt"
	"strconv"
	"strings"
)

// manylinuxNames are the former names of glibc profiles, by glibc's minor version (PEP 513, 571 and 599).
var manylinuxNames = map[int]string{5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}

// oldestGlibc is the minor version of the oldest glibc 2 that manylinux wheels were made for, by machine. Other machines
// came with manylinux2014 (PEP 599).
var oldestGlibc = map[string]int{"x86_64": 5, "i686": 5}

const oldestGlibcElsewhere = 17

// oldestStableABI is the Python that brought the stable ABI, 3.2 (PEP 384).
const oldestStableABI = 2

// Limits on versions that come from an image, so that they give a bounded number of tags.
const (
	maxPythonMinor = 200
	maxLibcMinor   = 500
)

// Tags returns the tags of wheels that i can import, best first: python-abi-platform, in the order of the function
// sys_tags of the reference implementation, the package "packaging". A version that cannot be read gives no tags.
func (i Interpreter) Tags() []string {
	major, minor, ok := twoNumbers(i.Minor())
	if !ok || minor > maxPythonMinor {
		return nil
	}
	var tags []string
	platforms := i.platforms()
	add := func(python, abi string) {
		for _, p := range platforms {
			tags = append(tags, python+"-"+abi+"-"+p)
		}
	}
	python := fmt.Sprintf("cp%d%d", major, minor)
	add(python, python)
	add(python, "abi3")
	add(python, "none")
	for m := minor - 1; m >= oldestStableABI; m-- {
		add(fmt.Sprintf("cp%d%d", major, m), "abi3")
	}
	sources := sourceTags(major, minor)
	for _, s := range sources {
		add(s, "none")
	}
	tags = append(tags, python+"-none-any")
	for _, s := range sources {
		tags = append(tags, s+"-none-any")
	}
	return tags
}

// sourceTags are the tags of Python code that runs without a compiled part: py311, py3, py310, … py30.
func sourceTags(major, minor int) []string {
	tags := []string{fmt.Sprintf("py%d%d", major, minor), fmt.Sprintf("py%d", major)}
	for m := minor - 1; m >= 0; m-- {
		tags = append(tags, fmt.Sprintf("py%d%d", major, m))
	}
	return tags
}

// platforms returns the platform tags, best first: exactly this kind of machine, then libc profiles from the newest to
// the oldest.
func (i Interpreter) platforms() []string {
	platforms := []string{"linux_" + i.Platform}
	if major, minor, ok := twoNumbers(i.Glibc); ok && major == 2 {
		platforms = append(platforms, i.manylinux(minor)...)
	}
	if major, minor, ok := twoNumbers(i.Musl); ok {
		for m := min(minor, maxLibcMinor); m >= 0; m-- {
			platforms = append(platforms, fmt.Sprintf("musllinux_%d_%d_%s", major, m, i.Platform))
		}
	}
	return platforms
}

// manylinux returns the glibc profiles up to glibc 2.minor (PEP 600), each followed by its former name.
func (i Interpreter) manylinux(minor int) []string {
	oldest, ok := oldestGlibc[i.Platform]
	if !ok {
		oldest = oldestGlibcElsewhere
	}
	var platforms []string
	for m := min(minor, maxLibcMinor); m >= oldest; m-- {
		platforms = append(platforms, fmt.Sprintf("manylinux_2_%d_%s", m, i.Platform))
		if name, ok := manylinuxNames[m]; ok {
			platforms = append(platforms, name+"_"+i.Platform)
		}
	}
	return platforms
}

// twoNumbers reads "2.36".
func twoNumbers(s string) (major, minor int, ok bool) {
	a, rest, found := strings.Cut(s, ".")
	b, _, _ := strings.Cut(rest, ".")
	if !found || !digits(a) || !digits(b) {
		return 0, 0, false
	}
	major, err := strconv.Atoi(a)
	if err != nil {
		return 0, 0, false
	}
	minor, err = strconv.Atoi(b)
	return major, minor, err == nil
}
