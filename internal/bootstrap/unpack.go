package bootstrap

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Limits of a package. The largest of any distribution are of a few GB and 100,000 files.
const (
	maxControlFile  = 16 << 20 // bytes
	maxControlFiles = 100
	maxFiles        = 1 << 20
)

// unpacked is a package whose files lie in the root directory.
type unpacked struct {
	debian.Package
	pinned    Package
	fields    debian.Paragraph
	multiArch bool          // it may be there for several architectures
	control   []controlFile // but for control itself
	files     []string      // in the order of its archive, as its list in dpkg's database has them
	conffiles []conffile
}

// conffile is a file that dpkg asks about before it replaces what an administrator has changed.
type conffile struct {
	path string // with a slash first
	md5  string // hexadecimal
}

type controlFile struct {
	name    string
	mode    os.FileMode
	modTime time.Time
	content []byte
}

// name is by what dpkg's database calls the package.
func (u *unpacked) name() string {
	if u.multiArch {
		return u.Name + ":" + u.Architecture
	}
	return u.Name
}

// has returns the content of a control file, nil when there is none.
func (u *unpacked) has(name string) []byte {
	for _, f := range u.control {
		if f.name == name {
			return f.content
		}
	}
	return nil
}

// given is a file that does not belong to root.
type given struct {
	path     string
	uid, gid int
	mode     uint32
}

// directory is what a package says of a directory: of several, in their order, the first counts.
type directory struct {
	by       int // which package
	mode     os.FileMode
	modTime  time.Time
	uid, gid int
}

// unpacker lays files of packages into a directory.
type unpacker struct {
	store *store.Store
	root  *os.Root

	mu          sync.Mutex
	directories map[string]directory
	filled      map[string]bool   // the directories in which something was laid
	owner       map[string]string // of each file, but directories: the package
	given       []given
}

func newUnpacker(st *store.Store, root *os.Root) *unpacker {
	return &unpacker{store: st, root: root, directories: map[string]directory{}, filled: map[string]bool{}, owner: map[string]string{}}
}

// readControl reads what a package says of itself.
func readControl(st *store.Store, pkg Package) (*unpacked, error) {
	u := &unpacked{pinned: pkg}
	err := readDeb(st, pkg, u.readControl, skip)
	if err != nil {
		return nil, fmt.Errorf("package %s %s: %w", pkg.Name, pkg.Version, err)
	}
	return u, nil
}

// readDeb hands on the control archive of a package, and that of its files.
func readDeb(st *store.Store, pkg Package, control, data func(name string, r io.Reader) error) error {
	f, err := st.OpenBlob(pkg.SHA256)
	if err != nil {
		return err
	}
	defer f.Close()
	return debian.ReadDeb(f, control, data)
}

func skip(string, io.Reader) error { return nil }

func (u *unpacked) readControl(_ string, r io.Reader) error {
	in, err := layer.Decompress(r)
	if err != nil {
		return err
	}
	defer in.Close()
	left := int64(maxControlFile)
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("its control archive: %w", err)
		}
		name := path.Clean(h.Name)
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if h.Typeflag != tar.TypeReg || !debian.IsName(name) || len(u.control) >= maxControlFiles {
			return fmt.Errorf("its control archive has %q, which does not belong there", h.Name)
		}
		if left -= h.Size; left < 0 {
			return fmt.Errorf("its control files are larger than %d MiB", maxControlFile>>20)
		}
		content, err := io.ReadAll(t)
		if err != nil {
			return fmt.Errorf("its control archive: %w", err)
		}
		u.control = append(u.control, controlFile{name, h.FileInfo().Mode().Perm(), h.ModTime, content})
	}
	return u.understand(u.pinned)
}

