package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/rpm/rpmtest"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/tooltest"
)

var update = flag.Bool("update", false, "rewrite the golden parts of the scripts")

func TestMain(m *testing.M) {
	if _, said := os.LookupEnv("SCONCE_ALLOW_PATHS"); !said { // recipes of tests stand beside their bases; outside.txtar is about those of others
		if err := os.Setenv("SCONCE_ALLOW_PATHS", os.TempDir()); err != nil {
			panic(err)
		}
	}
	sandbox.Init() // the sandbox starts this very binary again
	testscript.Main(m, map[string]func(){"sconce": main, "cotainr": main, "killing-proxy": killingProxy, "token-registry": tokenRegistry})
}

// TestScripts runs the scripts in testdata/script through the real command. Each has a store of its own.
func TestScripts(t *testing.T) {
	channel := condatest.NewChannel(t,
		condatest.Package{Name: "tool", Version: "2.0", Subdir: "linux-64", Files: map[string]condatest.File{"etc/tool.conf": {Data: "in " + condatest.Placeholder + "\n"}}},
		condatest.Package{Name: "other", Version: "1.0", Subdir: "linux-64", Files: map[string]condatest.File{"share/other": {Data: "other\n"}}})
	testscript.Run(t, testscript.Params{
		Dir:           filepath.Join("testdata", "script"),
		UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			env.Setenv("SCONCE_STORE", filepath.Join(env.WorkDir, "store"))
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			self, err := exec.LookPath("sconce") // the test binary under this name, see TestMain
			if err != nil {
				return err
			}
			env.Setenv("SCONCE", self)
			env.Setenv("SCONCE_ALLOW_PATHS", env.WorkDir+":"+channel.Dir) // what a script may reach is what outside.txtar is about
			env.Setenv("LC_ALL", "C.UTF-8")
			env.Setenv("TZ", "UTC")
			env.Setenv("GORACE", os.Getenv("GORACE"))
			schema, err := filepath.Abs(filepath.Join("..", "..", "schema", "sconce.schema.json"))
			if err != nil {
				return err
			}
			env.Setenv("SCHEMA", schema)
			return os.MkdirAll(filepath.Join(env.WorkDir, "home"), 0o755)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code":     exitCode,
			"json":     checkJSON,
			"spoil":    spoil,
			"setenv":   setFromStdout,
			"testland": func(ts *testscript.TestScript, _ bool, args []string) { testland(t, ts, args) },
			"registry": func(ts *testscript.TestScript, _ bool, args []string) { startRegistry(t, ts, args) },
			"explicit": func(ts *testscript.TestScript, _ bool, args []string) { explicitList(ts, channel, args) },
		},
		Condition: condition,
	})
}

// startRegistry starts a registry that deletes tags and lists what is about an image, and keeps its HOST:PORT in a variable: registry NAME.
func startRegistry(t *testing.T, ts *testscript.TestScript, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: registry NAME")
	}
	ts.Setenv(args[0], registrytest.StartWithReferrers(t))
}

// condition understands [tool:NAME]: whether a program is there. Where everything must be, its absence is a failure.
func condition(cond string) (bool, error) {
	name, ok := strings.CutPrefix(cond, "tool:")
	if !ok {
		return false, fmt.Errorf("unknown condition %q", cond)
	}
	_, err := exec.LookPath(name)
	if err != nil && tooltest.Required() {
		return false, err
	}
	return err == nil, nil
}

// exitCode runs a command and wants a certain exit code: code N COMMAND ARGS...
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N COMMAND ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// checkJSON wants each line (or, with -whole, the whole) of a file to be JSON: json [-whole] FILE
func checkJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: json [-whole] FILE")
	}
	text := ts.ReadFile(args[len(args)-1])
	parts := strings.Split(strings.TrimSpace(text), "\n")
	if args[0] == "-whole" {
		parts = []string{text}
	}
	for _, p := range parts {
		if !json.Valid([]byte(p)) {
			ts.Fatalf("not JSON: %q", p)
		}
	}
}

// spoil changes one byte in the middle of the first blob whose path matches: spoil PATTERN
func spoil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: spoil PATTERN")
	}
	paths, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(paths) == 0 {
		ts.Fatalf("nothing matches %s", args[0])
	}
	data, err := os.ReadFile(paths[0])
	ts.Check(err)
	data[len(data)/2] ^= 1
	ts.Check(os.Chmod(paths[0], 0o644))
	ts.Check(os.WriteFile(paths[0], data, 0o644))
}

// setFromStdout keeps what a command printed: setenv NAME
func setFromStdout(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: setenv NAME")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// explicitList lists conda packages by address (CEP 23): explicit FILE NAME...
func explicitList(ts *testscript.TestScript, channel *condatest.Channel, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: explicit FILE NAME...")
	}
	text := "@EXPLICIT\n"
	for _, p := range channel.Packages("file://" + channel.Dir) {
		if slices.Contains(args[1:], p.Name) {
			text += p.URL + "#" + p.SHA256.Hex() + "\n"
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o644))
}

// testland makes a signed repository of a small distribution of RPM packages, and the file of its key: testland DIR KEY.
func testland(t *testing.T, ts *testscript.TestScript, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: testland DIR KEY")
	}
	dir, signer := ts.MkAbs(args[0]), rpmtest.NewSigner(t)
	rpmtest.Build(t, dir, rpmtest.Testland(t)...)
	rpmtest.Repository(t, dir)
	signer.SignIndex(t, dir)
	key, err := os.ReadFile(signer.File)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), key, 0o644))
}
