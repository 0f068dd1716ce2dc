package audit

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/facts/factstest"
)

// condaPkg is a package in an environment of a test.
type condaPkg struct {
	name, version, build string
	channel, subdir      string // "" is conda-forge, linux-64
	depends, constrains  []string
	files                map[string]string // below the prefix
	placeholder          string            // of each of the files
}

const (
	condaPrefixDir = "opt/cotainr/conda/envs/x/"
	condaSite      = "lib/python3.12/site-packages/"
)

// install returns the files of an environment: as conda writes them, records and all.
func install(packages ...condaPkg) map[string]string {
	all := map[string]string{"lib64/ld-linux-x86-64.so.2": "", condaPrefixDir + "conda-meta/history": ""}
	for _, p := range packages {
		if p.build == "" {
			p.build = "0"
		}
		if p.channel == "" {
			p.channel = "https://conda.anaconda.org/conda-forge/linux-64"
		}
		if p.subdir == "" {
			p.subdir = "linux-64"
		}
		paths := []map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(p.files)) {
			data := p.files[name]
			entry := map[string]any{"_path": name, "path_type": "hardlink", "size_in_bytes": len(data), "sha256": fmt.Sprintf("%x", sha256.Sum256([]byte(data)))}
			if p.placeholder != "" {
				entry["prefix_placeholder"], entry["file_mode"] = p.placeholder, "text"
			}
			paths = append(paths, entry)
			all[condaPrefixDir+name] = data
		}
		record, err := json.Marshal(map[string]any{
			"name": p.name, "version": p.version, "build": p.build, "subdir": p.subdir, "channel": p.channel,
			"url": p.channel + "/" + p.name + ".conda", "depends": p.depends, "constrains": p.constrains,
			"paths_data": map[string]any{"paths_version": 1, "paths": paths},
		})
		if err != nil {
			panic(err)
		}
		all[condaPrefixDir+"conda-meta/"+p.name+"-"+p.version+"-"+p.build+".json"] = string(record)
	}
	return all
}

// with changes the files of an image: "" takes one out.
func with(files, changes map[string]string) map[string]string {
	files = maps.Clone(files)
	for name, data := range changes {
		if files[name] = data; data == "" {
			delete(files, name)
		}
	}
	return files
}

// inSite are the files of a Python package, below the prefix.
func inSite(name, version string, more ...string) map[string]string {
	files := distribution(condaSite, name, version)
	files[condaSite+name+"/__init__.py"] = "version = '" + version + "'\n"
	for _, m := range more {
		files[m] = m
	}
	return files
}

