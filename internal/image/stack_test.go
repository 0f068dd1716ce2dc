package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// tarStack makes the tars of random layers, as somebody else would write them: in any order.
type tarStack struct {
	r     *rand.Rand
	tars  [][]byte
	files []string // regular files of the layers so far, if nobody has hidden them

	messy  bool // parents may be missing or not be directories, and paths come again
	linked bool // hard links to files of layers below
}

// tarLayer is a layer on its way to a tar.
type tarLayer struct {
	out   bytes.Buffer
	w     *tar.Writer
	types map[string]byte
	files []string
	whole map[string]bool // directories above whiteouts: they stay directories
}

func (s *tarStack) add(t *testing.T) {
	t.Helper()
	l := &tarLayer{types: map[string]byte{}, whole: map[string]bool{}}
	l.w = tar.NewWriter(&l.out)
	for range 3 + s.r.IntN(12) {
		s.entry(t, l)
	}
	if err := l.w.Close(); err != nil {
		t.Fatal(err)
	}
	s.tars = append(s.tars, l.out.Bytes())
	s.files = append(s.files, l.files...)
}

// entry adds an entry, and the directories above it unless the layer may be messy.
func (s *tarStack) entry(t *testing.T, l *tarLayer) {
	t.Helper()
	p := stackPath(s.r)
	if !s.messy && !l.has(p) || l.whole[p] {
		return
	}
	h := &tar.Header{Name: p, Mode: int64(s.r.IntN(0o1000)) | 0o400, Uid: s.r.IntN(3), Gid: s.r.IntN(3)}
	var content string
	kind := s.r.IntN(12)
	switch {
	case kind < 2:
		h.Typeflag, h.Mode = tar.TypeDir, h.Mode|0o700
	case kind == 2:
		h.Typeflag, h.Mode, h.Linkname = tar.TypeSymlink, 0o777, []string{"a", "b/c", "../a", "/b", "nowhere"}[s.r.IntN(5)]
	case kind == 3:
		h.Typeflag = tar.TypeFifo
	case kind < 6:
		h.Name, h.Mode = path.Join(path.Dir(p), layer.WhiteoutPrefix+path.Base(p)), 0o644
	case kind == 6:
		h.Name, h.Mode = path.Join(p, layer.WhiteoutOpaque), 0o644
	case kind < 9 && len(l.files) > 0 && !s.messy:
		h.Typeflag, h.Linkname = tar.TypeLink, l.files[s.r.IntN(len(l.files))]
	case kind < 9 && len(s.files) > 0 && s.linked:
		h.Typeflag, h.Linkname = tar.TypeLink, s.files[s.r.IntN(len(s.files))]
	default:
		content = fmt.Sprint(s.r.IntN(1000))
		l.files = append(l.files, p)
	}
	// Who lists a whiteout lists its directory: whether one that is not listed appears is not said anywhere.
	if !s.messy || isWhiteout(h.Name) {
		l.parents(t, h.Name)
	}
	l.put(t, h, content)
}

// has reports whether p can be added: it is new, and nothing that is no directory stands above it.
func (l *tarLayer) has(p string) bool {
	for _, d := range layer.Parents(p) {
		if k, ok := l.types[d]; ok && k != tar.TypeDir {
			return false
		}
	}
	_, ok := l.types[p]
	return !ok
}

func (l *tarLayer) parents(t *testing.T, p string) {
	t.Helper()
	for _, d := range layer.Parents(p) {
		l.whole[d] = l.whole[d] || isWhiteout(p)
		if l.types[d] != tar.TypeDir {
			l.put(t, &tar.Header{Name: d, Typeflag: tar.TypeDir, Mode: 0o711}, "")
		}
	}
}