// understand reads the control fields, which must be those of the package that was pinned.
func (u *unpacked) understand(pkg Package) error {
	fields, err := debian.NewReader(bytes.NewReader(u.has("control"))).Next()
	if err != nil {
		return fmt.Errorf("its control file: %w", err)
	}
	p, err := debian.NewPackage(fields)
	if err != nil {
		return err
	}
	if p.Name != pkg.Name || debian.WrittenVersion(p.Version) != debian.WrittenVersion(pkg.Version) || p.Architecture != pkg.Architecture {
		return fmt.Errorf("it says of itself that it is %s %s (%s)", p.Name, p.Version, p.Architecture)
	}
	u.Package, u.fields, u.multiArch = *p, fields, fields.Get("Multi-Arch") == "same"
	for line := range strings.Lines(string(u.has("conffiles"))) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "remove-on-upgrade" {
			continue
		}
		if len(words) != 1 || !strings.HasPrefix(words[0], "/") {
			return fmt.Errorf("its list of configuration files has %.80q", strings.TrimSpace(line))
		}
		u.conffiles = append(u.conffiles, conffile{path: words[0]})
	}
	return nil
}

// unpack lays down the files of packages, several at once. Each file belongs to one package, so that the order makes no difference.
func (x *unpacker) unpack(ctx context.Context, packages []*unpacked) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, i := range largestFirst(packages) {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			u := packages[i]
			err := readDeb(x.store, u.pinned, skip, func(_ string, r io.Reader) error { return x.lay(ctx, i, u, r) })
			if err != nil {
				return fmt.Errorf("unpack package %s %s: %w", u.Name, u.Version, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return x.finishDirectories()
}

func largestFirst(packages []*unpacked) []int {
	order := make([]int, len(packages))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(packages[b].pinned.Size>>10) - int(packages[a].pinned.Size>>10) })
	return order
}

