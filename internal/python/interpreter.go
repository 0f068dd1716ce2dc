package python

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
)

// searchDirs are where an interpreter is looked for after the image's own PATH. /opt/*/bin comes last.
var searchDirs = []string{"usr/local/bin", "usr/bin", "bin", "opt/conda/bin"}

// Limits of what is read of an image.
const (
	maxHead      = 64 << 10  // bytes of an ELF file in which its headers must lie
	maxBinary    = 256 << 20 // bytes searched for a version
	maxPkgInfo   = 8 << 20   // bytes of one package's metadata
	maxInstalled = 20_000    // packages in the base
	maxStatus    = 64 << 20  // bytes of dpkg's status file
)

// Find finds the Python of an image by reading: nothing of the image is run, so it may be for another machine. It looks
// in path (the directories of the image's PATH, if known) and then in the usual places. platform is what the image is
// meant for; when it names an architecture, the interpreter must be built for it.
func Find(ctx context.Context, tree *image.Tree, platform v1.Platform, path ...string) (*Interpreter, error) {
	f := finder{tree}
	exe, minor := f.executable(ctx, f.dirs(path))
	if exe == nil {
		err := errors.New("the base has no Python 3 interpreter (looked for python3 in its PATH, /usr/local/bin, /usr/bin, /opt/conda/bin and /opt/*/bin)")
		return nil, fault.Hint(err, "take a base that has one, or add python3 to base.bootstrap.packages")
	}
	i, err := f.describe(exe, minor, platform)
	if err != nil {
		return nil, fmt.Errorf("look at the base's Python, /%s: %w", exe.Path, err)
	}
	return i, ctx.Err()
}

// finder reads an image's tree.
type finder struct{ tree *image.Tree }

func (f finder) dirs(first []string) []string {
	dirs := append(slices.Clone(first), searchDirs...)
	nodes, err := f.tree.ReadDir("opt")
	if err != nil {
		return dirs // there is no /opt
	}
	for _, n := range nodes {
		dirs = append(dirs, "opt/"+n.Name()+"/bin")
	}
	return dirs
}

// versioned is the file name of an interpreter that says its version.
var versioned = lazyregexp.New(`^python(3\.[0-9]{1,3})$`)

// executable returns the first interpreter in dirs, symlinks followed, and its version as far as its name says it.
func (f finder) executable(ctx context.Context, dirs []string) (*image.Node, string) {
	for _, dir := range dirs {
		for _, name := range append([]string{"python3", "python"}, f.versionedNames(dir)...) {
			if ctx.Err() != nil {
				return nil, ""
			}
			n, err := f.tree.Lookup(dir + "/" + name)
			if err != nil || n.Type != layer.Regular || n.Mode&0o111 == 0 {
				continue
			}
			if minor := f.minor(n); minor != "" {
				return n, minor
			}
		}
	}
	return nil, ""
}

// versionedNames lists python3.X in dir, the newest first.
func (f finder) versionedNames(dir string) []string {
	nodes, err := f.tree.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, n := range nodes {
		if versioned.MatchString(n.Name()) {
			names = append(names, n.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(b, a))
	})
	return names
}

// minor returns the interpreter's version as 3.11: from its name, or from the one standard library beside it. It is
// empty for what is no Python 3 program: a script that starts one, or Python 2.
func (f finder) minor(exe *image.Node) string {
	if head, err := f.head(exe); err != nil || !bytes.HasPrefix(head, []byte(elfMagic)) {
		return ""
	}
	if m := versioned.FindStringSubmatch(exe.Name()); m != nil {
		return m[1]
	}
	nodes, err := f.tree.ReadDir(prefixOf(exe) + "/lib")
	if err != nil {
		return ""
	}
	found := ""
	for _, n := range nodes {
		if m := versioned.FindStringSubmatch(n.Name()); m != nil && f.exists(n.Path+"/os.py") {
			if found != "" {
				return "" // which of the two it belongs to cannot be said
			}
			found = m[1]
		}
	}
	return found
}

func prefixOf(exe *image.Node) string { return path.Dir(path.Dir("/" + exe.Path)) }

func (f finder) exists(name string) bool {
	_, err := f.tree.Lookup(name)
	return err == nil
}

