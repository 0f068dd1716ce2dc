package engine

import (
	"reflect"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/base"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/ospackages"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/upstream"
	"sconce.dev/sconce/internal/wheelbuild"
)

// Whoever reads provenance finds by its hash all that went into an image, also what was there only while it was built.
func TestDependencies(t *testing.T) {
	hex := func(digit string) string { return strings.Repeat(digit, 64) }
	sum := func(digit string) store.Digest { return store.Digest("sha256:" + hex(digit)) }
	wheel := func(name, digit string) wheelbuild.Wheel {
		var w wheelbuild.Wheel
		w.Name, w.Version, w.Digest = name, "1", sum(digit)
		return w
	}
	compile := func(name string, src python.Source, requires ...wheelbuild.Wheel) lock.Compile {
		return lock.Compile{Package: wheelbuild.Package{Name: name, Version: "2", Source: src, Requires: requires}}
	}
	tools := &ospackages.Pinned{Packages: []ospackages.Package{{Name: "gcc", Version: "14", Architecture: "amd64", SHA256: sum("b")}}}
	l := &Locked{Locked: &lock.Locked{
		Lock: &lock.Lock{
			Base: base.Pinned{Recipe: "../base", ImageKey: "k"}, System: &ospackages.Pinned{Packages: []ospackages.Package{{Name: "git", Version: "2", Architecture: "amd64", SHA256: sum("a")}}},
			Component: map[string]*lock.Component{"ucx": {System: tools}, "ucc": {System: tools}},
			Source:    map[string]*upstream.Pinned{"ucx": {Files: []upstream.File{{Name: "ucx.tar.gz", SHA256: sum("c")}}}},
		},
		Compiles: []lock.Compile{
			compile("archived", python.Source{Kind: python.SourceArchive, Digest: sum("d")}, wheel("setuptools", "e")),
			compile("cloned", python.Source{Kind: python.SourceGit, Commit: "0123"}),
			compile("mine", python.Source{Kind: python.SourceDirectory, Path: "/home/ada/mine"}),
		},
	}}
	by := func(digit string) map[string]string { return map[string]string{"sha256": hex(digit)} }
	want := []dependency{
		{"registry.example.org/ci/base:1-k", by("f")},
		{"pkg:generic/git@2?arch=amd64", by("a")},
		{"pkg:generic/gcc@14?arch=amd64", by("b")},
		{"pkg:pypi/archived@2", by("d")},
		{"pkg:pypi/setuptools@1", by("e")},
		{"pkg:pypi/cloned@2", map[string]string{"gitCommit": "0123"}},
		{"pkg:pypi/mine@2", nil},
		{"pkg:generic/ucx?file=ucx.tar.gz", by("c")},
	}
	if got := l.dependencies(from("registry.example.org/ci/base:1-k", sum("f"))); !reflect.DeepEqual(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
}
