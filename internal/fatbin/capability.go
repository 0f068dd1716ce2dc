package fatbin

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
)

// ParseGPUs reads CUDA compute capabilities as TORCH_CUDA_ARCH_LIST has them, "9.0", "9.0a" or "8.0;9.0+PTX", and as compilers name
// them, "sm_90" or "90". Commas, semicolons and blanks part several. The result is in order, 90 for 9.0, each once. What is no
// capability of an NVIDIA GPU is an error of exit code 2 that names the nearest one.
func ParseGPUs(list []string) ([]int, error) {
	var gpus []int
	for _, text := range list {
		for _, one := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(",; \t\n", r) }) {
			sm, err := parseGPU(one)
			if err != nil {
				return nil, fault.Usage(err)
			}
			gpus = append(gpus, sm)
		}
	}
	if len(gpus) == 0 {
		return nil, fault.Usage(fault.Hint(errors.New("no GPU is named"), gpuHint))
	}
	slices.Sort(gpus)
	return slices.Compact(gpus), nil
}

const gpuHint = "a GPU is named by its compute capability: 8.0 is the A100's, 8.9 the L4's and L40's, 9.0 that of H100, H200 and GH200, " +
	"10.0 that of B200 and GB200"

var (
	// dotted is "9.0", with what only matters to compilers: the suffix of code for exactly this GPU or its family, and "+PTX".
	dotted = lazyregexp.New(`^(\d{1,2})\.(\d)[af]?(\+(?i:ptx))?$`)
	// joined is "sm_90".
	joined = lazyregexp.New(`^(?i:sm_|compute_|sm)?(\d{2,3})[af]?$`)
)

func parseGPU(s string) (int, error) {
	var digits string
	switch m := dotted.FindStringSubmatch(s); {
	case m != nil:
		digits = m[1] + m[2]
	case joined.MatchString(s):
		digits = joined.FindStringSubmatch(s)[1]
	default:
		return 0, notGPU(s)
	}
	sm, err := strconv.Atoi(digits)
	if err != nil {
		return 0, notGPU(s)
	}
	if known := Devices(); !slices.Contains(known, sm) {
		err := fmt.Errorf("there is no GPU of compute capability %s", Capability(sm))
		return 0, fault.Hint(err, fmt.Sprintf("the nearest is %s; `nvidia-smi --query-gpu=compute_cap --format=csv` on a node tells the right one",
			Capability(nearest(known, sm))))
	}
	return sm, nil
}

// notGPU explains what was meant, where that can be guessed.
func notGPU(s string) error {
	err := fmt.Errorf("%q is no compute capability", s)
	if sm, ok := chips[strings.ToUpper(s)]; ok {
		return fault.Hint(err, fmt.Sprintf("that of %s is %s", strings.ToUpper(s), Capability(sm)))
	}
	if major, err := strconv.Atoi(s); err == nil {
		var same []string
		for _, sm := range Devices() {
			if sm/10 == major {
				same = append(same, Capability(sm))
			}
		}
		if len(same) > 0 {
			return fault.Hint(fmt.Errorf("%q is only the major number of a compute capability", s), "it is one of "+strings.Join(same, ", "))
		}
	}
	return fault.Hint(err, gpuHint)
}

// chips are the compute capabilities of what people call their GPUs (developer.nvidia.com/cuda-gpus).
var chips = map[string]int{
	"P100": 60, "V100": 70, "T4": 75, "A100": 80, "A30": 80, "A10": 86, "A40": 86, "L4": 89, "L40": 89, "L40S": 89,
	"H100": 90, "H200": 90, "GH200": 90, "B200": 100, "GB200": 100, "B300": 103, "GB300": 103, "GB10": 121,
}

func nearest(known []int, sm int) int {
	best := known[0]
	for _, k := range known {
		if distance(k, sm) < distance(best, sm) {
			best = k
		}
	}
	return best
}

func distance(a, b int) int { return max(a-b, b-a) }

// Capability writes a compute capability as people do: 90 as "9.0".
func Capability(sm int) string { return fmt.Sprintf("%d.%d", sm/10, sm%10) }
