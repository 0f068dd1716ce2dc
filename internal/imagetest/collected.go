package imagetest

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Collected is what came of tests. It is found again, and the tests do not run again, until Kept says that it is where it belongs.
type Collected struct {
	Results []Result // in the order of the plan's tests

	found map[string]Result // by the test's hash
	dirs  []string          // of jobs, where results are that nobody has kept
}

// Kept notes that the results are where they belong: the next call starts anew.
func (c *Collected) Kept() error {
	for _, dir := range c.dirs {
		err := os.Rename(filepath.Join(dir, unkeptFile), filepath.Join(dir, resultsFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // unless somebody else has kept them
			return err
		}
	}
	return nil
}

// unkept finds the results of tests of the plan that an earlier call has collected and has not kept: it was killed, or the registry that
// they were meant for was away. A job has often other tests than the plan, of which some are known by now.
func (p Plan) unkept(o Options, hashes []string) (*Collected, error) {
	c := &Collected{found: map[string]Result{}}
	if p.Place == Here {
		return c, nil
	}
	wanted := map[string]bool{}
	for _, h := range hashes {
		wanted[h] = true
	}
	jobs, err := os.ReadDir(o.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	for _, e := range jobs {
		if strings.HasPrefix(e.Name(), jobPrefix) {
			c.take(p, filepath.Join(o.Root, e.Name()), wanted)
		}
	}
	return c, err
}

// take takes what is wanted of the results in a directory. What cannot be read there is no result.
func (c *Collected) take(p Plan, dir string, wanted map[string]bool) {
	var results []Result
	data, err := os.ReadFile(filepath.Join(dir, unkeptFile))
	if err != nil || json.Unmarshal(data, &results) != nil {
		return
	}
	before := len(c.found)
	for _, r := range results {
		if wanted[r.Hash] && r.ImageDigest == p.ImageDigest && r.Cluster == p.Cluster.Name && r.Verdict != NotJudged {
			c.found[r.Hash] = r
		}
	}
	if len(c.found) > before {
		c.dirs = append(c.dirs, dir)
	}
}
