package condatest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/conda"
)

var buildTime = time.Unix(1704067200, 0)

// Channel is a channel in a directory.
type Channel struct {
	Dir string

	records map[string]map[string]entry // by subdir and file name
}

// entry is a package of a channel: its record, and what repodata says besides.
type entry struct {
	conda.Package
	extra map[string]any
}

// NewChannel makes a channel of packages. It always has the subdirs "noarch", "linux-64" and "linux-aarch64".
func NewChannel(t testing.TB, packages ...Package) *Channel {
	t.Helper()
	c := &Channel{Dir: t.TempDir(), records: map[string]map[string]entry{"noarch": {}, "linux-64": {}, "linux-aarch64": {}}}
	c.Add(t, packages...)
	return c
}

// Add adds packages and writes repodata anew.
func (c *Channel) Add(t testing.TB, packages ...Package) {
	t.Helper()
	for _, p := range packages {
		c.add(t, p, p.Bytes(t))
	}
	c.index(t)
}

// AddArchive adds a package that is made already, of which p says what goes into repodata.
func (c *Channel) AddArchive(t testing.TB, p Package, archive []byte) {
	t.Helper()
	c.add(t, p, archive)
	c.index(t)
}

func (c *Channel) add(t testing.TB, p Package, archive []byte) {
	t.Helper()
	c.write(t, p.subdir()+"/"+p.File(), archive)
	c.records[p.subdir()][p.File()] = entry{p.Record(archive), map[string]any{"timestamp": p.timestamp()}}
}

// Lie changes what repodata says about a package.
func (c *Channel) Lie(t testing.TB, file, key string, value any) {
	t.Helper()
	for _, records := range c.records {
		if e, ok := records[file]; ok {
			e.extra[key] = value
		}
	}
	c.index(t)
}

// Packages returns the packages of a channel that is at the address url, by subdir and file name.
func (c *Channel) Packages(url string) []conda.Package {
	var all []conda.Package
	for _, subdir := range slices.Sorted(maps.Keys(c.records)) {
		for _, file := range slices.Sorted(maps.Keys(c.records[subdir])) {
			p := c.records[subdir][file].Package
			p.Channel, p.URL = url, url+"/"+subdir+"/"+file
			all = append(all, p)
		}
	}
	return all
}

// Read returns the archive of a package.
func (c *Channel) Read(t testing.TB, p conda.Package) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(c.Dir, p.Subdir, p.File))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (c *Channel) write(t testing.TB, name string, data []byte) {
	t.Helper()
	file := filepath.Join(c.Dir, name)
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// index writes repodata.json, repodata.json.zst and the shards of each subdir.
func (c *Channel) index(t testing.TB) {
	t.Helper()
	for subdir, records := range c.records {
		plain, packed := map[string]any{}, map[string]any{}
		shards := map[string]*shard{}
		for file, e := range records {
			r := e.repodata(t)
			s := shards[e.Name]
			if s == nil {
				s = &shard{map[string]any{}, map[string]any{}}
				shards[e.Name] = s
			}
			if strings.HasSuffix(file, ".conda") {
				packed[file], s.packed[file] = r, binaryHashes(r)
			} else {
				plain[file], s.plain[file] = r, binaryHashes(r)
			}
		}
		data := []byte(jsonOf(t, map[string]any{
			"info": map[string]any{"subdir": subdir}, "packages": plain, "packages.conda": packed, "removed": []string{}, "repodata_version": 1,
		}))
		c.write(t, subdir+"/repodata.json", data)
		c.write(t, subdir+"/repodata.json.zst", Zstd(t, data))
		c.writeShards(t, subdir, shards)
	}
}

// shard is the records of one name (CEP 16).
type shard struct{ plain, packed map[string]any }

func (c *Channel) writeShards(t testing.TB, subdir string, shards map[string]*shard) {
	t.Helper()
	sums := map[string]any{}
	for name, s := range shards {
		data := Zstd(t, msgpack(map[string]any{"packages": s.plain, "packages.conda": s.packed, "removed": []any{}}))
		sum := sha256.Sum256(data)
		c.write(t, subdir+"/shards/"+hex.EncodeToString(sum[:])+".msgpack.zst", data)
		sums[name] = sum[:]
	}
	c.write(t, subdir+"/repodata_shards.msgpack.zst", Zstd(t, msgpack(map[string]any{
		"version": 1, "shards": sums,
		"info": map[string]any{"subdir": subdir, "base_url": "./", "shards_base_url": "./shards/", "created_at": "2024-01-01T00:00:00Z"},
	})))
}

// repodata is the record of a package in repodata.json.
func (e entry) repodata(t testing.TB) map[string]any {
	t.Helper()
	data, err := json.Marshal(e.Package)
	m := map[string]any{}
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"fn", "url", "channel"} {
		delete(m, key)
	}
	m["sha256"] = e.SHA256.Hex()
	m["build_number"], m["size"] = e.BuildNumber, int(e.Size)
	m["depends"], m["constrains"] = anys(e.Depends), anys(e.Constrains)
	maps.Copy(m, e.extra)
	return m
}

func anys(s []string) []any {
	out := make([]any, len(s))
	for i, v := range s {
		out[i] = v
	}
	return out
}

// binaryHashes returns a record as shards have it, where hashes are bytes.
func binaryHashes(r map[string]any) map[string]any {
	r = maps.Clone(r)
	for _, key := range []string{"sha256", "md5"} {
		if s, ok := r[key].(string); ok {
			if b, err := hex.DecodeString(s); err == nil {
				r[key] = b
			}
		}
	}
	return r
}
