package elfx

import (
	"cmp"
	"strings"
)

// CompareVersions compares two versions of symbols, number by number: GLIBC_2.34 is above GLIBC_2.4. Versions of different
// kinds, and those without numbers such as GLIBC_PRIVATE, are in the order of their names.
func CompareVersions(a, b string) int {
	kindA, numbersA := splitVersion(a)
	kindB, numbersB := splitVersion(b)
	if kindA != kindB {
		return cmp.Compare(kindA, kindB)
	}
	for numbersA != "" || numbersB != "" {
		var partA, partB string
		partA, numbersA, _ = strings.Cut(numbersA, ".")
		partB, numbersB, _ = strings.Cut(numbersB, ".")
		if order := compareNumbers(partA, partB); order != 0 {
			return order
		}
	}
	return cmp.Compare(len(a), len(b)) // 2.0 is above 2
}

// compareNumbers compares numbers of any length; what is no number comes after.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// splitVersion cuts GLIBC_2.34 into GLIBC and 2.34; a version without a number is all kind.
func splitVersion(v string) (kind, numbers string) {
	i := strings.LastIndexByte(v, '_')
	if i < 0 || i+1 == len(v) || v[i+1] < '0' || v[i+1] > '9' {
		return v, ""
	}
	return v[:i], v[i+1:]
}