// describe reads everything that locking and laying down need to know.
func (f finder) describe(exe *image.Node, minor string, platform v1.Platform) (*Interpreter, error) {
	head, err := f.head(exe)
	if err != nil {
		return nil, err
	}
	i := &Interpreter{Executable: "/" + exe.Path, Prefix: prefixOf(exe), Implementation: "cpython"}
	if i.Platform, err = machine(head); err != nil {
		return nil, err
	}
	if want, ok := machines[platform.Architecture]; ok && want != i.Platform {
		err := fmt.Errorf("it is built for %s, but the image is for linux/%s", i.Platform, platform.Architecture)
		return nil, fault.Hint(err, "choose a base for that platform, or set target.platform in the recipe to what the base is for")
	}
	if !f.exists(i.Prefix+"/lib/python"+minor+"/os.py") && !f.exists(i.Prefix+"/lib64/python"+minor+"/os.py") {
		return nil, fault.Hint(fmt.Errorf("its standard library, %s/lib/python%s, is missing", i.Prefix, minor), "add python3 to base.bootstrap.packages, or take a base with a complete Python")
	}
	if i.Version, err = f.version(exe, i, minor); err != nil {
		return nil, err
	}
	if err := f.libc(i, interpreterOf(head)); err != nil {
		return nil, err
	}
	i.SitePackages = f.sitePackages(i)
	i.Packages, err = f.packages(i.SitePackages)
	return i, err
}

const elfMagic = "\x7fELF"

// machines are the names of architectures in wheel tags, by OCI architecture.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// machine returns what an ELF file is built for (System V ABI, "ELF Header": e_machine).
func machine(head []byte) (string, error) {
	const class64, littleEndian = 2, 1
	if len(head) < 64 || head[4] != class64 || head[5] != littleEndian {
		return "", errors.New("it is no 64-bit little-endian program")
	}
	switch m := binary.LittleEndian.Uint16(head[18:]); m {
	case 62:
		return "x86_64", nil
	case 183:
		return "aarch64", nil
	default:
		return "", fmt.Errorf("it is built for a machine (ELF number %d) that sconce makes no images for", m)
	}
}

// interpreterOf returns the dynamic loader that an ELF file names (its PT_INTERP segment), or "". head has passed machine.
func interpreterOf(head []byte) string {
	const ptInterp, entrySize = 3, 56
	offset := binary.LittleEndian.Uint64(head[32:])
	count := binary.LittleEndian.Uint16(head[56:])
	for range count {
		if offset > uint64(len(head)) || uint64(len(head))-offset < entrySize {
			return ""
		}
		segment := head[offset : offset+entrySize]
		offset += entrySize
		if binary.LittleEndian.Uint32(segment) != ptInterp {
			continue
		}
		at, size := binary.LittleEndian.Uint64(segment[8:]), binary.LittleEndian.Uint64(segment[32:])
		if at > uint64(len(head)) || size > uint64(len(head))-at {
			return ""
		}
		return string(bytes.TrimRight(head[at:at+size], "\x00"))
	}
	return ""
}

func (f finder) head(n *image.Node) ([]byte, error) {
	r, err := f.tree.Open(n)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxHead))
}

// version finds the full version: a string in the program or, when that is a small one, in the library that it uses.
// Where neither has it, dpkg knows.
func (f finder) version(exe *image.Node, i *Interpreter, minor string) (string, error) {
	triplet := i.Platform + "-linux-gnu"
	soname := "libpython" + minor + ".so.1.0"
	candidates := []string{exe.Path}
	for _, dir := range []string{i.Prefix + "/lib", i.Prefix + "/lib64", i.Prefix + "/lib/" + triplet, "usr/lib/" + triplet, "usr/lib64", "usr/lib"} {
		candidates = append(candidates, dir+"/"+soname)
	}
	pattern := regexp.MustCompile(regexp.QuoteMeta(minor) + `\.[0-9]{1,3}((a|b|rc)[0-9]{1,2})?\+?` + "\x00")
	for _, name := range candidates {
		best, clean := "", false
		err := f.scan(name, pattern, func(before byte, hit []byte) {
			alone, inNumber := before == 0, before == '.' || before >= '0' && before <= '9'
			if !inNumber && (best == "" || alone && !clean) {
				best, clean = strings.TrimRight(string(hit), "\x00+"), alone
			}
		})
		if err == nil && best != "" {
			return best, nil
		}
	}
	if v := f.dpkgVersion(minor); v != "" {
		return v, nil
	}
	return "", fmt.Errorf("its full version is neither in the program nor in %s", soname)
}

