package facts

import (
	"context"
	"debug/elf"
	"errors"
	"io"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/elfx"
)

// scanned is a file and what was found in it.
type scanned struct {
	path string
	size int64
	fileFacts
}

// fileFacts is what a look at a file's bytes tells, wherever it lies in whatever image. It is kept in the store as JSON.
type fileFacts struct {
	Object     *Object  `json:"object,omitempty"`  // without Path and Size
	Library    *Library `json:"library,omitempty"` // without Path and Group
	Damage     []string `json:"damage,omitempty"`  // of an ELF file
	CodeDamage []string `json:"codeDamage,omitempty"`

	unread bool // a part of the file could not be read: the next look may tell more
}

func (c *fileFacts) empty() bool {
	return c.Object == nil && c.Library == nil && len(c.Damage) == 0 && len(c.CodeDamage) == 0
}

// at puts the file at a path.
func (c fileFacts) at(name string, size int64) scanned {
	if c.Object != nil {
		o := *c.Object
		o.Path, o.Size = name, size
		c.Object = &o
	}
	if c.Library != nil {
		l := *c.Library
		l.Path, l.Group = name, GroupOf(name)
		c.Library = &l
	}
	return scanned{name, size, c}
}

func sortScanned(found []scanned) []scanned {
	slices.SortFunc(found, func(a, b scanned) int { return strings.Compare(a.path, b.path) })
	return found
}

// readerAt makes a long look end with its context.
type readerAt struct {
	ctx context.Context
	r   io.ReaderAt
}

func (r readerAt) ReadAt(p []byte, off int64) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.ReadAt(p, off)
}

// look reads a file's headers, for processors and for GPUs. The error is that of ctx: a file that cannot be read is damaged.
func look(ctx context.Context, f File) (fileFacts, error) { return lookThrough(ctx, f, f.Content) }

// lookThrough is look for a file of which headers, the same bytes, may remember what is read.
func lookThrough(ctx context.Context, f File, headers io.ReaderAt) (fileFacts, error) {
	var c fileFacts
	f.Content = readerAt{ctx, f.Content}
	object, err := elfx.Open(readerAt{ctx, headers}, f.Size)
	switch {
	case err == nil:
		c.Object = newObject(object)
	case !errors.Is(err, elfx.ErrNotELF):
		c.Damage = []string{err.Error()}
		c.unread = !errors.Is(err, elfx.ErrFormat)
	}
	c.Library, c.CodeDamage, err = deviceCode(f)
	if err != nil {
		c.CodeDamage, c.unread = []string{err.Error()}, true
	}
	return c, ctx.Err()
}

// newObject sums up an ELF file. It is nil for one that no processor runs.
func newObject(f *elfx.File) *Object {
	switch f.Machine {
	case elf.EM_CUDA, elf.EM_AMDGPU, elf.EM_BPF:
		return nil
	}
	kind := map[elfx.Kind]string{elfx.Executable: "executable", elfx.PIE: "pie", elfx.Shared: "shared"}[f.Kind]
	if kind == "" {
		kind = "other"
	}
	return &Object{
		Arch: f.Arch, Kind: kind, Dynamic: f.Dynamic, Interpreter: f.Interpreter, Soname: f.Soname, Needed: f.Needed,
		Rpath: f.Rpath, Runpath: f.Runpath, ISALevel: f.ISALevel, Requires: f.Requires, Provides: f.Provides,
	}
}

// textual are extensions of files that hold no machine code. Most files of an image have one of these, and are not read.
var textual = map[string]bool{
	".py": true, ".pyc": true, ".pyi": true, ".pyx": true, ".pxd": true, ".h": true, ".hh": true, ".hpp": true, ".hxx": true,
	".cuh": true, ".c": true, ".cc": true, ".cpp": true, ".cu": true, ".inl": true, ".cmake": true, ".txt": true, ".md": true,
	".rst": true, ".json": true, ".yaml": true, ".yml": true, ".toml": true, ".xml": true, ".html": true, ".css": true, ".js": true,
	".map": true, ".ts": true, ".csv": true, ".svg": true, ".png": true, ".jpg": true, ".gif": true, ".ttf": true, ".pem": true,
	".crt": true, ".gz": true, ".xz": true, ".bz2": true, ".zst": true, ".zip": true, ".whl": true, ".npy": true, ".npz": true,
	".mo": true, ".po": true, ".pm": true, ".pl": true, ".sh": true, ".conf": true, ".list": true, ".md5sums": true, ".tcl": true,
	".pc": true, ".la": true,
}

// mayHoldCode is whether a file is worth reading its first bytes.
func mayHoldCode(name string) bool { return !textual[path.Ext(name)] && !isMetadataText(name) }

// isReadLater is whether a file may be wanted when all are looked at together.
func isReadLater(name string, size int64) bool {
	return isMetadataText(name) || isSmallScript(name, size) || isSmallLibrary(name, size) ||
		namesPrefix(name) && size <= maxHeldText || isImportable(name) && size <= maxImportSize
}

// isSmallLibrary is whether a file is called a library and is too small for machine code that is worth a look: the linker asks what it is.
func isSmallLibrary(name string, size int64) bool {
	return size <= minSize && libraryName.MatchString(path.Base(name))
}

// isImportable is whether a file is source of an installed Python package, of which [linker.findImports] reads what others import.
func isImportable(name string) bool {
	return path.Ext(name) == ".py" && (strings.Contains(name, "/site-packages/") || strings.Contains(name, "/dist-packages/"))
}

// isSmallScript is whether a file is a program too small for machine code that is worth a look: one that findConda may want.
func isSmallScript(name string, size int64) bool {
	return size <= minSize && path.Base(path.Dir(name)) == "bin"
}

// isMetadataText is whether a file is text that findPythons or the loader may want: metadata of packages and configuration.
func isMetadataText(name string) bool {
	switch path.Base(name) {
	case "METADATA", "PKG-INFO", "WHEEL", "requires.txt", "pyvenv.cfg", "os-release":
		return true
	}
	return path.Ext(name) == ".conf" || path.Ext(name) == ".pth" || path.Base(path.Dir(name)) == "conda-meta"
}
