package audit

import (
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/cuda"
	"sconce.dev/sconce/internal/lazyregexp"
)

// requirement is a condition of NVIDIA_REQUIRE_CUDA: "cuda>=12.4".
var requirement = lazyregexp.New(`^(\w+)(>=|<=|!=|=|<|>)([\w.]+)$`)

// meets is whether the target meets one of the alternatives, which spaces part, in each of its conditions, which commas part
// (libnvidia-container, "Requirements"). What is not known counts as met.
func (s *Subject) meets(value string) bool {
	alternatives := strings.Fields(value)
	return len(alternatives) == 0 || slices.ContainsFunc(alternatives, func(a string) bool {
		for condition := range strings.SplitSeq(a, ",") {
			if m := requirement.FindStringSubmatch(condition); m != nil && !s.meetsOne(m[1], m[2], m[3]) {
				return false
			}
		}
		return true
	})
}

func (s *Subject) meetsOne(key, op, value string) bool {
	want := numbers(value)
	switch key {
	case "cuda":
		made := cuda.Newest(s.driver())
		return made.Major == 0 || compareBy(op, slices.Compare([]int{made.Major, made.Minor}, want))
	case "driver":
		have := s.driver()
		n := min(len(have), len(want))
		if op == "<" || op == ">=" { // as far as both are known
			return compareBy(op, slices.Compare(have[:n], want[:n]))
		}
		return true
	case "arch":
		gpus := s.gpus()
		return len(gpus) == 0 || slices.ContainsFunc(gpus, func(sm int) bool { return compareBy(op, slices.Compare([]int{sm / 10, sm % 10}, want)) })
	}
	return true
}

func numbers(s string) (list []int) {
	for part := range strings.SplitSeq(s, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return list
		}
		list = append(list, n)
	}
	return list
}

func compareBy(op string, order int) bool {
	switch op {
	case ">=":
		return order >= 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	case "<":
		return order < 0
	case "!=":
		return order != 0
	}
	return order == 0
}
