package condalock

import (
	"archive/zip"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
)

// What conda brings of Python's packages, the resolver of the pip part must take as given. So it gets, for each of them, a wheel
// with the package's metadata and no code, in a directory for --find-links, under a version of its own: 2.7.1+conda, to which a
// constraint binds it. With the index's version of the same number the resolver would believe the index, and draw in what the
// index's builds depend on. What it then says of such versions is dropped from its answer.

// Distribution is a Python package that a conda package has in its site-packages.
type Distribution struct {
	Name     string // as its metadata has it
	Version  string
	Metadata []byte // METADATA or PKG-INFO; may be empty
	Package  string // the conda package that it comes from, for messages
}

// stubLocal marks the versions of stubs in their local part (PEP 440).
const stubLocal = "conda"

// WriteStubs writes a wheel for each distribution that conda packages bring into dir, and returns the constraints that bind the
// resolver to them, one for each name: "torch==2.7.1+conda". Give uv both: --find-links DIR and --constraints. Where several are of
// one name, as when a package carries an old .egg-info beside, the newest counts.
func WriteStubs(dir string, distributions []Distribution) (constraints []string, err error) {
	from := map[string]Distribution{}
	for _, d := range distributions {
		name := python.NormalizeName(d.Name)
		if !stubName.MatchString(name) {
			return nil, fmt.Errorf("conda package %s: %q is not the name of a Python package", d.Package, d.Name)
		}
		if there, twice := from[name]; twice && !newer(d.Version, there.Version) {
			continue
		}
		from[name] = d
	}
	for name, d := range from {
		version := stubVersion(d.Version)
		if err := writeStub(dir, name, version, stubMetadata(name, version, d.Metadata, from)); err != nil {
			return nil, fmt.Errorf("write a stub of %s: %w", name, err)
		}
		constraints = append(constraints, name+"=="+version)
	}
	slices.Sort(constraints)
	return constraints, nil
}

// newer reports whether a version goes before another; one that is none by PEP 440 does not.
func newer(a, b string) bool {
	v, err := python.ParseVersion(a)
	if err != nil {
		return false
	}
	w, err := python.ParseVersion(b)
	return err != nil || v.Compare(w) > 0
}

var (
	stubName      = lazyregexp.New(`^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?$`)
	implicitPost  = lazyregexp.New(`([0-9])-([0-9]+)`)
	versionPrefix = lazyregexp.New(`^v?[0-9]+(?:\.[0-9]+)*`)
)

// stubVersion marks a version. It has no dash, which would end it in a wheel's name. A local part stays, 2.7.1+cu128 is
// 2.7.1+cu128.conda. A version that is none by PEP 440, as conda allows them, is cut to the numbers that it begins with: that the
// package is there matters more than which it is.
func stubVersion(version string) string {
	version = strings.ToLower(strings.TrimSpace(version))
	if _, err := python.ParseVersion(version); err != nil {
		if version = versionPrefix.FindString(version); version == "" {
			version = "0"
		}
	}
	public, local, _ := strings.Cut(strings.TrimPrefix(version, "v"), "+")
	public = strings.ReplaceAll(implicitPost.ReplaceAllString(public, "$1.post$2"), "-", "_")
	if local != "" {
		return public + "+" + strings.NewReplacer("-", ".", "_", ".").Replace(local) + "." + stubLocal
	}
	return public + "+" + stubLocal
}

// IsStub reports whether a version is that of a stub: conda brings the package.
func IsStub(version string) bool {
	_, local, _ := strings.Cut(version, "+")
	return local == stubLocal || strings.HasSuffix(local, "."+stubLocal)
}

// stubMetadata is the metadata of a distribution under the stub's version. Requirements on what conda brings are left out: conda's
// packagers have settled them, often other than the metadata says. Those of extras stay, since they count when someone asks for
// the extra, and those on what conda does not bring.
func stubMetadata(name, version string, metadata []byte, brought map[string]Distribution) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Metadata-Version: 2.1\nName: %s\nVersion: %s\n", name, version)
	for _, field := range headerFields(metadata) {
		key, value, ok := strings.Cut(field, ":")
		if !ok || strings.ContainsAny(field, "\x00") {
			continue
		}
		switch strings.ToLower(strings.TrimSpace(key)) {
		case "provides-extra", "requires-python":
			b.WriteString(field + "\n")
		case "requires-dist":
			r, err := python.ParseRequirement(value)
			if err != nil {
				continue
			}
			_, there := brought[python.NormalizeName(r.Name)]
			if !there || len(r.Extras) > 0 || strings.Contains(value, "extra") {
				b.WriteString(field + "\n")
			}
		}
	}
	return b.Bytes()
}

// headerFields returns the fields of a metadata file, each in one line.
func headerFields(metadata []byte) []string {
	var fields []string
	for line := range strings.SplitSeq(strings.ReplaceAll(string(metadata), "\r\n", "\n"), "\n") {
		if line == "" {
			break
		}
		if (line[0] == ' ' || line[0] == '\t') && len(fields) > 0 {
			fields[len(fields)-1] += " " + strings.TrimSpace(line)
			continue
		}
		fields = append(fields, line)
	}
	return fields
}

// writeStub writes a wheel that installs nothing (packaging.python.org, "Binary distribution format").
func writeStub(dir, name, version string, metadata []byte) error {
	base := strings.ReplaceAll(name, "-", "_") + "-" + version
	info := base + ".dist-info/"
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, file := range []struct {
		name string
		text []byte
	}{
		{"METADATA", metadata},
		{"WHEEL", []byte("Wheel-Version: 1.0\nGenerator: sconce\nRoot-Is-Purelib: true\nTag: py3-none-any\n")},
		{"RECORD", fmt.Appendf(nil, "%sMETADATA,,\n%sWHEEL,,\n%sRECORD,,\n", info, info, info)},
	} {
		f, err := w.Create(info + file.name)
		if err != nil {
			return err
		}
		if _, err := f.Write(file.text); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, base+"-py3-none-any.whl"), b.Bytes(), 0o644)
}

// lockPackageStart begins a package in a pylock.toml.
const lockPackageStart = "[[packages]]"

// DropStubs takes the packages that conda brings out of a pylock.toml as uv writes it, and returns their names.
func DropStubs(pylock []byte) (rest []byte, dropped []string, err error) {
	parts := splitPackages(string(pylock))
	var b strings.Builder
	for _, part := range parts {
		if !strings.HasPrefix(part, lockPackageStart) {
			b.WriteString(part)
			continue
		}
		var one struct {
			Packages []struct {
				Name    string `toml:"name"`
				Version string `toml:"version"`
			} `toml:"packages"`
		}
		if err := toml.Unmarshal([]byte(part), &one); err != nil || len(one.Packages) != 1 {
			return nil, nil, fmt.Errorf("uv's pylock.toml: a package cannot be read: %w", err)
		}
		if IsStub(one.Packages[0].Version) {
			dropped = append(dropped, one.Packages[0].Name)
			continue
		}
		b.WriteString(part)
	}
	return []byte(b.String()), dropped, nil
}

// splitPackages splits a pylock.toml before each of its packages, and before the table that follows them.
func splitPackages(text string) []string {
	var parts []string
	var part strings.Builder
	for line := range strings.SplitAfterSeq(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if trimmed == lockPackageStart || strings.HasPrefix(trimmed, "[tool") {
			parts = append(parts, part.String())
			part.Reset()
		}
		part.WriteString(line)
	}
	return append(parts, part.String())
}
