package cotainr

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/reach"
)

// An environment file is named on the command line, and may be somebody else's: it names what lies beside it and nothing else.
func TestReachOfEnvironmentFiles(t *testing.T) {
	t.Setenv(reach.Variable, "")
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	file := filepath.Join(top, "theirs", "environment.yml")
	for _, dir := range []string{filepath.Dir(file) + "/channel", top + "/private"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for text, outside := range map[string]bool{
		"channels: ['file://TOP/private']\ndependencies: [x]":           true,
		"channels: ['../private']\ndependencies: [x]":                   true,
		"dependencies: [pip, pip: ['-r TOP/private/list']]":             true,
		"dependencies: [pip, pip: ['x @ file://TOP/private']]":          true,
		"channels: ['file://TOP/theirs/channel']\ndependencies: [x]":    false,
		"dependencies: [pip, pip: ['x @ file://TOP/theirs/x-1.zip']]":   false,
		"channels: [conda-forge]\ndependencies: [x, pip, pip: [numpy]]": false,
	} {
		if err := os.WriteFile(file, []byte("name: x\n"+strings.ReplaceAll(text, "TOP", top)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		b := &build{app: &App{Command: []string{"cotainr"}}, image: "x.sif", base: "oci:" + top + "/image", condaEnvs: []string{file}}
		_, err := b.recipe()
		if refused := err != nil && strings.Contains(err.Error(), "outside of the directories of the environment files"); refused != outside || err != nil && !refused {
			t.Errorf("%s: %v", text, err)
		}
	}
}