func TestCondaRules(t *testing.T) {
	const placeholder = "/home/conda/feedstock_root/build_artifacts/x_1/_h_env_placehold_placehold_placehold"
	python := condaPkg{name: "python", version: "3.12.4", depends: []string{"__glibc >=2.17,<3.0.a0"}, files: map[string]string{"bin/python3.12": "python"}}
	tool := condaPkg{name: "tool", version: "1", files: map[string]string{
		"bin/tool": "#!/" + condaPrefixDir + "bin/python3.12\n", "lib/libtool.so.1": "tool", "lib/libtool.a": "static", "share/doc/tool.py": "doc",
		condaSite + "tool/tests/test_a.py": "test",
	}}
	numpy := condaPkg{name: "numpy", version: "2.1.0", files: inSite("numpy", "2.1.0")}
	torch := condaPkg{name: "pytorch", version: "2.5.1", build: "cpu_mkl_py312", files: with(inSite("torch", "2.5.1"), map[string]string{condaSite + "torch/version.py": "cuda = None\nhip = None\n"})}
	torchCUDA := torch
	torchCUDA.build, torchCUDA.files = "cuda126_py312", with(torch.files, map[string]string{condaSite + "torch/version.py": "cuda = '12.6'\nhip = None\n"})
	good := install(python, tool, numpy)
	wants := func(name string, depends ...string) condaPkg {
		return condaPkg{name: name, version: "1", depends: depends}
	}
	driver550 := cluster.Profile{Driver: "550.54.15"}
	at := func(name string) string { return condaPrefixDir + name }
	env := "/" + strings.TrimSuffix(condaPrefixDir, "/")

	tests := []struct {
		name, rule string
		files      map[string]string
		target     cluster.Profile
		want       []found
	}{
		{
			name: "a package of another architecture", rule: "conda-architecture",
			files: install(condaPkg{name: "python", version: "3.12.4", subdir: "linux-aarch64"}, condaPkg{name: "data", version: "1", subdir: "noarch"}),
			want:  []found{{Error, "python 3.12.4 in " + env + " cannot run on linux-64"}},
		},
		{
			name: "of the image's", rule: "conda-architecture", target: cluster.Profile{Platform: "linux/arm64"},
			files: install(python, condaPkg{name: "data", version: "1", subdir: "noarch"}),
		},
		{
			name: "builds for newer processors", rule: "conda-cpu-level", target: cluster.Profile{CPULevel: 2},
			files: install(wants("a", "_x86_64-microarch-level >=3"), wants("b", "__archspec 1=x86_64_v4"), wants("c", "_x86_64-microarch-level >=1")),
			want:  []found{{Error, "2 packages in " + env + " (a 1 and others) cannot run on x86-64-v2, the level of the target's processors"}},
		},
		{
			name: "processors that are new enough", rule: "conda-cpu-level", target: cluster.Profile{CPULevel: 4},
			files: install(wants("a", "_x86_64-microarch-level >=3"), wants("b", "__archspec 1=x86_64_v4"), condaPkg{name: "_x86_64-microarch-level", version: "4"}),
		},
		{
			name: "CUDA newer than the driver's", rule: "conda-cuda", target: driver550,
			files: install(wants("a", "__cuda >=12.8"), wants("b", "__cuda"), condaPkg{name: "c", version: "1", constrains: []string{"__cuda >=12,<13"}}),
			want:  []found{{Warning, "the target's driver, 550.54.15, was made for CUDA 12.4 at most, and a newer one is wanted by a 1 in " + env}},
		},
		{name: "a driver that is new enough", rule: "conda-cuda", target: cluster.Profile{Driver: "570.86.15"}, files: install(wants("a", "__cuda >=12.8"))},
		{name: "a driver that is not known", rule: "conda-cuda", files: install(wants("a", "__cuda >=12.8"))},
		{name: "a driver newer than what is known of CUDA", rule: "conda-cuda", target: cluster.Profile{Driver: "900.1"}, files: install(wants("a", "__cuda >=19"))},
		{
			name: "a library that is gone", rule: "conda-files", files: with(good, map[string]string{at("lib/libtool.so.1"): ""}),
			want: []found{{Warning, "tool 1 in " + env + " lacks 1 file"}},
		},
		{
			name: "a module that was changed", rule: "conda-files", files: with(good, map[string]string{at(condaSite + "numpy/__init__.py"): "patched"}),
			want: []found{{Note, "1 file of numpy 2.1.0 in " + env + " changed since the installation"}},
		},
		{
			name: "made smaller on purpose", rule: "conda-files",
			files: with(good, map[string]string{at("lib/libtool.so.1"): "ool", at("lib/libtool.a"): "", at("share/doc/tool.py"): "", at(condaSite + "tool/tests/test_a.py"): ""}),
		},
		{
			name: "a library of two packages", rule: "conda-clobbered",
			files: install(tool, condaPkg{name: "other", version: "2", files: map[string]string{"lib/libtool.so.1": "other", "LICENSE": "x", "same": "same"}},
				condaPkg{name: "more", version: "3", files: map[string]string{"LICENSE": "y", "same": "same"}}),
			want: []found{
				{Note, "more 3 and other 2 both have " + env + "/LICENSE, and not the same"},
				{Warning, "other 2 and tool 1 both have " + env + "/lib/libtool.so.1, and not the same"},
			},
		},
		{
			name: "a placeholder in a script", rule: "conda-prefix",
			files: install(condaPkg{name: "tool", version: "1", placeholder: placeholder, files: map[string]string{"bin/tool": "#!" + placeholder + "/bin/python\n"}}),
			want:  []found{{Error, "a placeholder stands for the prefix in scripts of tool 1 in " + env}},
		},
		{
			name: "a placeholder in a library", rule: "conda-prefix",
			files: install(condaPkg{name: "libx", version: "1", placeholder: placeholder, files: map[string]string{
				"lib/libx.so": strings.Repeat("\x7fELF", 1<<18) + placeholder + "/share/x\x00", "share/x/x.dat": placeholder, "lib/liby.so": env + "/share/y",
			}}),
			want: []found{{Warning, "a placeholder stands for the prefix in files of libx 1 in " + env}},
		},
		{
			name: "a placeholder that the package does not tell of", rule: "conda-prefix",
			files: install(condaPkg{name: "old", version: "1", files: map[string]string{"lib/pkgconfig/old.pc": "prefix=/opt/anaconda1anaconda2anaconda3\n"}},
				condaPkg{name: "x", version: "1", files: map[string]string{"lib/cmake/x/xConfig.cmake": "set(X " + placeholder + ")\n", "lib/x.la": "libdir='" + env + "/lib'\n"}}),
			want: []found{{Warning, "a placeholder stands for the prefix in files of 2 packages in " + env + " (old 1 and others)"}},
		},
		{
			name: "a placeholder in what only tells of one", rule: "conda-prefix",
			files: install(condaPkg{name: "conda-build", version: "1", files: map[string]string{"lib/python3.12/build.py": "old = '/opt/anaconda1anaconda2anaconda3'\n"}},
				condaPkg{name: "x", version: "1", placeholder: placeholder, files: map[string]string{"lib/pkgconfig/x.pc": "prefix=" + env + "\n", "lib/x.so": "\x7fELF" + env}}),
		},
		{
			name: "the prefix in a script", rule: "conda-prefix",
			files: install(condaPkg{name: "tool", version: "1", placeholder: placeholder, files: map[string]string{"bin/tool": "#!" + env + "/bin/python\n"}}),
		},
		{
			name: "an environment that was moved", rule: "conda-prefix",
			files: install(condaPkg{name: "tool", version: "1", placeholder: placeholder, files: map[string]string{
				"bin/tool": "#!/home/me/envs/x/bin/python3.12 -E\n", "bin/other": "#!/home/me/envs/x/bin/perl\n",
			}}),
			want: []found{{Error, "the environment was somewhere else before, for scripts of tool 1 in " + env}},
		},
		{
			name: "scripts that name what there is", rule: "conda-prefix",
			files: with(install(condaPkg{name: "tool", version: "1", placeholder: placeholder, files: map[string]string{
				"bin/a": "#!/usr/bin/env python\n", "bin/b": "#!/bin/sh\n'''exec' \"" + env + "/bin/python\" \"$0\" \"$@\" #'''\n", "bin/c": "#!/opt/link/bin/perl\n", "bin/d": "x\n",
			}}), map[string]string{"opt/real/bin/perl": "perl", "opt/link": "-> real"}),
		},
		{
			name: "Anaconda's channels", rule: "conda-defaults",
			files: install(
				condaPkg{name: "a", version: "1", channel: "https://repo.anaconda.com/pkgs/main/linux-64"}, condaPkg{name: "b", version: "1", channel: "https://me:secret@mirror.example/t/secret/pkgs/r"},
				condaPkg{name: "c", version: "1", channel: "https://mirror.example/conda-forge"}),
			want: []found{{Note, "channels of Anaconda brought 2 packages in " + env + " (a 1 and others)"}},
		},
		{
			name: "torch by both", rule: "duplicate-conda-pip",
			files: with(install(python, torch), map[string]string{at(condaSite + "torch-2.6.0.dist-info/METADATA"): factstest.Metadata("torch", "2.6.0")}),
			want:  []found{{Warning, "conda installed pytorch 2.5.1, and pip torch 2.6.0"}},
		},
		{
			name: "a package that pip has replaced", rule: "duplicate-conda-pip",
			files: with(good, map[string]string{at(condaSite + "numpy-2.1.0.dist-info/METADATA"): "", at(condaSite + "numpy-2.2.0.dist-info/METADATA"): factstest.Metadata("numpy", "2.2.0")}),
			want:  []found{{Note, "conda installed numpy 2.1.0, and pip numpy 2.2.0"}},
		},
		{
			name: "what pip has replaced is not missing", rule: "conda-files",
			files: with(good, map[string]string{
				at(condaSite + "numpy-2.1.0.dist-info/METADATA"): "", at(condaSite + "numpy/__init__.py"): "",
				at(condaSite + "numpy-2.2.0.dist-info/METADATA"): factstest.Metadata("numpy", "2.2.0"),
			}),
		},
		{
			name: "NCCL by both", rule: "duplicate-conda-pip",
			files: with(install(python, condaPkg{name: "nccl", version: "2.23.4"}), distribution(at(condaSite), "nvidia_nccl_cu12", "2.26.2")),
			want:  []found{{Note, "conda installed nccl 2.23.4, and pip nvidia-nccl-cu12 2.26.2"}},
		},
		{
			name: "each from one", rule: "duplicate-conda-pip",
			files: with(install(python, numpy, condaPkg{name: "llvm-openmp", version: "19"}), distribution(at(condaSite), "torch", "2.6.0")),
		},
		{
			name: "conda's torch for the processor", rule: "python-torch-cpu", target: cluster.Profile{GPU: []string{"9.0"}}, files: install(python, torch),
			want: []found{{Error, "torch 2.5.1 is a build for the processor alone"}},
		},
		{name: "conda's torch with CUDA", rule: "python-torch-cpu", target: cluster.Profile{GPU: []string{"9.0"}}, files: install(python, torchCUDA)},
	}
	for _, tt := range tests {
		t.Run(tt.rule+"/"+tt.name, func(t *testing.T) {
			f := factstest.Of(t, factstest.Dir{Path: factstest.WriteFiles(t, tt.files)})
			got := pyFindings(t, f, tt.target, tt.rule)
			wantFindings(t, got, tt.want)
			for _, g := range got {
				wellSaid(t, g)
				if strings.Contains(fmt.Sprint(g), "secret") {
					t.Errorf("a login is shown: %+v", g)
				}
			}
		})
	}
	for _, r := range condaRules {
		f := factstest.Of(t, factstest.Dir{Path: factstest.WriteFiles(t, with(good, distribution(at(condaSite), "extra", "1")))})
		wantFindings(t, pyFindings(t, f, cluster.Profile{Platform: "linux/amd64", CPULevel: 2, GPU: []string{"9.0"}, Driver: "550.54.15"}, r.ID), nil)
	}
}

// The C library is the image's: a package is judged by its symbols.
func TestCondaGlibc(t *testing.T) {
	wants := func(version string) *sample {
		f := imageWith()
		f.Objects = []facts.Object{{Path: "usr/lib/x86_64-linux-gnu/libc.so.6", Soname: "libc.so.6", Arch: "amd64", Provides: []string{"GLIBC_2.17", "GLIBC_2.31", "GLIBC_PRIVATE"}}}
		f.Conda = []facts.CondaEnvironment{{Prefix: "opt/conda", Packages: []facts.CondaPackage{
			{Name: "a", Version: "1", Record: "opt/conda/conda-meta/a-1-0.json", Depends: []string{"python >=3.12", "__glibc >=" + version + ",<3.0.a0"}},
		}}}
		return f
	}
	checkRule(
		t, "conda-glibc",
		ruleCase{"older", wants("2.34"), cluster.Profile{}, []string{"warning: the image's glibc, 2.31, is older than what is wanted by a 1 in /opt/conda"}},
		ruleCase{"new enough", wants("2.31"), cluster.Profile{}, nil},
		ruleCase{"no glibc", func() *sample { f := wants("2.34"); f.Objects = nil; return f }(), cluster.Profile{}, nil},
	)
}
