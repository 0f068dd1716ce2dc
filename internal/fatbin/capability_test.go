package fatbin

import (
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
)

func TestParseGPUs(t *testing.T) {
	for text, want := range map[string][]int{
		"9.0":               {90},
		"9.0a":              {90},
		"9.0+PTX":           {90},
		"10.0f":             {100},
		"sm_90":             {90},
		"SM_90a":            {90},
		"compute_80":        {80},
		"90":                {90},
		"120":               {120},
		"12.1":              {121},
		"9.0;8.0":           {80, 90},
		"8.0 8.6, 9.0; 8.0": {80, 86, 90},
	} {
		got, err := ParseGPUs([]string{text})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	if got, err := ParseGPUs([]string{"9.0", "8.0"}); err != nil || !slices.Equal(got, []int{80, 90}) {
		t.Errorf("two flags: %v, %v", got, err)
	}
}

func TestParseGPUsRefuses(t *testing.T) {
	for text, want := range map[string][2]string{
		"":           {"no GPU is named", "compute capability"},
		"9.1":        {"no GPU of compute capability 9.1", "the nearest is 9.0"},
		"8.5":        {"8.5", "the nearest is 8.6"},
		"11.1":       {"11.1", "the nearest is 11.0"},
		"99.0":       {"99.0", "the nearest is 12.1"},
		"sm_91":      {"9.1", "the nearest is 9.0"},
		"9":          {`"9" is only the major number`, "9.0"},
		"8":          {`"8" is only the major number`, "8.0, 8.6"},
		"h100":       {`"h100" is no compute capability`, "that of H100 is 9.0"},
		"hopper":     {`"hopper" is no compute capability`, "9.0 that of H100"},
		"9.0b":       {`"9.0b"`, "compute capability"},
		"-9.0":       {`"-9.0"`, "compute capability"},
		"9.0,native": {`"native"`, "compute capability"},
	} {
		got, err := ParseGPUs([]string{text})
		if err == nil {
			t.Errorf("%q is %v", text, got)
			continue
		}
		if fault.CodeOf(err) != fault.CodeUsage || !strings.Contains(err.Error(), want[0]) || !strings.Contains(fault.HintOf(err), want[1]) {
			t.Errorf("%q: %v (%s), code %d; want %q (%q)", text, err, fault.HintOf(err), fault.CodeOf(err), want[0], want[1])
		}
	}
}
