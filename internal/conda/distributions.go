package conda

import (
	"archive/tar"
	"context"
	"io"
	"path"
	"slices"
	"strings"
)

// Distribution is a Python distribution that a package brings, as pip and uv see it.
type Distribution struct {
	Name     string `json:"name"` // as its metadata spells it
	Version  string `json:"version"`
	Path     string `json:"path"`               // of its metadata: below the prefix in a manifest, in the archive as [ReadDistributions] gives it
	Metadata []byte `json:"metadata,omitempty"` // METADATA or PKG-INFO; not in a manifest
}

// isMetadata reports whether a path is that of a distribution's metadata (packaging.python.org, "Recording installed projects", and
// setuptools' "The Internal Structure of Python Eggs").
func isMetadata(p string) bool {
	dir := path.Dir(p)
	inSite := func(d string) bool { return path.Base(d) == "site-packages" }
	switch path.Base(p) {
	case "METADATA":
		return strings.HasSuffix(dir, ".dist-info") && inSite(path.Dir(dir))
	case "PKG-INFO":
		return strings.HasSuffix(dir, ".egg-info") && inSite(path.Dir(dir))
	}
	return strings.HasSuffix(p, ".egg-info") && inSite(dir)
}

// parseDistribution reads name and version of metadata; ok is false where there are none.
func parseDistribution(at string, metadata []byte) (d Distribution, ok bool) {
	d = Distribution{Path: at, Metadata: metadata}
	for line := range strings.Lines(string(metadata)) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			break // the description follows
		}
		key, value, _ := strings.Cut(line, ":")
		switch strings.ToLower(key) {
		case "name":
			d.Name = strings.TrimSpace(value)
		case "version":
			d.Version = strings.TrimSpace(value)
		}
	}
	return d, d.Name != "" && d.Version != ""
}

// ReadDistributions returns the Python distributions in the package that r, which has size bytes, holds; file is the archive's name.
// They are sorted by path. Of a package whose list of files names none, no more than info/ is read.
func ReadDistributions(ctx context.Context, r io.ReaderAt, size int64, file string) ([]Distribution, error) {
	a, err := openArchive(r, size, file)
	if err != nil {
		return nil, err
	}
	c, err := a.readContents(ctx)
	if err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	for _, p := range c.paths {
		if isMetadata(p.Path) {
			wanted[p.Path] = true
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	var found []Distribution
	err = a.walk(ctx, "pkg", func(h *tar.Header, r io.Reader) error {
		if !wanted[h.Name] || h.Typeflag != tar.TypeReg || h.Size > maxDescription {
			return nil
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if d, ok := parseDistribution(h.Name, data); ok {
			found = append(found, d)
		}
		if delete(wanted, h.Name); len(wanted) == 0 {
			return errEnough
		}
		return nil
	})
	slices.SortFunc(found, func(a, b Distribution) int { return strings.Compare(a.Path, b.Path) })
	return found, err
}
