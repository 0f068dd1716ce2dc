package conda

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"path"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
)

// Compiler makes byte code with the environment's Python, as [sconce.dev/sconce/internal/python.Compiler] does. Its method may be
// called from many goroutines. What it runs on needs the base and the layer of the group of python, which is made without it.
type Compiler interface {
	// Compile compiles the source of the module that will be at path, which is absolute. ok is false when the source does not
	// compile: templates, and files for another version of Python, have no byte code.
	Compile(ctx context.Context, path string, source []byte) (pyc []byte, ok bool, err error)
}

// maxSource bounds a Python source that is compiled or hashed, in bytes. The largest known are generated tables of a few MB.
const maxSource = 16 << 20

// pycName is the name of byte code in a directory __pycache__ (PEP 3147): module, minor version, level of optimisation.
var pycName = lazyregexp.New(`^(.+)\.cpython-3([0-9]+)(\.opt-[0-9a-z]+)?\.pyc$`)

// bytecode makes the byte code of a package one that is valid whatever the times of files are, as in a layer there is one time for
// all: what its source fits becomes that of an unchecked source by another header (PEP 552). What no longer fits, as the prefix
// changed the source, and what a package for any Python lacks, is compiled; without a compiler it is left out.
func (u *unpacked) bytecode(ctx context.Context, c Compiler) error {
	files := make(map[string]*file, len(u.files))
	for _, f := range u.files {
		files[f.path] = f
	}
	var wanted []*file // sources
	for _, f := range u.files {
		source, minor := pycSource(f.path)
		from := files[source]
		if source == "" || from == nil || from.kind != layer.Regular || f.kind != layer.Regular {
			continue
		}
		fits, err := u.settle(f, from, minor)
		if err != nil {
			return err
		}
		if fits {
			continue
		}
		delete(files, f.path)
		if f.path == u.target.pycPath(from.path) {
			wanted = append(wanted, from)
		}
	}
	for _, f := range u.files {
		if u.anyPython && files[u.target.pycPath(f.path)] == nil && isModule(f) && below(f.path, u.target.Python.SitePackages) {
			wanted = append(wanted, f)
		}
	}
	u.files = u.files[:0]
	for _, f := range files {
		u.files = append(u.files, f)
	}
	if u.pkg.Name == "python" {
		u.stale = wanted
	} else if c != nil {
		if err := u.compile(ctx, wanted, c); err != nil {
			return err
		}
	}
	sortFiles(u.files)
	return nil
}

// pycSource returns the source that a path is the byte code of, by their names, and the minor version of its Python.
func pycSource(p string) (source string, minor int) {
	dir, name := path.Split(p)
	m := pycName.FindStringSubmatch(name)
	if m == nil || path.Base(dir) != "__pycache__" {
		return "", 0
	}
	minor, err := strconv.Atoi(m[2])
	if err != nil || minor < 7 { // before, headers were shorter
		return "", 0
	}
	return path.Join(path.Dir(path.Clean(dir)), m[1]+".py"), minor
}

func isModule(f *file) bool {
	name := path.Base(f.path)
	return f.kind == layer.Regular && strings.HasSuffix(name, ".py") && name != ".py" && f.size <= maxSource
}

// The header of byte code (PEP 552): magic number, flags, and by these the time and size of the source or a hash of it.
const (
	pycHeader    = 16
	pycHashed    = 1 // a flag: the hash follows
	pycUnchecked = 1 // all flags of byte code that is taken as it is
)

// settle gives byte code that fits its source the header of an unchecked source. It reports whether it fits.
func (u *unpacked) settle(pyc, source *file, minor int) (bool, error) {
	if source.patched || pyc.patched || pyc.size < pycHeader || source.size > maxSource {
		return false, nil
	}
	head := make([]byte, pycHeader)
	if _, err := u.spool.file.ReadAt(head, pyc.offset); err != nil {
		return false, err
	}
	switch flags := binary.LittleEndian.Uint32(head[4:]); {
	case flags&pycHashed != 0:
		return true, nil // valid already
	case flags != 0,
		binary.LittleEndian.Uint32(head[8:]) != uint32(source.modTime),
		binary.LittleEndian.Uint32(head[12:]) != uint32(source.length):
		return false, nil
	}
	text, err := u.spool.read(source)
	if err != nil {
		return false, err
	}
	binary.LittleEndian.PutUint32(head[4:], pycUnchecked)
	binary.LittleEndian.PutUint64(head[8:], sourceHash(head, minor, text))
	return true, u.rehead(pyc, head)
}

// sourceHash is importlib.util.source_hash of the Python that made byte code with this header.
func sourceHash(head []byte, minor int, source []byte) uint64 {
	key := uint64(binary.LittleEndian.Uint32(head))
	if minor < 11 {
		return sipHash(2, 4, key, source)
	}
	return sipHash(1, 3, key, source)
}

// rehead writes another header, in a copy where the content is that of two names.
func (u *unpacked) rehead(f *file, head []byte) error {
	data, err := u.spool.read(f)
	if err != nil {
		return err
	}
	copy(data, head)
	return u.replace(f, data)
}

func (u *unpacked) replace(f *file, data []byte) (err error) {
	sum := sha256.Sum256(data)
	f.offset, err = u.spool.keep(data)
	f.size, f.sha256, f.patched = int64(len(data)), hex.EncodeToString(sum[:]), true
	return err
}

// compile adds the byte code of sources.
func (u *unpacked) compile(ctx context.Context, sources []*file, c Compiler) error {
	made := make([]*file, len(sources))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * runtime.GOMAXPROCS(0)) // half of them only wait for byte code
	for i, f := range sources {
		group.Go(func() error {
			source, err := io.ReadAll(u.spool.open(f.offset, f.size))
			if err != nil {
				return err
			}
			pyc, ok, err := c.Compile(ctx, u.target.Prefix+"/"+f.path, source)
			if err != nil || !ok {
				return err
			}
			made[i], err = u.spool.addGenerated(u.target.pycPath(f.path), f.mode&0o666|0o600, "pyc_file", pyc)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, f := range made {
		if f != nil && len(path.Base(f.path)) <= layer.MaxName {
			u.files = append(u.files, f)
		}
	}
	return nil
}
