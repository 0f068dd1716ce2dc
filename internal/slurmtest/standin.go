package slurmtest

import (
	_ "embed"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/tooltest"
)

//go:embed plugin/standin.c
var standInC string

// The stand-in's file and its record, below the shared directory.
const (
	standInFile   = "stand-in.so"
	standInRecord = "stand-in.options"
)

// addStandIn compiles the stand-in for the plug-ins that start containers, and returns its line of plugstack.conf. Header files are those
// of the cluster's Slurm, the compiler is this machine's: the C library of its root file system is never older.
func (c *Cluster) addStandIn(root string) string {
	c.t.Helper()
	tooltest.Path(c.t, "gcc")
	file := filepath.Join(c.SharedDir, standInFile)
	cmd := exec.Command("gcc", "-std=c11", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-I", filepath.Join(root, "usr/include"), "-x", "c", "-", "-o", file)
	cmd.Stdin = strings.NewReader(standInC)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("compile the stand-in for container plug-ins: %v\n%s", err, out)
	}
	record := filepath.Join(c.SharedDir, standInRecord)
	if err := errors.Join(os.WriteFile(record, nil, 0o666), os.Chmod(record, 0o666)); err != nil {
		c.t.Fatal(err)
	}
	return "required /shared/" + standInFile + " record=/shared/" + standInRecord
}

// Recorded returns what the stand-in was given since the last time, a line each: "srun --environment=pytorch", or "sbatch" for what stood
// on the command line of sbatch or in a #SBATCH line.
func (c *Cluster) Recorded() []string {
	c.t.Helper()
	record := filepath.Join(c.SharedDir, standInRecord)
	text, err := os.ReadFile(record)
	if err == nil {
		err = os.Truncate(record, 0)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.t.Fatal(err)
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}
