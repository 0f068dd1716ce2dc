package rpm

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/debian"
)

// The guide says whose keys are in the program.
func TestKeysOfReleases(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guide/bootstrap.md")
	if err != nil {
		t.Fatal(err)
	}
	for release, want := range map[string][]string{
		"rocky-9": {"21CB256AE16FC54C6E652949702D426D350D275D"}, "rocky-10": {"FC226859C0860BF0DDB95B085B106C736FEDFC85"},
		"alma-9": {"BF18AC2876178908D6E71267D36CB86CB86B3716"}, "alma-10": {"EE6DB7B98F5BF5EDD9DA0DE5DEE5C11CC2A1E572"},
		"fedora-41": {"466CF2D8B60BC3057AA9453ED0622462E99D6AD1"}, "fedora-42": {"B0F4950458F69E1150C6C5EDC8AC4916105EF944"},
		"fedora-43": {"C6E7F081CF80E13146676E88829B606631645531"}, "fedora-44": {"36F612DCF27F7D1A48A835E4DBFCF71C6D9F90A6"},
		"opensuse-15.6": {"7F009157B127B994D5CFBE76F74F09BC3FA1D6CE", "AD485664E901B867051AB15F35A2F86E29B700A4", "F044C2C507A1262B538AAADD8A49EB0325DB7AE0"},
		"rocky-8":       nil,
	} {
		k := &debian.Keyring{}
		for name, data := range Keys(release) {
			if err := k.Add(data); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := k.Fingerprints(); !slices.Equal(got, want) {
			t.Errorf("%s: %q", release, got)
		}
		for _, f := range want {
			if !strings.Contains(string(guide), f) {
				t.Errorf("the guide lacks %s of %s", f, release)
			}
		}
	}
}
