// Package internal_test looks at how the packages of this directory hang together.
package internal_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// floors is the house from the ground up: a package imports packages of the floors below its own, and none of its own floor or
// above. A new package gets a place here, and a line in docs/architecture/00-map.md.
var floors = [][]string{
	{"lazyregexp", "racewatch"},
	{"quote"},
	{"atomicfile", "child", "cpython", "ctxio", "cuda", "debian", "edf", "elfx", "entrypoint", "progress", "recent", "fault", "filelock", "fuse", "inflate", "joblog", "wheelbuild/catalog", "pathwalk", "rootemu", "rpmdb", "sbatch", "searchpath", "sif", "spelling", "units", "usernet", "xz", "zipread", "zstdblock"},
	{"reach", "users"},
	{"device", "fatbin", "gitrun", "host", "hostconfig", "jobstep", "readorder", "squashfs", "store", "tomltext"},
	{"attest"},
	{"cluster", "config", "fetch", "layer", "tempdir", "ui", "venv"},
	{"job", "slurm"},
	{"imagetest", "nodejob"},
	{"conda", "image", "recipe", "registry", "rpm", "sandbox"},
	{"imagefs"},
	{"bootstrap", "evidence", "runtimefiles", "python", "execop", "fileop", "uv"},
	{"containerfile", "source", "ospackages", "promote", "wheelbuild"},
	{"base", "clusterfile", "deffile", "condalock", "remotecache", "upstream"},
	{"export", "facts", "lock"},
	{"audit", "sbom", "slim", "tocontainerfile", "torecipe"},
	{"lint", "plan", "report"},
	{"build"},
	{"engine"},
	{"cotainr", "pipeline"},
	{"cli"},
}

// knownTo says of some packages by whom alone they may be known, whatever the floors allow.
var knownTo = map[string][]string{
	"recipe":        {"base", "lock", "plan", "tocontainerfile", "engine", "cotainr", "pipeline", "cli"}, // what makes layers knows no recipe
	"lock":          {"plan", "build", "tocontainerfile", "engine"},
	"plan":          {"build", "engine", "pipeline", "cli"}, // which prints it
	"build":         {"engine", "cli"},                      // likewise
	"containerfile": {"deffile", "torecipe", "plan", "engine"},
	"base":          {"lock", "plan", "build", "tocontainerfile", "engine"},
	"bootstrap":     {"base"},
	"export":        {"engine"},
	"ui":            {"cli"}, // the core reports events, and knows nobody who shows them
	"engine":        {"cotainr", "pipeline", "cli"},
	"pipeline":      {"cli"},
	"cotainr":       {"cli"},
	"cli":           {},
}

// onlyFrom says of some packages what they may import of this house, and nothing else: cli takes flags apart, calls the engine once and
// prints, so that it knows the engine and those types that flags fill or that it prints. What decides something belongs into the engine.
var onlyFrom = map[string][]string{
	"cli": {
		"engine", "pipeline", "cotainr", // which it calls
		"ui", "units", "quote", "fault", "progress", "spelling", "lazyregexp", // how it talks
		"recipe", "config", "cluster", "edf", "fatbin", "job", "sbom", "squashfs", "tocontainerfile", "venv", // what flags and arguments are read into
		"audit", "build", "facts", "imagetest", "joblog", "lint", "plan", "promote", "report", "slim", "slurm", "store", "wheelbuild/catalog", // what it prints
		"nodejob", "atomicfile", // a command that runs on another machine, and files of what is printed
	},
}

// without lists what a package must not import although it is below.
var without = map[string][]string{
	"facts":       {"cluster"},                                         // facts are the same for every target
	"plan":        {"image", "fetch", "source", "registry", "sandbox"}, // it is made before anything is opened, and without network
	"remotecache": {"image"},
}

const module = "sconce.dev/sconce/internal/"

// importsOf reads what the packages import, without tests and helpers of tests, by the name below internal.
func importsOf(t *testing.T) map[string]map[string]bool {
	t.Helper()
	all := map[string]map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			if d != nil && d.IsDir() && d.Name() == "testdata" {
				return fs.SkipDir
			}
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(filepath.Dir(path))
		if all[name] == nil {
			all[name] = map[string]bool{}
		}
		for _, i := range f.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			if below, ok := strings.CutPrefix(imported, module); ok {
				all[name][below] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// helpers are the packages that only tests import. They have no floor.
var helpers = []string{
	"child/childtest", "conda/condatest", "evidence/evidencetest", "facts/factstest", "lock/locktest", "madetest", "mirrortest",
	"registry/registrytest", "rpm/rpmtest", "slurmtest", "squashfs/squashfstest", "store/storetest", "tooltest",
}

func isTestHelper(name string) bool { return slices.Contains(helpers, name) }

func TestFloors(t *testing.T) {
	imports := importsOf(t)
	floor := map[string]int{}
	for i, names := range floors {
		for _, name := range names {
			floor[name] = i
			if imports[name] == nil {
				t.Errorf("%s has a floor, and does not exist", name)
			}
		}
	}
	for _, name := range helpers {
		if imports[name] == nil {
			t.Errorf("%s is listed as a helper of tests, and does not exist", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(imports)) {
		if isTestHelper(name) {
			continue
		}
		for _, allowed := range onlyFrom[name] {
			if !imports[name][allowed] {
				t.Errorf("%s may import %s, and does not: take it out of onlyFrom", name, allowed)
			}
		}
		own, ok := floor[name]
		if !ok {
			t.Errorf("%s has no floor: give it one in this file, and a line in docs/architecture/00-map.md", name)
			continue
		}
		for _, imported := range slices.Sorted(maps.Keys(imports[name])) {
			if at, ok := floor[imported]; !ok || at >= own {
				t.Errorf("%s imports %s, which is not below it", name, imported)
			}
			if to, limited := knownTo[imported]; limited && !slices.Contains(to, name) {
				t.Errorf("%s imports %s, which is for %s alone", name, imported, strings.Join(to, ", "))
			}
			if some, limited := onlyFrom[name]; limited && !slices.Contains(some, imported) {
				t.Errorf("%s imports %s, which is not among what it may: see onlyFrom", name, imported)
			}
			if slices.Contains(without[name], imported) {
				t.Errorf("%s imports %s, and is to do without", name, imported)
			}
		}
	}
}

// Every room is on the map.
func TestMap(t *testing.T) {
	text, err := os.ReadFile("../docs/architecture/00-map.md")
	if err != nil {
		t.Fatal(err)
	}
	rooms := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 4 && strings.HasPrefix(line, "| `") {
			for name := range strings.SplitSeq(cells[1], ",") {
				rooms[strings.Trim(name, " `")] = true
			}
		}
	}
	for name := range importsOf(t) {
		if !isTestHelper(name) && !rooms[name] {
			t.Errorf("docs/architecture/00-map.md has no line for %s", name)
		}
		delete(rooms, name)
	}
	if len(rooms) > 0 {
		t.Errorf("docs/architecture/00-map.md has lines for what does not exist: %q", slices.Sorted(maps.Keys(rooms)))
	}
}
