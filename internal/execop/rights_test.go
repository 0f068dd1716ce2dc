package execop

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// stepsPage says what a step may do.
const stepsPage = "../../docs/guide/steps.md"

// The kernel says of a step what the guide says.
func TestRightsOfSteps(t *testing.T) {
	b := newBench(t)
	_, out := b.run(sh("grep -E '^(NoNewPrivs|Seccomp|CapBnd):' /proc/self/status"))
	status := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(line, ":")
		status[name] = strings.TrimSpace(value)
	}
	rows := []struct{ name, root, user string }{{"NoNewPrivs", "0", "1"}, {"Seccomp", "2", "2"}, {"CapBnd", "00000000a80425fb", ""}}
	for _, row := range rows {
		want := row.user
		if asRoot() {
			want = row.root
		}
		if got := status[row.name]; want != "" && got != want {
			t.Errorf("%s is %q, want %q", row.name, got, want)
		}
	}
	const ptrace = 19 // CAP_SYS_PTRACE
	if set, err := strconv.ParseUint(status["CapBnd"], 16, 64); err != nil || set&(1<<ptrace) != 0 {
		t.Errorf("CapBnd is %q, want a set without CAP_SYS_PTRACE", status["CapBnd"])
	}
	if os.Getenv(asUserEnv) != "" {
		return // the page is out of this user's reach
	}
	page, err := os.ReadFile(stepsPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if line := "| `" + row.name + "` | " + row.root + " | " + row.user; !strings.Contains(string(page), line) {
			t.Errorf("%s lacks the line %q", stepsPage, line)
		}
	}
}
