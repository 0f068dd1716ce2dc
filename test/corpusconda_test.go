package test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// condaDir is where the environments of the corpus lie.
const condaDir = "opt/conda/"

// condaPackage is one of an environment as conda installs it.
type condaPackage struct {
	name, version string
	subdir        string            // "" is linux-64
	channel       string            // "" is conda-forge
	depends       []string          // as its record has them
	files         map[string]string // below the prefix, as the record knows them
	placeholder   string            // of its files
}

// installed returns the files of an environment, records and all.
func installed(packages ...condaPackage) files {
	all := files{condaDir + "conda-meta/history": text("")}
	for _, p := range packages {
		maps.Copy(all, p.install())
	}
	return all
}

// recordOf is the path of a package's record.
func recordOf(name, version string) string {
	return condaDir + "conda-meta/" + name + "-" + version + "-0.json"
}

func (p condaPackage) install() files {
	all := files{}
	paths := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(p.files)) {
		data := p.files[name]
		entry := map[string]any{"_path": name, "path_type": "hardlink", "size_in_bytes": len(data), "sha256": fmt.Sprintf("%x", sha256.Sum256([]byte(data)))}
		if p.placeholder != "" {
			entry["prefix_placeholder"], entry["file_mode"] = p.placeholder, "text"
		}
		paths = append(paths, entry)
		all[condaDir+name] = text(data)
	}
	subdir, channel := p.subdir, p.channel
	if subdir == "" {
		subdir = "linux-64"
	}
	if channel == "" {
		channel = "https://conda.anaconda.org/conda-forge"
	}
	record, err := json.Marshal(map[string]any{
		"name": p.name, "version": p.version, "build": "0", "subdir": subdir, "channel": channel + "/" + subdir,
		"url": channel + "/" + subdir + "/" + p.name + "-" + p.version + "-0.conda", "depends": p.depends,
		"paths_data": map[string]any{"paths_version": 1, "paths": paths},
	})
	if err != nil {
		panic(err) // these values can be written
	}
	all[recordOf(p.name, p.version)] = text(string(record))
	return all
}

// instead installs other packages in place of those of the same names.
func instead(packages ...condaPackage) func(*content) {
	return func(c *content) {
		for _, p := range packages {
			maps.Copy(c.files, p.install())
		}
	}
}

