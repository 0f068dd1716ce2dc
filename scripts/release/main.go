// Release writes what a release of sconce says about the modules in its binary: their licences, and a bill of materials.
//
//	go run ./scripts/release VERSION BINARY DIR
//
// DIR gets THIRD-PARTY.txt, with the whole text of every licence and notice, and sconce.cdx.json (CycloneDX 1.6). Both are the same
// bytes for the same binary.
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: go run ./scripts/release VERSION BINARY DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// module is a part of the binary.
type module struct {
	path, version string
	sum           string   // of its files, as go.sum has it: "h1:…"
	texts         []string // files with its licence and notices
}

func write(version, binary, dir string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	goRoot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	// What was compiled comes with the standard library of the Go that compiled it.
	standard, err := texts(strings.TrimSpace(string(goRoot)))
	if err != nil {
		return err
	}
	modules := []module{{path: "std", version: strings.TrimPrefix(info.GoVersion, "go"), texts: standard}}
	for _, dep := range info.Deps {
		m, err := find(dep)
		if err != nil {
			return err
		}
		modules = append(modules, m)
	}
	return errors.Join(writeNotices(modules, filepath.Join(dir, "THIRD-PARTY.txt")), writeBOM(version, modules, filepath.Join(dir, "sconce.cdx.json")))
}

func find(dep *debug.Module) (module, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", dep.Path+"@"+dep.Version).Output()
	if err != nil {
		return module{}, fmt.Errorf("find the sources of %s %s: %w", dep.Path, dep.Version, err)
	}
	found, err := texts(strings.TrimSpace(string(out)))
	return module{path: dep.Path, version: dep.Version, sum: dep.Sum, texts: found}, err
}

var legal = regexp.MustCompile(`(?i)^(licen[sc]e|copying|notice|patents|unlicense)([.-].*)?$`)

// texts are the files of a directory that a copy has to come with.
func texts(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		if e.Type().IsRegular() && legal.MatchString(e.Name()) {
			found = append(found, filepath.Join(dir, e.Name()))
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no licence: %w", dir, fs.ErrNotExist)
	}
	return found, nil
}

func writeNotices(modules []module, name string) error {
	var b strings.Builder
	b.WriteString("sconce is built from these modules. What follows is the text of their licences and notices.\n")
	for _, m := range modules {
		fmt.Fprintf(&b, "\n%s\n%s %s\n", strings.Repeat("=", 80), m.path, m.version)
		for _, file := range m.texts {
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "%s\n%s\n%s\n", strings.Repeat("-", 80), filepath.Base(file), strings.TrimRight(string(data), "\n"))
		}
	}
	return os.WriteFile(name, []byte(b.String()), 0o644)
}

// licences are told by what their texts begin with or say first, in the order to look.
var licences = []struct{ id, has string }{
	{"Apache-2.0", "Apache License"},
	{"MPL-2.0", "Mozilla Public License"},
	{"BSD-3-Clause", "Neither the name"},
	{"BSD-2-Clause", "Redistributions of source code"},
	{"MIT", "Permission is hereby granted, free of charge"},
	{"ISC", "Permission to use, copy, modify"},
}

// licence is the SPDX identifier of a module's first licence, "" for one that is not known.
func (m module) licence() (string, error) {
	data, err := os.ReadFile(m.texts[0])
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(licences, func(l struct{ id, has string }) bool { return strings.Contains(string(data), l.has) })
	if i < 0 {
		return "", nil
	}
	return licences[i].id, nil
}

// component is a part of the bill (CycloneDX 1.6, "components").
type component struct {
	Type     string    `json:"type"`
	Ref      string    `json:"bom-ref,omitempty"`
	Name     string    `json:"name"`
	Version  string    `json:"version,omitempty"`
	PURL     string    `json:"purl,omitempty"`
	Hashes   []hash    `json:"hashes,omitempty"`
	Licences []licence `json:"licenses,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type licence struct {
	Licence struct {
		ID string `json:"id"`
	} `json:"license"`
}

func writeBOM(version string, modules []module, name string) error {
	bom := map[string]any{"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
	bom["metadata"] = map[string]any{"component": component{Type: "application", Ref: "sconce", Name: "sconce", Version: version}}
	var parts []component
	for _, m := range modules {
		c := component{Type: "library", Name: m.path, Version: m.version, PURL: "pkg:golang/" + m.path + "@" + m.version}
		c.Ref = c.PURL
		id, err := m.licence()
		if err != nil {
			return err
		}
		if id == "" {
			return fmt.Errorf("%s is under a licence that this program does not know: %s", m.path, m.texts[0])
		}
		c.Licences = make([]licence, 1)
		c.Licences[0].Licence.ID = id
		if sum, ok := strings.CutPrefix(m.sum, "h1:"); ok {
			raw, err := base64.StdEncoding.DecodeString(sum)
			if err != nil {
				return err
			}
			c.Hashes = []hash{{"SHA-256", hex.EncodeToString(raw)}} // of the module's file list (golang.org/ref/mod, "go.sum")
		}
		parts = append(parts, c)
	}
	bom["components"] = parts
	data, err := json.MarshalIndent(bom, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(data, '\n'), 0o644)
}
