package python

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzOpenWheel reads whatever it gets as a wheel. What is accepted must stay inside of the environment.
func FuzzOpenWheel(f *testing.F) {
	f.Add(craft(f))
	f.Add(craft(f, wheelEntry{name: "demo/__init__.py", data: "x = 1\n"}, wheelEntry{"demo/tool", "#!/bin/sh\n", mode(0o100755)}))
	f.Add(craft(f, wheelEntry{name: "demo_pkg-1.0.data/scripts/tool", data: "#!python\nprint()\n"}, wheelEntry{name: "demo_pkg-1.0.data/data/lib64/x", data: "1"}))
	f.Add(craft(f, wheelEntry{name: "../x", data: "1"}, entryPoints("[console_scripts]\na = b:c\n")))
	f.Add(craft(f, wheelEntry{"link", "/etc/passwd", mode(0o120777)}))
	f.Fuzz(func(t *testing.T, data []byte) {
		w, err := OpenWheel(bytes.NewReader(data), int64(len(data)), testWheelFile)
		if err != nil {
			return
		}
		files, err := Layout(w, testTarget("3.11.2"))
		if err != nil {
			return
		}
		seen := make(map[string]bool)
		for _, file := range files {
			if err := checkPath(file.Path); err != nil || seen[file.Path] {
				t.Errorf("%q: %v, twice: %t", file.Path, err, seen[file.Path])
			}
			seen[file.Path] = true
			if file.Size > 1<<20 {
				continue
			}
			if text, err := file.read(); err == nil && sha256Of(text) != file.SHA256 {
				t.Errorf("%q is not what its hash says", file.Path)
			}
		}
	})
}

// FuzzEntryPoints reads whatever it gets as an entry_points.txt. What goes into a script's text must be names only.
func FuzzEntryPoints(f *testing.F) {
	f.Add("[console_scripts]\na = b:c\nd=e.f:g.h [x]\n\n[gui_scripts]\n; x\nw = v:u\n[other]\n???\n")
	f.Add("\xef\xbb\xbf[console_scripts]\r\na = b:c\r\n")
	f.Add("[console_scripts]\n../a = b:c;d\n")
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ParseEntryPoints([]byte(text))
		if err != nil {
			return
		}
		for _, p := range append(e.Console, e.GUI...) {
			if strings.ContainsAny(p.Name, "/\x00\n") || p.Name == ".." || strings.ContainsAny(p.Module+p.Attr, " \t\n;()'\"#=/\\,") || !utf8.ValidString(p.Module+p.Attr) {
				t.Errorf("%q became %+v", text, p)
			}
		}
	})
}

// FuzzRecord reads whatever it gets as a RECORD; what is accepted and written again must say the same.
func FuzzRecord(f *testing.F) {
	f.Add(recordOf("demo.py", "x", 1))
	f.Add("\"a,b\",sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\r\nRECORD,,\r\n")
	f.Add("a,sha512=z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg_SpIdNs6c5H0NE8XYXysP-DGNKHfuwvY7kxvUdBeoGlODJ6-SfaPg,\n")
	f.Fuzz(func(t *testing.T, text string) {
		lines, _, err := parseRecord([]byte(text))
		if err != nil {
			return
		}
		var entries []recordEntry
		for name, line := range lines {
			if err := checkPath(name); err != nil {
				t.Errorf("accepted %q: %v", name, err)
			}
			if line.hash.algorithm == "sha256" && line.size >= 0 {
				entries = append(entries, recordEntry{name, line.hash.value, line.size})
			}
		}
		again, _, err := parseRecord(formatRecord(entries))
		if err != nil || len(again) != len(entries) {
			t.Fatalf("%q, written again: %v", text, err)
		}
		for _, e := range entries {
			if again[e.path] != lines[e.path] {
				t.Errorf("%q: %+v became %+v", e.path, lines[e.path], again[e.path])
			}
		}
	})
}

// FuzzMetadata reads whatever it gets as core metadata.
func FuzzMetadata(f *testing.F) {
	f.Add(metadataText)
	f.Add("Name: a\nVersion: 1\nRequires-Dist: x\n  ; y\n\nbody\nName: b\n")
	f.Add(" x\n:\n")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseMetadata([]byte(text))
		if err == nil && (m.Version == "" || strings.ContainsAny(m.Name, "/\\ \n\x00") || m.Name == "") {
			t.Errorf("%q became %+v", text, m)
		}
	})
}