func condaImages(b binaries) []ailing {
	libc := files{multi + "libc.so.6": b.lib("libc-2.31")}
	const placeholder = "/home/conda/feedstock_root/build_artifacts/x_1/_h_env_placehold_placehold_placehold"
	one := func(p condaPackage) content { return content{files: installed(p)} }
	wants := func(depends ...string) condaPackage {
		return condaPackage{name: "solver", version: "1.2", depends: depends}
	}
	script := func(prefix string) condaPackage {
		return condaPackage{
			name: "tool", version: "2.0", placeholder: placeholder,
			files: map[string]string{"bin/tool": "#!" + prefix + "/bin/python\n"},
		}
	}
	library := func(prefix string) condaPackage { // what is read of it lies in the middle, beyond the first piece that is looked at
		return condaPackage{
			name: "libtool", version: "2.0", placeholder: placeholder,
			files: map[string]string{"share/tool/tool.db": strings.Repeat("data\x00", 1<<18) + prefix + "/share/tool\x00", "lib/pkgconfig/tool.pc": "prefix=" + prefix + "\n"},
		}
	}
	shared := func(data string) condaPackage {
		return condaPackage{name: "second", version: "3.1", files: map[string]string{"etc/solver.conf": data}}
	}
	first := condaPackage{name: "first", version: "1.0", files: map[string]string{"etc/solver.conf": "one"}}
	program := condaPackage{name: "tool", version: "2.0", files: map[string]string{"bin/tool": "tool"}}
	const dist = condaDir + "lib/python3.12/site-packages/"
	numpy := condaPackage{name: "numpy", version: "2.1.0", files: map[string]string{
		strings.TrimPrefix(dist, condaDir) + "numpy-2.1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: numpy\nVersion: 2.1.0\n",
	}}
	again := dist + "numpy-2.2.0.dist-info/METADATA"
	return []ailing{
		{
			rule: "conda-architecture", from: "oci", image: one(condaPackage{name: "solver", version: "1.2", subdir: "linux-aarch64"}),
			cure: instead(wants()), severity: "error", path: recordOf("solver", "1.2"), message: "solver 1.2 in /opt/conda cannot run on linux-64",
		},
		{
			rule: "conda-cpu-level", from: "dir", target: "--cpu-level 2", image: one(wants("_x86_64-microarch-level >=3")),
			cure: instead(wants("_x86_64-microarch-level >=2")), severity: "error", path: recordOf("solver", "1.2"), message: "solver 1.2 in /opt/conda cannot run on x86-64-v2, the level of the target's processors",
		},
		{
			rule: "conda-cuda", from: "tar", target: "--driver 550.54.15", image: one(wants("__cuda >=12.8")),
			cure: instead(wants("__cuda >=12.4")), severity: "warning", path: recordOf("solver", "1.2"), message: "the target's driver, 550.54.15, was made for CUDA 12.4 at most, and a newer one is wanted by solver 1.2 in /opt/conda",
		},
		{
			rule: "conda-glibc", from: "dir", image: content{files: join(installed(wants("__glibc >=2.34,<3.0.a0")), libc)},
			cure: instead(wants("__glibc >=2.17,<3.0.a0")), severity: "warning", path: recordOf("solver", "1.2"), message: "the image's glibc, 2.31, is older than what is wanted by solver 1.2 in /opt/conda",
		},
		{
			rule: "conda-prefix", from: "tar", image: one(script(placeholder)), cure: instead(script("/opt/conda")),
			severity: "error", path: recordOf("tool", "2.0"), message: "a placeholder stands for the prefix in scripts of tool 2.0 in /opt/conda",
		},
		{
			rule: "conda-prefix", from: "dir", image: one(script("/home/me/envs/x")), cure: instead(script("/opt/conda")),
			severity: "error", path: recordOf("tool", "2.0"), message: "the environment was somewhere else before, for scripts of tool 2.0 in /opt/conda",
		},
		{
			rule: "conda-prefix", from: "oci", image: one(library(placeholder)), cure: instead(library("/opt/conda")),
			severity: "warning", path: recordOf("libtool", "2.0"), message: "a placeholder stands for the prefix in files of libtool 2.0 in /opt/conda",
		},
		{
			rule: "conda-files", from: "sqsh", image: content{files: withoutFile(installed(program), condaDir+"bin/tool")},
			cure: instead(program), severity: "warning", path: recordOf("tool", "2.0"), message: "tool 2.0 in /opt/conda lacks 1 file",
		},
		{
			rule: "conda-clobbered", from: "oci", image: content{files: installed(first, shared("two"))}, cure: instead(shared("one")),
			severity: "note", path: condaDir + "etc/solver.conf", message: "first 1.0 and second 3.1 both have /opt/conda/etc/solver.conf, and not the same",
		},
		{
			rule: "conda-defaults", from: "tar", image: one(condaPackage{name: "solver", version: "1.2", channel: "https://repo.anaconda.com/pkgs/main"}),
			cure: instead(wants()), severity: "note", path: recordOf("solver", "1.2"), message: "channels of Anaconda brought solver 1.2 in /opt/conda",
		},
		{
			rule: "duplicate-conda-pip", from: "dir",
			image: content{files: join(installed(numpy), files{again: text("Metadata-Version: 2.1\nName: numpy\nVersion: 2.2.0\n")})},
			cure:  without(again), severity: "note", path: dist + "numpy-2.2.0.dist-info", message: "conda installed numpy 2.1.0, and pip numpy 2.2.0",
		},
	}
}

// withoutFile returns files with one missing.
func withoutFile(all files, name string) files {
	delete(all, name)
	return all
}
