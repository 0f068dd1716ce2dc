package engine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/venv"
)

// An environment's directory may be a stranger's: its venv.toml names nothing outside of it, except what the user has named for it.
func TestReachOfVenv(t *testing.T) {
	t.Setenv(reach.Variable, "")
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(top, "private")
	if err := os.MkdirAll(private, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"requirements.txt": "x\n", "pyproject.toml": "[project]\nname = \"x\"\nversion = \"1\"\n"} {
		if err := os.WriteFile(filepath.Join(private, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := newSession(t)
	environment := func(name string, m venv.Manifest) string {
		dir := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Join(dir, "lock-1"), 0o755); err != nil {
			t.Fatal(err)
		}
		m.Base = venv.Base{
			Image: "oci:" + filepath.Join(top, "absent"), Digest: store.DigestOf(nil), Platform: "linux/amd64", Executable: "/usr/bin/python3", Python: "3.11.2", Mount: "/venv",
		}
		if err := m.Save(dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	const outside = "outside of the environment's directory"
	for name, m := range map[string]venv.Manifest{
		"package":      {Packages: []string{"x @ file://" + private}},
		"repository":   {Packages: []string{"x @ git+file://" + private + "@main"}},
		"requirements": {Requirements: []string{"../private/requirements.txt"}},
		"absolute":     {Requirements: []string{private + "/requirements.txt"}},
		"project":      {Project: "../private"},
	} {
		m.Lock = "lock-1"
		dir := environment(name, m)
		if _, err := s.OpenVenv(t.Context(), dir); err == nil || !strings.Contains(err.Error(), outside) || !strings.Contains(fault.HintOf(err), "--allow-path "+private) {
			t.Errorf("%s: %v, hint %q", name, err, fault.HintOf(err))
		}
		m.Lock = ""
		if _, err := s.ChangeVenv(t.Context(), environment(name, m), engine.VenvRequest{Packages: []string{"y"}}); err == nil || !strings.Contains(err.Error(), outside) {
			t.Errorf("%s, changed: %v", name, err)
		}
	}
	named := environment("named", venv.Manifest{})
	_, err = s.ChangeVenv(t.Context(), named, engine.VenvRequest{Requirements: []string{filepath.Join(private, "requirements.txt")}, Project: private})
	if err == nil || strings.Contains(err.Error(), outside) {
		t.Errorf("named by the user: %v", err)
	}
	named = environment("named", venv.Manifest{Requirements: []string{"../private/requirements.txt"}, Project: "../private", Lock: "lock-1"})
	if _, err := s.OpenVenv(t.Context(), named); err == nil || strings.Contains(err.Error(), outside) {
		t.Errorf("named by the user before: %v", err)
	}
}
