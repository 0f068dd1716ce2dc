package wheelbuild

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store"
)

// format changes whenever the same inputs would give another wheel.
const format = 2 // 2: nothing in it is from before 1980-01-02

// keyInput is everything that decides a wheel. What merely speeds the build up, its jobs for one, is not in it.
type keyInput struct {
	Format   int
	Name     string
	Version  string
	Source   string // the digest of an archive or directory, or the commit
	Within   string // the subdirectory
	Isolated bool
	Requires []keyFile
	Against  []keyFile // of the image
	Toolkit  string    // version of the CUDA toolkit, "" when there is none
	Python   string    // 3.11
	Machine  string
	Libc     string
	Libcxx   string // what was linked against must be in the image that takes the wheel from the cache
	Archs    []string
	Env      map[string]string
	Epoch    int64
	Conda    string `json:",omitempty"`

	Components []store.Digest `json:",omitempty"` // what of the ground counts by its bytes
}

type keyFile struct{ File, Digest string }

// key names the wheel that the site would build.
func (s *site) key() string {
	p, i := s.pkg, s.ground.Python
	in := keyInput{
		Format: format, Name: p.Name, Version: p.Version, Source: s.source.id, Within: p.Source.Subdirectory,
		Isolated: p.Isolated, Toolkit: s.toolkit.version, Python: i.Implementation + " " + i.Minor(), Machine: i.Platform,
		Libc: "glibc " + i.Glibc + " musl " + i.Musl, Libcxx: s.libstdcxx, Archs: p.Archs, Env: p.Env, Epoch: s.epoch(), Conda: p.Conda,
		Components: s.ground.Components,
	}
	for _, w := range p.Requires {
		in.Requires = append(in.Requires, keyFile{w.File, string(w.Digest)})
	}
	for _, name := range p.Against {
		in.Against = append(in.Against, s.against(name))
	}
	byFile := func(a, b keyFile) int { return strings.Compare(a.File, b.File) }
	slices.SortFunc(in.Requires, byFile)
	slices.SortFunc(in.Against, byFile)
	data, err := json.Marshal(in)
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// epoch is the time of everything in the wheel, in seconds since 1970, and what its build gets as SOURCE_DATE_EPOCH. A zip
// knows none before 1980, which some build programs mean in local time.
func (s *site) epoch() int64 {
	return max(s.builder.Runner.Layer.ModTime.Unix(), layer.DefaultModTime.Unix())
}

// against says which build of a package the image has. Of one that the base brings, only the version is known.
func (s *site) against(name string) keyFile {
	for _, it := range s.ground.Items {
		if python.NormalizeName(it.Name) == name {
			return keyFile{it.File, string(it.Digest)}
		}
	}
	return keyFile{File: name + " " + s.pkg.BaseVersions[name]}
}

// sitePackages is where an environment's packages lie, absolute.
func (g Ground) sitePackages(root string) string {
	return path.Join("/", root, "lib", "python"+g.Python.Minor(), "site-packages")
}
