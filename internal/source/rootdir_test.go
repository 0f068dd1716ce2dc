package source

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// program is as much of a program as its platform is told by.
func program(machine byte) string {
	head := make([]byte, 64)
	copy(head, "\x7fELF\x02\x01\x01")
	head[18] = machine
	return string(head)
}

// A directory's platform is found out before it is read: links lead where they lead in the root file system.
func TestDirPlatform(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string // a link's target begins with ">"
		arch  string            // "" when nothing tells
	}{
		"a program":          {map[string]string{"bin/sh": program(amd64)}, "amd64"},
		"merged directories": {map[string]string{"bin": ">usr/bin", "usr/bin/sh": program(arm64)}, "arm64"},
		"links":              {map[string]string{"bin": ">/usr/bin", "usr/bin/sh": ">../../opt/x", "opt/x": ">/opt/../../opt/y", "opt/y": program(arm64)}, "arm64"},
		"a later one":        {map[string]string{"bin/sh": "#!/bin/busybox", "bin/busybox": program(amd64)}, "amd64"},
		"a loop":             {map[string]string{"bin/sh": ">sh", "usr/bin/env": program(arm64)}, "arm64"},
		"through a file":     {map[string]string{"bin": "a file", "usr/bin/env": program(arm64)}, "arm64"},
		"to the machine":     {map[string]string{"bin/sh": ">/../../../../../../../bin/sh"}, ""},
		"a directory":        {map[string]string{"bin/sh/x": ""}, ""},
		"nothing":            {map[string]string{"etc/passwd": ""}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for p, text := range tc.files {
				at := filepath.Join(dir, p)
				if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
					t.Fatal(err)
				}
				var err error
				if text != "" && text[0] == '>' {
					err = os.Symlink(text[1:], at)
				} else {
					err = os.WriteFile(at, []byte(text), 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			st := storetest.New(t)
			im, err := Import(t.Context(), mustParse(t, "dir:"+dir), options(st))
			if tc.arch == "" {
				if err == nil || fault.HintOf(err) == "" {
					t.Errorf("the platform was guessed: %v", err)
				}
				wantEmpty(t, st)
				return
			}
			if err != nil || im.Config.Architecture != tc.arch {
				t.Fatalf("architecture %v, %v, want %s", im, err, tc.arch)
			}
			other := options(storetest.New(t))
			other.Platform = v1.Platform{OS: "linux", Architecture: "riscv64"}
			var wrong *PlatformError
			if _, err := Import(t.Context(), mustParse(t, "dir:"+dir), other); !errors.As(err, &wrong) {
				t.Errorf("as another platform's: %v", err)
			}
			wantEmpty(t, other.Store)
		})
	}
}

// wantEmpty checks that nothing was read into a store.
func wantEmpty(t *testing.T, st *store.Store) {
	t.Helper()
	err := filepath.WalkDir(st.Dir(), func(p string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && filepath.Base(filepath.Dir(filepath.Dir(p))) == "sha256" {
			t.Errorf("%s was made", p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
