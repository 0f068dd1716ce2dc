package lock

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/quote"
)

// pythonStandIn is a program in the place of a Python that the machine does not have. uv asks its Python who it is, and resolves for the image's
// anyway (--python-version, --python-platform): so the program tells of the image's, in the form in which uv's own lines print it. Whatever else
// uv would have a Python do fails, and is noted.
type pythonStandIn struct{ program string }

// newPythonStandIn writes the program below dir.
func newPythonStandIn(dir string, p *Python) (*pythonStandIn, error) {
	s := &pythonStandIn{filepath.Join(dir, "stand-in", "python3")}
	says, err := json.Marshal(interpreterInfo(p, s.program))
	if err != nil {
		return nil, err
	}
	text := "#!/bin/sh\ncase \"$*\" in\n*get_interpreter_info*) printf '%s\\n' " + quote.Single(string(says)) + ";;\n" +
		"*) : > \"$0.failed\"; echo 'this machine has no Python' >&2; exit 1;;\nesac\n"
	err = errors.Join(os.MkdirAll(filepath.Dir(s.program), 0o700), os.WriteFile(s.program, []byte(text), 0o700))
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	return s, nil
}

// failed reports whether uv would have it do what it cannot.
func (s *pythonStandIn) failed() bool {
	_, err := os.Stat(s.program + ".failed")
	return err == nil
}

// interpreterInfo is what uv's get_interpreter_info.py prints, as of the release in package uv.
func interpreterInfo(p *Python, program string) map[string]any {
	version, minor := fullVersion(p.Version)
	lib := "lib/python" + minor + "/site-packages"
	scheme := func(prefix string) map[string]string {
		return map[string]string{
			"purelib": filepath.Join(prefix, lib), "platlib": filepath.Join(prefix, lib), "include": filepath.Join(prefix, "include"),
			"scripts": filepath.Join(prefix, "bin"), "data": prefix,
		}
	}
	info := map[string]any{
		"result": "success",
		"markers": map[string]string{
			"implementation_name": "cpython", "platform_python_implementation": "CPython", "implementation_version": version,
			"python_full_version": version, "python_version": minor, "os_name": "posix", "sys_platform": "linux",
			"platform_system": "Linux", "platform_machine": p.Platform, "platform_release": "", "platform_version": "",
		},
		"sys_executable": program, "sys_base_executable": program, "sys_path": []string{}, "site_packages": []string{},
		"stdlib": filepath.Join(nowhere, "lib"), "extension_suffixes": []string{".so"},
		"scheme": scheme(nowhere), "virtualenv": scheme(""), "arch": p.Platform, "pointer_size": "64",
		"cpu_info":             map[string]any{"detected": map[string]string{"kind": "flags", "flags": ""}},
		"os":                   libcInfo(p),
		"manylinux_compatible": p.Musl == "", "standalone": false, "gil_disabled": false, "debug_enabled": false,
	}
	for _, prefix := range []string{"sys_prefix", "sys_base_prefix", "sys_base_exec_prefix"} {
		info[prefix] = nowhere
	}
	return info
}

// fullVersion writes a version with three numbers, and with two.
func fullVersion(v string) (full, minor string) {
	words := strings.SplitN(v, ".", 3)
	for len(words) < 3 {
		words = append(words, "0")
	}
	return strings.Join(words, "."), words[0] + "." + words[1]
}

func libcInfo(p *Python) map[string]any {
	name, text := "manylinux", p.Glibc
	if p.Musl != "" {
		name, text = "musllinux", p.Musl
	}
	major, minor, _ := strings.Cut(text, ".")
	return map[string]any{"name": name, "major": number(major), "minor": number(minor)}
}

// number reads a part of a version, 0 when it is none.
func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}
