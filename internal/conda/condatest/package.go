// Package condatest makes conda packages and channels, small and without a network, and serves them on this machine.
//
// A [Package] is written as conda-build writes it (CEP 34, CEP 35): paths.json with the hash of every file, placeholders of the
// prefix where a file has them, link.json of noarch python. A [Channel] is a directory of packages with repodata.json,
// repodata.json.zst and shards (CEP 16, CEP 36); a [Server] gives it out, with logins and faults. [RealPython] is this machine's
// Python as a conda package.
package condatest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// Placeholder stands for the prefix in files of packages made here. It has 255 bytes, as that of conda-build.
var Placeholder = "/home/conda/work/" + strings.Repeat("_placehold", 23) + "_placeho"

// File is a file of a package.
type File struct {
	Data string
	Mode uint32 // permission bits; 0 is 0644
	Link string // target of a softlink
	Dir  bool   // an empty directory, which paths.json lists as such

	Placeholder string // "" is [Placeholder] if it occurs in Data
	FileMode    string // "text" or "binary"; "" is by whether Data has a NUL
	Unlisted    bool   // in the archive, and not in paths.json
	SHA256      string // what paths.json says, where that is not the truth
}

// Package describes a package. Files are by path in the archive, as "lib/libx.so", "bin/x", or "site-packages/x.py" of noarch python.
type Package struct {
	Name, Version string
	Build         string // "" is "0" and, of a noarch python, "py_0"
	BuildNumber   int
	Subdir        string // "" is "linux-64", or "noarch" where Noarch is set
	Noarch        string // "", "python" or "generic"
	Depends       []string
	Constrains    []string
	License       string
	SitePackages  string            // python_site_packages_path, of a python
	EntryPoints   []string          // "cmd = module:function", of a noarch python
	Files         map[string]File   //
	Info          map[string]string // more files of info/, in the place of those made here
	Timestamp     int64             // of the build, in milliseconds; 0 is 2024-01-01
	Pad           int               // bytes of a file that does not compress, to make it large

	TarBz2 bool // the older archive; needs bzip2(1)
	Old    bool // without paths.json and link.json: files, has_prefix and no_link
}

func (p Package) build() string {
	switch {
	case p.Build != "":
		return p.Build
	case p.Noarch == "python":
		return fmt.Sprintf("py_%d", p.BuildNumber)
	}
	return fmt.Sprint(p.BuildNumber)
}

func (p Package) subdir() string {
	switch {
	case p.Subdir != "":
		return p.Subdir
	case p.Noarch != "":
		return "noarch"
	}
	return "linux-64"
}

// File returns the name of the archive.
func (p Package) File() string {
	ext := ".conda"
	if p.TarBz2 {
		ext = ".tar.bz2"
	}
	return p.Name + "-" + p.Version + "-" + p.build() + ext
}

// Record returns what repodata says about the package, given its archive. Where the channel is, is left out.
func (p Package) Record(archive []byte) conda.Package {
	sum := md5.Sum(archive)
	return conda.Package{
		Name: p.Name, Version: p.Version, Build: p.build(), BuildNumber: p.BuildNumber, Subdir: p.subdir(), File: p.File(),
		SHA256: store.DigestOf(archive), MD5: hex.EncodeToString(sum[:]), Size: int64(len(archive)), Noarch: p.Noarch,
		Depends: p.Depends, Constrains: p.Constrains, License: p.License, SitePackages: p.SitePackages,
	}
}

// Bytes returns the archive, the same every time.
func (p Package) Bytes(t testing.TB) []byte {
	t.Helper()
	files := maps.Clone(p.Files)
	if files == nil {
		files = map[string]File{}
	}
	if p.Pad > 0 {
		files["share/"+p.Name+"/pad.bin"] = File{Data: padding(p.Name, p.Pad)}
	}
	info := p.info(t, files)
	if p.TarBz2 {
		maps.Copy(files, info)
		return run(t, tarOf(t, files), "bzip2", "-9")
	}
	stem := strings.TrimSuffix(p.File(), ".conda")
	return Zip(t,
		Member{"metadata.json", []byte(`{"conda_pkg_format_version": 2}`)},
		Member{"pkg-" + stem + ".tar.zst", Zstd(t, tarOf(t, files))},
		Member{"info-" + stem + ".tar.zst", Zstd(t, tarOf(t, info))},
	)
}

// info makes the files of info/.
func (p Package) info(t testing.TB, files map[string]File) map[string]File {
	t.Helper()
	index := map[string]any{
		"name": p.Name, "version": p.Version, "build": p.build(), "build_number": p.BuildNumber, "subdir": p.subdir(),
		"depends": list(p.Depends), "constrains": list(p.Constrains), "timestamp": p.timestamp(),
		"arch": nil, "platform": nil,
	}
	set(index, "license", p.License)
	set(index, "noarch", p.Noarch)
	set(index, "python_site_packages_path", p.SitePackages)
	texts := map[string]string{"info/index.json": jsonOf(t, index), "info/about.json": "{}"}
	if p.Old {
		p.oldInfo(texts, files)
	} else {
		texts["info/paths.json"] = jsonOf(t, p.paths(files))
	}
	if p.Noarch == "python" {
		texts["info/link.json"] = jsonOf(t, map[string]any{
			"package_metadata_version": 1, "noarch": map[string]any{"type": "python", "entry_points": list(p.EntryPoints)},
		})
	}
	maps.Copy(texts, p.Info)
	info := map[string]File{}
	for name, text := range texts {
		info[name] = File{Data: text}
	}
	return info
}

