package slurmtest

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// enrootConf has each node keep containers to itself: a home is shared, and /run is root's. See enroot's doc/configuration.md.
const enrootConf = `ENROOT_RUNTIME_PATH /tmp/enroot/run
ENROOT_CACHE_PATH /tmp/enroot/cache
ENROOT_DATA_PATH /tmp/enroot/data
`

// pyxisFile is where pyxis's makefile puts the plug-in, below a prefix.
const pyxisFile = "lib/slurm/spank_pyxis.so"

// installed returns the directories that the programs of these options were installed in on this machine, and the lines of plugstack.conf for
// pyxis. The test is left out where one is missing: no package manager has them, so nobody can be asked to install them.
func (o Options) installed(t testing.TB) (prefixes, plugins []string) {
	t.Helper()
	for _, program := range o.Programs {
		prefixes = append(prefixes, prefixOf(t, program))
	}
	if o.Pyxis {
		prefix := prefixOf(t, "enroot")
		plugin := filepath.Join(prefix, pyxisFile)
		if _, err := os.Stat(plugin); err != nil {
			t.Skipf("no pyxis where enroot is: %v", err)
		}
		prefixes, plugins = append(prefixes, prefix), append(plugins, "required "+plugin)
	}
	slices.Sort(prefixes)
	return slices.Compact(prefixes), plugins
}

// prefixOf returns the directory whose bin has a program of PATH.
func prefixOf(t testing.TB, program string) string {
	t.Helper()
	file, err := exec.LookPath(program)
	if err == nil {
		file, err = filepath.EvalSymlinks(file)
	}
	if err != nil {
		t.Skipf("no distribution that the tests install from has what clusters run: %v", err)
	}
	prefix := filepath.Dir(filepath.Dir(file))
	if prefix == "/usr" || prefix == "/" {
		t.Skipf("%s is among the files of this machine's distribution, and the cluster has those of Debian: install it below /opt", file)
	}
	return prefix
}

// link puts the programs of prefixes on the PATH of commands and daemons.
func (c *Cluster) link(prefixes []string) error {
	bin := filepath.Join(c.SharedDir, "bin")
	if len(prefixes) == 0 {
		return nil
	}
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	for _, prefix := range prefixes {
		programs, err := os.ReadDir(filepath.Join(prefix, "bin"))
		if err != nil {
			return err
		}
		for _, p := range programs {
			err := os.Symlink(filepath.Join(prefix, "bin", p.Name()), filepath.Join(bin, p.Name()))
			if err != nil && !errors.Is(err, fs.ErrExist) { // the first prefix goes first, as on a PATH
				return err
			}
		}
	}
	return nil
}
