package imagetest

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/ctxio"
)

// Collected is what came of tests. It is found again, and the tests do not run again, until Kept says that it is where it belongs.
type Collected struct {
	Results []Result // in the order of the plan's tests

	found map[string]Result // by the test's hash
	files []string          // of results that nobody has kept
}

// Kept notes that the results are where they belong: the next call starts anew.
func (c *Collected) Kept() error {
	for _, file := range c.files {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) { // unless somebody else has kept them
			return err
		}
	}
	return nil
}

// hold writes down results, for the case that they get lost on the way to where they belong. They become evidence, and are signed: so they
// lie where this user alone writes, and not in the directory of the job.
func (c *Collected) hold(o Options, name string, results []Result) {
	file := filepath.Join(o.Unkept, name+unkeptExt)
	data, err := json.Marshal(results)
	if err == nil {
		err = os.MkdirAll(o.Unkept, 0o700)
	}
	if err == nil {
		err = atomicfile.Write(file, data, 0o600)
	}
	if err != nil {
		o.Say("the results are not noted, and the tests run again if this ends before they are kept: %v", err)
		return
	}
	c.files = append(c.files, file)
}

// unkeptExt ends the names of files of results that nobody has kept, and maxUnkept bounds one in bytes.
const (
	unkeptExt = ".json"
	maxUnkept = 16 << 20
)

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
	files, err := os.ReadDir(o.Unkept)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	for _, e := range files {
		if e.Type().IsRegular() && filepath.Ext(e.Name()) == unkeptExt {
			c.take(p, filepath.Join(o.Unkept, e.Name()), wanted)
		}
	}
	return c, err
}

// take takes what is wanted of the results in a file. What cannot be read there is no result, and neither is one of which the log is gone.
func (c *Collected) take(p Plan, file string, wanted map[string]bool) {
	var results []Result
	data, err := ctxio.ReadFile(file, maxUnkept)
	if err != nil || json.Unmarshal(data, &results) != nil {
		return
	}
	before := len(c.found)
	for _, r := range results {
		if wanted[r.Hash] && r.ImageDigest == p.ImageDigest && r.Cluster == p.Cluster.Name && r.Verdict != NotJudged && r.Log.there() {
			c.found[r.Hash] = r
		}
	}
	if len(c.found) > before {
		c.files = append(c.files, file)
	}
}
