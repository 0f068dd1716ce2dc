package cli

import (
	"strings"
	"testing"
	"unicode/utf8"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/registry"
)

// What is said of a machine fits a terminal of 60 columns, words apart that are wider than that.
func TestInfoFitsATerminal(t *testing.T) {
	in := hostInfo{Machine: engine.Machine{
		Sandbox: engine.SandboxState{Error: "user namespaces are switched off on this machine, so that no command can be run in an image", Hint: "ask an administrator to set what is named below to another value"},
		Report: host.Report{
			Store: host.StorePlace{Dir: "/home/me/.local/share/sconce", FileSystem: host.FileSystem{
				Type: "nfs", Free: 1e9, Size: 1e12, Files: 1e6, FreeFiles: 5e4, Advice: "a store here works, but builds are faster with SCONCE_STORE on a local disk",
			}},
			Tools: []host.Tool{
				{Name: "uv", Purpose: "resolves Python packages (sconce lock, the first sconce build)", Install: "it comes by itself, from your Python index, when it is needed first"},
				{Name: "git", Purpose: "fetches Python packages that a recipe names by a git URL", Path: "/usr/bin/git", Version: "git version 2.39.5"},
			},
		},
		Quota:  &host.Quota{Bytes: 9e9, MaxBytes: 1e10, Files: 10, MaxFiles: 1000},
		Logins: []registry.Known{{Name: "registry.example.org/team", From: "/home/me/.config/containers/auth.json"}},
	}}
	for line := range strings.Lines(in.text(60)) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 60 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	text := in.text(0)
	for _, want := range []string{"50,000 of 1,000,000 inodes", "9.0 GB of 10.0 GB used", "10 of 1,000 files used", "that is little", "registry.example.org/team, by /home/me"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing says %q in\n%s", want, text)
		}
	}
	in.Quota, in.Store.Free, in.Store.FreeFiles = nil, 1e11, 5e5
	if text := in.text(0); strings.Contains(text, "little") || strings.Contains(text, "quota") {
		t.Errorf("there is enough of everything:\n%s", text)
	}
}

// Whether programs of the other architecture run is said with the sandbox, and by what, or what to do.
func TestInfoOfTheOtherArchitecture(t *testing.T) {
	for want, f := range map[string]*engine.ForeignState{
		"programs for linux/arm64 run, by /usr/bin/qemu-aarch64-static\n":                   {Platform: "linux/arm64", Emulator: "/usr/bin/qemu-aarch64-static"},
		"programs for linux/arm64 run, by an emulator that is registered with the kernel\n": {Platform: "linux/arm64"},
		"programs for linux/arm64 do not run: put one on PATH\n":                            {Platform: "linux/arm64", Error: "they do not", Hint: "put one on PATH"},
	} {
		in := hostInfo{Machine: engine.Machine{Sandbox: engine.SandboxState{Works: true, Foreign: f}}}
		if text := in.text(0); !strings.Contains(text, want) {
			t.Errorf("nothing says %q in\n%s", want, text)
		}
	}
}