func (l *tarLayer) put(t *testing.T, h *tar.Header, content string) {
	t.Helper()
	if h.Typeflag == 0 {
		h.Typeflag = tar.TypeReg
	}
	l.types[h.Name] = h.Typeflag
	h.Size = int64(len(content))
	h.ModTime = time.Unix(int64(1e9+len(l.types)), 0)
	if h.Typeflag == tar.TypeReg && h.Size%2 == 1 {
		h.PAXRecords = map[string]string{"SCHILY.xattr.user.k": content}
	}
	err := l.w.WriteHeader(h)
	if err == nil {
		_, err = l.w.Write([]byte(content))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// store keeps the layers in a store.
func (s *tarStack) store(t *testing.T, st *store.Store) []layer.Descriptor {
	t.Helper()
	var ds []layer.Descriptor
	for _, data := range s.tars {
		digest, err := st.PutBlob(data)
		if err != nil {
			t.Fatal(err)
		}
		ds = append(ds, layer.Descriptor{Digest: digest, DiffID: digest})
	}
	return ds
}

func (s *tarStack) String() string {
	var b strings.Builder
	for i, data := range s.tars {
		fmt.Fprintf(&b, "layer %d:\n", i)
		tr := tar.NewReader(bytes.NewReader(data))
		for {
			h, err := tr.Next()
			if err != nil {
				break
			}
			fmt.Fprintf(&b, "\t%c %q %q\n", h.Typeflag, h.Name, h.Linkname)
		}
	}
	return b.String()
}

// look says which attributes are compared.
type look struct {
	dirs  bool // those of directories
	links bool // which names are one file
	times bool
}

// describeTree describes a tree in one line for each node.
func describeTree(t *testing.T, tree *Tree, l look) []string {
	t.Helper()
	var lines []string
	first := map[int]string{}
	for _, n := range nodes(tree) {
		v := shown{path: n.Path, mode: n.Mode, uid: n.UID, gid: n.GID, when: n.ModTime.Unix(), link: n.Link, kind: n.Type}
		if n.Type == layer.Regular {
			data, err := tree.ReadFile(n.Path, 1000)
			if err != nil {
				t.Fatal(err)
			}
			v.content, v.xattr = string(data), n.Xattrs["user.k"]
		}
		if first[n.Inode] == "" {
			first[n.Inode] = n.Path
		}
		v.first = first[n.Inode]
		lines = append(lines, v.line(l))
	}
	return lines
}

// shown is what is compared of a file.
type shown struct {
	path, link, content, xattr, first string
	kind                              layer.Type
	mode                              uint32
	uid, gid                          int
	when                              int64
}

func (v shown) line(l look) string {
	if v.kind == layer.Dir && !l.dirs {
		return fmt.Sprintf("%q directory", v.path)
	}
	line := fmt.Sprintf("%q %d mode %o owner %d:%d %q %q %q", v.path, v.kind, v.mode, v.uid, v.gid, v.link, v.content, v.xattr)
	if l.times {
		line += fmt.Sprint(" time ", v.when)
	}
	if l.links && v.kind == layer.Regular {
		line += fmt.Sprintf(" is %q", v.first)
	}
	return line
}

// describeDir describes a directory as describeTree does a tree.
func describeDir(t *testing.T, root string, l look) []string {
	t.Helper()
	var views []shown
	err := filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		var s unix.Stat_t
		if err := unix.Lstat(p, &s); errors.Is(err, fs.ErrNotExist) {
			return nil // overlay lists a whiteout that hides nothing, though nobody can open it
		} else if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		v := shown{path: rel, mode: s.Mode & 0o7777, uid: int(s.Uid), gid: int(s.Gid), when: s.Mtim.Sec, first: fmt.Sprint(s.Ino)}
		switch s.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			v.kind = layer.Dir
		case unix.S_IFLNK:
			v.kind = layer.Symlink
			v.link, err = os.Readlink(p)
		case unix.S_IFIFO:
			v.kind = layer.Fifo
		default:
			var data []byte
			data, err = os.ReadFile(p)
			v.content, v.xattr = string(data), userXattr(p)
		}
		views = append(views, v)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(views, func(a, b shown) int {
		if layer.Less(a.path, b.path) {
			return -1
		}
		return 1
	})
	var lines []string
	first := map[string]string{}
	for _, v := range views {
		if first[v.first] == "" {
			first[v.first] = v.path
		}
		v.first = first[v.first]
		lines = append(lines, v.line(l))
	}
	return lines
}

func userXattr(p string) string {
	buf := make([]byte, 1000)
	n, err := unix.Lgetxattr(p, "user.k", buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// TestStackIsOverlay compares merged trees of layers as others write them with what the kernel's overlay shows of the same
// layers, unpacked.
//
// Where a layer lists no parents the overlay has directories of mode 755 there, while the tree keeps those of layers below.
func TestStackIsOverlay(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount an overlay here")
	}
	st := storetest.Alone(t)
	for seed := range uint64(24) {
		s := tarStack{r: rand.New(rand.NewPCG(seed, 4)), messy: seed%2 == 1}
		for range 2 + s.r.IntN(4) {
			s.add(t)
		}
		ds := s.store(t, st)
		tree, err := NewTree(t.Context(), st, ds)
		if err != nil {
			t.Fatalf("%v\n%s", err, &s)
		}
		checkTree(t, tree, len(ds))
		mounted := mountOverlay(t, st, ds)
		l := look{dirs: !s.messy, links: true, times: true}
		if diff := cmp.Diff(describeDir(t, mounted, l), describeTree(t, tree, l)); diff != "" {
			t.Fatalf("seed %d: overlay (-) and tree (+) differ:\n%s%s", seed, diff, &s)
		}
		if err := unix.Unmount(mounted, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStackIsUmoci compares merged trees with what umoci unpacks, hard links to files of layers below included.
func TestStackIsUmoci(t *testing.T) {
	umoci := needUmoci(t)
	st := storetest.Alone(t)
	compared := 0
	for seed := range uint64(24) {
		s := tarStack{r: rand.New(rand.NewPCG(seed, 3)), linked: true}
		for range 2 + s.r.IntN(3) {
			s.add(t)
		}
		tree, err := NewTree(t.Context(), st, s.store(t, st))
		if err != nil {
			continue // a hard link to a file that is hidden, which umoci does not make either
		}
		compared++
		to, err := unpackWithUmoci(t, umoci, s.tars)
		if err != nil {
			t.Fatalf("%v\n%s", err, &s)
		}
		all := look{dirs: true, links: true, times: true}
		if diff := cmp.Diff(describeDir(t, to, all), describeTree(t, tree, all)); diff != "" {
			t.Errorf("seed %d: umoci (-) and tree (+) differ:\n%s%s", seed, diff, &s)
		}
	}
	if compared < 12 {
		t.Errorf("only %d stacks could be compared", compared)
	}
}

// TestUmociDiffers has where the tree follows overlay, as [Tree] says, and umoci, which extracts layers over each other, does
// not. Nothing else was found to differ in stacks whose layers list the directories above their entries.
func TestUmociDiffers(t *testing.T) {
	umoci := needUmoci(t)
	st := storetest.Alone(t)
	for name, c := range map[string]struct {
		lower, upper []tar.Header
		tree, umoci  []string
		refused      string
	}{
		"umoci follows a symlink where a directory is not listed": {
			lower: []tar.Header{{Name: "real", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "way", Typeflag: tar.TypeSymlink, Linkname: "real"}},
			upper: []tar.Header{{Name: "way/x"}},
			tree:  []string{"real", "way", "way/x"},
			umoci: []string{"real", "real/x", "way"},
		},
		"umoci does not replace a file where a directory is not listed": {
			lower:   []tar.Header{{Name: "way"}},
			upper:   []tar.Header{{Name: "way/x"}},
			tree:    []string{"way", "way/x"},
			refused: "not a directory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := tarStack{}
			for _, headers := range [][]tar.Header{c.lower, c.upper} {
				l := &tarLayer{types: map[string]byte{}}
				l.w = tar.NewWriter(&l.out)
				for _, h := range headers {
					l.put(t, &h, "")
				}
				if err := l.w.Close(); err != nil {
					t.Fatal(err)
				}
				s.tars = append(s.tars, l.out.Bytes())
			}
			tree, err := NewTree(t.Context(), st, s.store(t, st))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, n := range nodes(tree) {
				got = append(got, n.Path)
			}
			if diff := cmp.Diff(c.tree, got); diff != "" {
				t.Errorf("tree (-want +got):\n%s", diff)
			}
			to, err := unpackWithUmoci(t, umoci, s.tars)
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("umoci: error %v, want one with %q", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.umoci, paths(t, to)); diff != "" {
				t.Errorf("umoci (-want +got):\n%s", diff)
			}
		})
	}
}

// paths lists what is below a directory.
func paths(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	err := fs.WalkDir(os.DirFS(root), ".", func(p string, _ fs.DirEntry, err error) error {
		if p != "." {
			all = append(all, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func needUmoci(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can give files away as umoci does")
	}
	p := tooltest.Path(t, "umoci")
	return p
}

// unpackWithUmoci returns the directory that umoci unpacks a stack to.
func unpackWithUmoci(t *testing.T, umoci string, tars [][]byte) (string, error) {
	t.Helper()
	dir := t.TempDir()
	var layers []v1.Layer
	for _, data := range tars {
		layers = append(layers, static.NewLayer(data, types.OCIUncompressedLayer))
	}
	im, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layers...)
	if err != nil {
		t.Fatal(err)
	}
	at, err := layout.Write(filepath.Join(dir, "oci"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := at.AppendImage(im, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "x"})); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "to")
	out, err := exec.Command(umoci, "raw", "unpack", "--image", filepath.Join(dir, "oci")+":x", to).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("umoci: %w\n%s", err, out)
	}
	return to, nil
}