// maxHit bounds what a pattern for scan may match, in bytes.
const maxHit = 128

// scan calls found for what pattern matches in a file, which is read in pieces, with the byte before it: 0 where the file begins. A pattern
// begins with what always stands there: package regexp searches for that first, thousands of times as fast as it tries each byte, and programs
// are large.
func (f finder) scan(name string, pattern *regexp.Regexp, found func(before byte, hit []byte)) error {
	n, err := f.tree.Lookup(name)
	if err != nil {
		return err
	}
	if n.Type != layer.Regular {
		return fmt.Errorf("/%s is no regular file", n.Path)
	}
	r, err := f.tree.Open(n)
	if err != nil {
		return err
	}
	defer r.Close()
	limited := io.LimitReader(r, maxBinary)
	buf := make([]byte, 1, 1<<20) // the 0 before the file
	for {
		k, err := io.ReadFull(limited, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+k]
		for _, at := range pattern.FindAllIndex(buf[1:], -1) { // what begins a byte earlier was in the piece before
			found(buf[at[0]], buf[1+at[0]:1+at[1]])
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
		// A match may begin at the end of this piece; it is then found, perhaps once more, with the next.
		keep := copy(buf, buf[len(buf)-maxHit:])
		buf = buf[:keep]
	}
}

// dpkgVersion asks the package database of Debian and its kin.
func (f finder) dpkgVersion(minor string) string {
	data, err := f.tree.ReadFile("var/lib/dpkg/status", maxStatus)
	if err != nil {
		return ""
	}
	pattern := regexp.MustCompile(`(?m)^Package: python` + regexp.QuoteMeta(minor) + `(?:-minimal)?\n(?:[A-Z \t].*\n)*?Version: (?:[0-9]+:)?(` + regexp.QuoteMeta(minor) + `\.[0-9]+)`)
	if m := pattern.FindSubmatch(data); m != nil {
		return string(m[1])
	}
	return ""
}

var (
	// What libc.so.6 prints when it is run: "GNU C Library (…) stable release version 2.36."
	glibcBanner = lazyregexp.New(`release version (2\.[0-9]{1,3})`)
	// The versions of its symbols; the highest is that of the library unless a release added none.
	glibcSymbols = lazyregexp.New("\x00GLIBC_2\\.[0-9]{1,3}")
	muslVersion  = lazyregexp.New("\x001\\.[0-9]{1,2}\\.[0-9]{1,3}\x00")
)

// CLibrary is the C library of an image. At most one of the versions is set.
type CLibrary struct {
	Glibc string `json:"glibc,omitempty"` // 2.36
	Musl  string `json:"musl,omitempty"`  // 1.2
}

// FindCLibrary finds the C library of an image for a platform by reading, whether or not it has a Python.
func FindCLibrary(tree *image.Tree, platform v1.Platform) CLibrary {
	f, i := finder{tree}, &Interpreter{Platform: machines[platform.Architecture]}
	if f.libc(i, "") != nil {
		_ = f.libc(i, "/lib/ld-musl-"+i.Platform+".so.1") // there may be none at all
	}
	return CLibrary{i.Glibc, i.Musl}
}

// libc finds which C library the interpreter uses, and its version, which decide what wheels can be used.
func (f finder) libc(i *Interpreter, loader string) error {
	if strings.Contains(path.Base(loader), "ld-musl") {
		err := f.scan(loader, muslVersion.Regexp(), func(_ byte, hit []byte) {
			parts := strings.Split(strings.Trim(string(hit), "\x00"), ".")
			i.Musl = parts[0] + "." + parts[1]
		})
		if err != nil || i.Musl == "" {
			return fmt.Errorf("the version of its C library, musl, is not in %s", loader)
		}
		return nil
	}
	triplet := i.Platform + "-linux-gnu"
	for _, dir := range []string{"lib/" + triplet, "usr/lib/" + triplet, "lib64", "usr/lib64", "lib", "usr/lib"} {
		if i.Glibc = f.glibc(dir + "/libc.so.6"); i.Glibc != "" {
			return nil
		}
	}
	return errors.New("its C library, libc.so.6, was not found, so it cannot be said which wheels run on it")
}

func (f finder) glibc(name string) string {
	banner, symbols := "", 0
	err := f.scan(name, glibcBanner.Regexp(), func(_ byte, hit []byte) { banner = string(hit[len("release version "):]) })
	if err != nil || banner != "" {
		return banner
	}
	// Neighbouring names share the zero byte between them and matches do not overlap, so only the first is part of the match.
	err = f.scan(name, glibcSymbols.Regexp(), func(_ byte, hit []byte) {
		if n, err := strconv.Atoi(string(hit[len("\x00GLIBC_2."):])); err == nil {
			symbols = max(symbols, n)
		}
	})
	if err != nil || symbols == 0 {
		return ""
	}
	return "2." + strconv.Itoa(symbols)
}

// sitePackages lists the directories that the interpreter imports packages from by default. Debian's Python, the one
// under /usr, has dist-packages where all others have site-packages.
func (f finder) sitePackages(i *Interpreter) []string {
	minor := i.Minor()
	dirs := []string{
		i.Prefix + "/lib/python" + minor + "/site-packages",
		i.Prefix + "/lib64/python" + minor + "/site-packages",
	}
	if i.Prefix == "/usr" {
		dirs = []string{
			"/usr/local/lib/python" + minor + "/dist-packages",
			"/usr/lib/python3/dist-packages",
			"/usr/lib/python" + minor + "/dist-packages",
		}
		if !f.exists("usr/lib/python3/dist-packages") { // Fedora and its kin
			dirs = []string{
				"/usr/local/lib64/python" + minor + "/site-packages",
				"/usr/local/lib/python" + minor + "/site-packages",
				"/usr/lib64/python" + minor + "/site-packages",
				"/usr/lib/python" + minor + "/site-packages",
			}
		}
	}
	var found []string
	seen := make(map[string]bool)
	for _, dir := range dirs {
		n, err := f.tree.Lookup(dir)
		if err != nil || n.Type != layer.Dir || seen[n.Path] { // lib64 may be a link to lib
			continue
		}
		seen[n.Path] = true
		found = append(found, dir)
	}
	return found
}

// packages lists the distributions in dirs. Of two of one name, the one found first by an import counts.
func (f finder) packages(dirs []string) ([]Installed, error) {
	byName := make(map[string]Installed)
	for _, dir := range dirs {
		nodes, err := f.tree.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, n := range nodes {
			p, ok := f.installed(n)
			if !ok {
				continue
			}
			if len(byName) == maxInstalled {
				return nil, fmt.Errorf("it has more than %d packages", maxInstalled)
			}
			p.Path = dir + "/" + n.Name()
			if _, there := byName[p.Name]; !there {
				byName[p.Name] = p
			}
		}
	}
	var all []Installed
	for _, name := range sortedKeys(byName) {
		all = append(all, byName[name])
	}
	return all, nil
}

// installed reads the metadata that n is or holds. What cannot be read is not counted: Python's own tools do the same.
func (f finder) installed(n *image.Node) (Installed, bool) {
	at := ""
	switch {
	case strings.HasSuffix(n.Name(), ".dist-info"):
		at = n.Path + "/METADATA"
	case strings.HasSuffix(n.Name(), ".egg-info") && n.Type == layer.Regular:
		at = n.Path
	case strings.HasSuffix(n.Name(), ".egg-info"):
		at = n.Path + "/PKG-INFO"
	default:
		return Installed{}, false
	}
	data, err := f.tree.ReadFile(at, maxPkgInfo)
	if err != nil {
		return Installed{}, false
	}
	m, err := ParseMetadata(data)
	if err != nil {
		return Installed{}, false
	}
	p := Installed{Name: NormalizeName(m.Name), Version: m.Version, Requires: m.RequiresDist}
	if len(p.Requires) == 0 && strings.HasSuffix(at, "/PKG-INFO") {
		p.Requires = f.eggRequires(n.Path + "/requires.txt")
	}
	return p, true
}

// eggRequires reads the requirements of an .egg-info: the lines before the first section, which is that of an extra.
func (f finder) eggRequires(name string) []string {
	data, err := f.tree.ReadFile(name, maxPkgInfo)
	if err != nil {
		return nil
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			break
		}
		if line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}