func set(m map[string]any, key, value string) {
	if value != "" {
		m[key] = value
	}
}

func list(s []string) []string { return append([]string{}, s...) }

func (p Package) paths(files map[string]File) map[string]any {
	paths := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		if f.Unlisted {
			continue
		}
		e := map[string]any{"_path": name, "path_type": "hardlink"}
		switch {
		case f.Link != "":
			e["path_type"] = "softlink"
			e["sha256"], e["size_in_bytes"] = hexSum(""), 0
		case f.Dir:
			e["path_type"] = "directory"
		default:
			e["sha256"], e["size_in_bytes"] = cmp.Or(f.SHA256, hexSum(f.Data)), len(f.Data)
			if placeholder, mode := f.prefix(); placeholder != "" {
				e["prefix_placeholder"], e["file_mode"] = placeholder, mode
			}
		}
		paths = append(paths, e)
	}
	return map[string]any{"paths_version": 1, "paths": paths}
}

// prefix returns the placeholder in a file, "" if it has none, and the mode of its replacement.
func (f File) prefix() (placeholder, mode string) {
	placeholder = cmp.Or(f.Placeholder, Placeholder)
	if f.Placeholder == "" && !strings.Contains(f.Data, Placeholder) {
		return "", ""
	}
	mode = "text"
	if strings.Contains(f.Data, "\x00") {
		mode = "binary"
	}
	return placeholder, cmp.Or(f.FileMode, mode)
}

func (p Package) oldInfo(texts map[string]string, files map[string]File) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		if f.Unlisted {
			continue
		}
		texts["info/files"] += name + "\n"
		if placeholder, mode := f.prefix(); placeholder != "" && f.Link == "" {
			texts["info/has_prefix"] += fmt.Sprintf("%s %s %s\n", placeholder, mode, name)
		}
	}
}

// Member is a file of a zip archive.
type Member struct {
	Name string
	Data []byte
}

// Zip returns a zip archive that stores its members.
func Zip(t testing.TB, members ...Member) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, m := range members {
		w, err := z.CreateHeader(&zip.FileHeader{Name: m.Name, Method: zip.Store})
		if err == nil {
			_, err = w.Write(m.Data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Zstd compresses data. What is large is compressed once: a Python, which many tests have in a channel of their own, takes a second with the
// race detector.
func Zstd(t testing.TB, data []byte) []byte {
	t.Helper()
	if len(data) < 1<<20 {
		return compress(t, data)
	}
	sum := sha256.Sum256(data)
	if known, ok := compressed.Load(sum); ok {
		return known.([]byte)
	}
	made := compress(t, data)
	compressed.Store(sum, made)
	return made
}

var compressed sync.Map // by the SHA-256 of what was compressed

func compress(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

// tarBlock is the size in bytes of a header in a tar, of which a multiple is all else.
const tarBlock = 512

func tarOf(t testing.TB, files map[string]File) []byte {
	t.Helper()
	size := 2 * tarBlock
	for _, f := range files {
		size += 2*tarBlock + len(f.Data)
	}
	var b bytes.Buffer
	b.Grow(size) // what it would copy whenever it grows takes most of the time with the race detector
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		h := &tar.Header{Name: name, Mode: int64(cmp.Or(f.Mode, 0o644)), Size: int64(len(f.Data)), Typeflag: tar.TypeReg, ModTime: buildTime}
		switch {
		case f.Link != "":
			h.Typeflag, h.Size, h.Linkname, h.Mode = tar.TypeSymlink, 0, f.Link, 0o777
		case f.Dir:
			h.Typeflag, h.Size, h.Name, h.Mode = tar.TypeDir, 0, name+"/", 0o755
		}
		err := w.WriteHeader(h)
		if err == nil && h.Size > 0 {
			_, err = w.Write([]byte(f.Data))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func run(t testing.TB, input []byte, name string, args ...string) []byte {
	t.Helper()
	var out, stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &stderr
	if err := cmd.Run(); err != nil {
		tooltest.Missing(t, "%s: %v %s", name, err, stderr.String())
	}
	return out.Bytes()
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func hexSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func padding(seed string, n int) string {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(seed))).Read(data)
	return string(data)
}

func (p Package) timestamp() int64 { return cmp.Or(p.Timestamp, buildTime.UnixMilli()) }

// WithTar returns a .conda archive whose files are those of a tar, whatever p says in info/.
func (p Package) WithTar(t testing.TB, files []byte) []byte {
	t.Helper()
	return Zip(t,
		Member{"metadata.json", []byte(`{"conda_pkg_format_version": 2}`)},
		Member{"info-x.tar.zst", Zstd(t, tarOf(t, p.info(t, p.Files)))},
		Member{"pkg-x.tar.zst", Zstd(t, files)},
	)
}
