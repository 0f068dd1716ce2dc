package condatest

import (
	"archive/zip"
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// Repack makes a conda package of a wheel for [RealPython], as conda-build would: a package for any Python of a wheel that is for
// any, with its commands as entry points; else one for the machine that the wheel is for, with byte code that names the time of its
// source, and commands with a placeholder in the first line.
func Repack(t testing.TB, wheel string) Package {
	t.Helper()
	words := strings.Split(strings.TrimSuffix(filepath.Base(wheel), ".whl"), "-")
	p := Package{
		Name: strings.ReplaceAll(strings.ToLower(words[0]), "_", "-"), Version: words[1], Depends: []string{"python " + PythonMinor(t) + ".*"}, Files: map[string]File{},
	}
	site := "site-packages/"
	if tag := words[len(words)-1]; tag == "any" {
		p.Noarch = "python"
	} else {
		subdir := "linux-64"
		if strings.HasSuffix(tag, "aarch64") {
			subdir = "linux-aarch64"
		}
		p.Subdir, p.Build, site = subdir, "py"+strings.ReplaceAll(PythonMinor(t), ".", "")+"_0", "lib/python"+PythonMinor(t)+"/"+site
	}
	for name, f := range unzip(t, wheel) {
		if at, ok := placeOfWheel(name, words[0]+"-"+words[1]); ok {
			p.Files[site+at] = f
		}
	}
	commands := consoleScripts(p.Files)
	if p.Noarch != "" {
		p.EntryPoints = commands
		return p
	}
	for _, line := range commands {
		name, function, _ := strings.Cut(line, " = ")
		module, function, _ := strings.Cut(function, ":")
		p.Files["bin/"+name] = File{Mode: 0o755, Data: fmt.Sprintf("#!%s/bin/python\nimport sys\nfrom %s import %s\nsys.exit(%s())\n", Placeholder, module, function, function)}
	}
	maps.Copy(p.Files, compiled(t, p.Files))
	return p
}

func unzip(t testing.TB, file string) map[string]File {
	t.Helper()
	z, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	files := map[string]File{}
	for _, f := range z.File {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			t.Fatal(err)
		}
		mode := uint32(0o644)
		if f.Mode()&0o111 != 0 {
			mode = 0o755
		}
		files[f.Name] = File{Data: string(data), Mode: mode}
	}
	return files
}

// placeOfWheel says where below site-packages a file of a wheel goes; those for other places are left out.
func placeOfWheel(name, stem string) (at string, ok bool) {
	rest, data := strings.CutPrefix(name, stem+".data/")
	if !data {
		return name, true
	}
	kind, rest, _ := strings.Cut(rest, "/")
	return rest, kind == "purelib" || kind == "platlib"
}

// consoleScripts are the commands of a distribution: "cmd = module:function".
func consoleScripts(files map[string]File) (lines []string) {
	for name, f := range files {
		if path.Base(name) != "entry_points.txt" || !strings.HasSuffix(path.Dir(name), ".dist-info") {
			continue
		}
		inside := false
		for s := bufio.NewScanner(strings.NewReader(f.Data)); s.Scan(); {
			line := strings.TrimSpace(s.Text())
			if strings.HasPrefix(line, "[") {
				inside = line == "[console_scripts]"
			} else if command, function, ok := strings.Cut(line, "="); ok && inside {
				function, _, _ = strings.Cut(function, "[")
				lines = append(lines, strings.TrimSpace(command)+" = "+strings.TrimSpace(function))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

const compileScript = `
import os, pathlib, sys
import importlib.util, importlib._bootstrap_external as b
for source in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
    data = source.read_bytes()
    try:
        code = compile(data, str(source), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        continue  # a template
    at = pathlib.Path(importlib.util.cache_from_source(str(source)))
    at.parent.mkdir(exist_ok=True)
    at.write_bytes(b._code_to_timestamp_pyc(code, int(sys.argv[2]), len(data)))
`

// compiled is the byte code of all modules among files, made by [RealPython].
func compiled(t testing.TB, files map[string]File) map[string]File {
	t.Helper()
	py, err := findPython()
	if err != nil {
		tooltest.Missing(t, "no Python on this machine: %v", err)
	}
	dir := t.TempDir()
	for name, f := range files {
		if !strings.HasSuffix(name, ".py") {
			continue
		}
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(f.Data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	cmd := exec.Command(py.exe, "-I", "-W", "ignore", "-c", compileScript, dir, fmt.Sprint(buildTime.Unix()))
	cmd.Stderr = &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("compile: %v\n%s", err, log.String())
	}
	made := map[string]File{}
	err = filepath.Walk(dir, func(at string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() || !strings.HasSuffix(at, ".pyc") {
			return err
		}
		name, err := filepath.Rel(dir, at)
		made[name] = File{Data: read(t, at)}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return made
}