// lay lays down the files of one package.
func (x *unpacker) lay(ctx context.Context, number int, u *unpacked, r io.Reader) error {
	in, err := layer.Decompress(r)
	if err != nil {
		return err
	}
	defer in.Close()
	sums := map[string]hash.Hash{}
	for _, c := range u.conffiles {
		sums[strings.TrimPrefix(c.path, "/")] = md5.New()
	}
	t := tar.NewReader(in)
	for range maxFiles {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return u.finish(sums)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		name, err := cleanName(h.Name)
		if err != nil {
			return err
		}
		u.files = append(u.files, "/"+name)
		if err := x.entry(number, u, name, h, t, sums[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return errors.New("it has too many files")
}

// cleanName is the path of an archive's member, "." for the root. dpkg writes "./usr/bin/x".
func cleanName(name string) (string, error) {
	clean := strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	if clean == "" || clean == "." {
		return ".", nil
	}
	if strings.Contains(clean, "\n") {
		return "", fmt.Errorf("the file name %.80q cannot be written into a list", clean)
	}
	return clean, layer.CheckPath(clean, unix.PathMax-1)
}

// finish completes what was learned of a package's configuration files.
func (u *unpacked) finish(sums map[string]hash.Hash) error {
	for i, c := range u.conffiles {
		if !slices.Contains(u.files, c.path) {
			return fmt.Errorf("it lacks its configuration file %s", c.path)
		}
		u.conffiles[i].md5 = hex.EncodeToString(sums[strings.TrimPrefix(c.path, "/")].Sum(nil))
	}
	return nil
}

func (x *unpacker) entry(number int, u *unpacked, name string, h *tar.Header, content io.Reader, sum hash.Hash) error {
	if name == "." {
		return nil
	}
	mode := h.FileInfo().Mode()
	if h.Typeflag == tar.TypeDir {
		return x.directory(number, name, h)
	}
	if err := x.claim(u.Name, name); err != nil {
		return err
	}
	if err := x.above(name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		if err := x.file(name, mode, h.ModTime, content, sum); err != nil {
			return err
		}
	case tar.TypeLink:
		target, err := cleanName(h.Linkname)
		if err != nil {
			return err
		}
		return x.root.Link(target, name)
	case tar.TypeSymlink:
		if err := x.root.Symlink(h.Linkname, name); err != nil && !x.leads(name, h.Linkname) {
			return err
		}
		if err := x.linkTime(name, h.ModTime); err != nil {
			return err
		}
	default:
		return errors.New("it is neither a file nor a directory nor a link")
	}
	x.give(name, h)
	return nil
}

// merged is the one name of what lies below a merged directory. There it has two, and links in the root lead from one to the other.
func (x *unpacker) merged(name string) string {
	first, rest, below := strings.Cut(name, "/")
	if !below || first == "usr" {
		return name
	}
	if target, err := x.root.Readlink(first); err == nil && target == "usr/"+first {
		return target + "/" + rest
	}
	return name
}

// claim notes whose a file is.
func (x *unpacker) claim(pkg, name string) error {
	name = x.merged(name)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.filled[path.Dir(name)] = true
	if other, ok := x.owner[name]; ok && other != pkg {
		return fmt.Errorf("package %s has the same file", other)
	}
	x.owner[name] = pkg
	return nil
}

// leads reports whether there is a link already, and the same: packages may bring those of merged directories.
func (x *unpacker) leads(name, target string) bool {
	there, err := x.root.Readlink(name)
	return err == nil && there == target
}

func (x *unpacker) give(name string, h *tar.Header) {
	if h.Uid == 0 && h.Gid == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	mode := uint32(h.Mode & 0o7777)
	if h.Typeflag == tar.TypeSymlink {
		mode = 0
	}
	x.given = append(x.given, given{name, h.Uid, h.Gid, mode})
}

func (x *unpacker) directory(number int, name string, h *tar.Header) error {
	if err := x.root.MkdirAll(name, 0o755); err != nil {
		return err
	}
	info, err := x.root.Stat(name) // of a merged directory's link, what it leads to
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return errors.New("another package has something else than a directory there")
	}
	parent := path.Dir(x.merged(name))
	x.mu.Lock()
	defer x.mu.Unlock()
	x.filled[parent] = true
	if known, ok := x.directories[name]; !ok || number < known.by {
		x.directories[name] = directory{number, h.FileInfo().Mode(), h.ModTime, h.Uid, h.Gid}
	}
	return nil
}

// above makes the directories above a file that no package brings.
func (x *unpacker) above(name string) error {
	dir := path.Dir(name)
	if err := x.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for ; dir != "."; dir = path.Dir(dir) {
		if _, known := x.directories[dir]; known {
			continue
		}
		if info, err := x.root.Lstat(dir); err == nil && info.IsDir() { // no link to one, of a merged directory
			x.directories[dir] = directory{by: math.MaxInt, mode: 0o755}
		}
	}
	return nil
}

func (x *unpacker) file(name string, mode os.FileMode, modTime time.Time, content io.Reader, sum hash.Hash) error {
	f, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	var w io.Writer = f
	if sum != nil {
		w = io.MultiWriter(f, sum)
	}
	if _, err := io.Copy(w, content); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	ts := []unix.Timespec{unix.NsecToTimespec(modTime.UnixNano()), unix.NsecToTimespec(modTime.UnixNano())}
	if err := unix.UtimesNanoAt(int(f.Fd()), "", ts, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("set its time: %w", err)
	}
	return f.Close()
}

func (x *unpacker) linkTime(name string, modTime time.Time) error {
	dir, err := x.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	ts := []unix.Timespec{unix.NsecToTimespec(modTime.UnixNano()), unix.NsecToTimespec(modTime.UnixNano())}
	return unix.UtimesNanoAt(int(dir.Fd()), path.Base(name), ts, unix.AT_SYMLINK_NOFOLLOW)
}

// finishDirectories gives directories their permissions, when nothing more is written to them, and their times to those that are
// empty: those of all others are when they were filled.
func (x *unpacker) finishDirectories() error {
	for name, d := range x.directories {
		if err := x.root.Chmod(name, d.mode); err != nil {
			return err
		}
		if d.uid != 0 || d.gid != 0 {
			x.given = append(x.given, given{name, d.uid, d.gid, unixMode(d.mode)})
		}
		empty, err := x.isEmpty(name)
		if err != nil {
			return err
		}
		if empty {
			if err := x.root.Chtimes(name, d.modTime, d.modTime); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(x.given, func(a, b given) int { return strings.Compare(a.path, b.path) })
	return nil
}

// isEmpty looks into a directory, unless something of a package is known to be there.
func (x *unpacker) isEmpty(name string) (bool, error) {
	if x.filled[x.merged(name)] {
		return false, nil
	}
	dir, err := x.root.Open(name)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

func unixMode(m os.FileMode) uint32 {
	mode := uint32(m.Perm())
	for bit, has := range map[uint32]os.FileMode{unix.S_ISUID: os.ModeSetuid, unix.S_ISGID: os.ModeSetgid, unix.S_ISVTX: os.ModeSticky} {
		if m&has != 0 {
			mode |= bit
		}
	}
	return mode
}
