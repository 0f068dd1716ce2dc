package test

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// runFilter is what `go test -run` was given.
func runFilter() string { return flag.Lookup("test.run").Value.String() }

// blobs are the files of an image: its manifest, and where a blob is.
type blobs struct {
	manifest v1.Manifest
	path     func(v1.Hash) string
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err := errors.Join(err, json.Unmarshal(data, v)); err != nil {
		t.Fatal(err)
	}
}

// layoutBlobs opens an OCI layout with one image.
func layoutBlobs(t *testing.T, dir string) blobs {
	b := blobs{path: func(h v1.Hash) string { return filepath.Join(dir, "blobs", h.Algorithm, h.Hex) }}
	var index v1.IndexManifest
	readJSON(t, filepath.Join(dir, "index.json"), &index)
	if len(index.Manifests) != 1 || index.Manifests[0].MediaType != types.OCIManifestSchema1 {
		t.Fatalf("%s: %v", dir, index.Manifests)
	}
	readJSON(t, b.path(index.Manifests[0].Digest), &b.manifest)
	return b
}

// dirBlobs opens what skopeo calls a dir.
func dirBlobs(t *testing.T, dir string) blobs {
	b := blobs{path: func(h v1.Hash) string { return filepath.Join(dir, h.Hex) }}
	readJSON(t, filepath.Join(dir, "manifest.json"), &b.manifest)
	return b
}

// readImage describes an image in lines: of each file and of each setting.
func readImage(t *testing.T, b blobs) map[string]string {
	t.Helper()
	tree := map[string]*inode{}
	for _, l := range b.manifest.Layers {
		applyLayer(t, tree, b.path(l.Digest))
	}
	lines := map[string]string{}
	names := map[*inode][]string{}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		names[tree[name]] = append(names[tree[name]], name)
	}
	for name, node := range tree {
		lines["file "+name] = node.String()
		if len(names[node]) > 1 {
			lines["file "+name] += " linked: " + strings.Join(names[node], " ")
		}
	}
	var c v1.ConfigFile
	readJSON(t, b.path(b.manifest.Config.Digest), &c)
	describeConfig(lines, c)
	return lines
}

func describeConfig(lines map[string]string, c v1.ConfigFile) {
	lines["author"] = c.Author
	lines["platform"] = c.OS + "/" + c.Architecture
	for _, kv := range c.Config.Env {
		key, value, _ := strings.Cut(kv, "=")
		lines["env "+key] = fmt.Sprintf("%q", value)
	}
	for key, value := range c.Config.Labels {
		lines["label "+key] = fmt.Sprintf("%q", value)
	}
	for port := range c.Config.ExposedPorts {
		lines["port "+port] = "exposed"
	}
	for volume := range c.Config.Volumes {
		lines["volume "+volume] = "declared"
	}
	for name, list := range map[string][]string{
		"entrypoint": c.Config.Entrypoint, "cmd": c.Config.Cmd, "shell": c.Config.Shell, "onbuild": c.Config.OnBuild,
	} {
		if len(list) > 0 {
			lines[name] = fmt.Sprintf("%q", list)
		}
	}
	if h := c.Config.Healthcheck; h != nil {
		lines["healthcheck"] = fmt.Sprintf("%q %v %v %v %d", h.Test, h.Interval, h.Timeout, h.StartPeriod, h.Retries)
	}
	lines["user"], lines["workdir"], lines["stopsignal"] = c.Config.User, c.Config.WorkingDir, c.Config.StopSignal
}

// inode is a file as a layer has it, without its times.
type inode struct {
	kind       byte
	mode       int64
	uid, gid   int
	link       string
	sum        [sha256.Size]byte
	size       int64
	major, min int64
	xattrs     []string
}

func (n *inode) String() string {
	s := fmt.Sprintf("%c %o %d:%d", n.kind, n.mode, n.uid, n.gid)
	switch n.kind {
	case '-':
		s += fmt.Sprintf(" %d bytes %x", n.size, n.sum[:4])
	case 'l':
		s += " -> " + n.link
	case 'c', 'b':
		s += fmt.Sprintf(" %d,%d", n.major, n.min)
	}
	return strings.Join(append([]string{s}, n.xattrs...), " ")
}

var kinds = map[byte]byte{
	tar.TypeReg: '-', tar.TypeDir: 'd', tar.TypeSymlink: 'l', tar.TypeChar: 'c', tar.TypeBlock: 'b', tar.TypeFifo: 'p',
}

// applyLayer lays a layer over a tree, by the words of the OCI image specification.
func applyLayer(t *testing.T, tree map[string]*inode, blob string) {
	t.Helper()
	f, err := os.Open(blob)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var in io.Reader = bufio.NewReader(f)
	if magic, _ := in.(*bufio.Reader).Peek(2); string(magic) == "\x1f\x8b" {
		if in, err = gzip.NewReader(in); err != nil {
			t.Fatal(err)
		}
	}
	added := map[string]*inode{}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := path.Join("/", h.Name)
		switch dir, base := path.Split(name); {
		case base == ".wh..wh..opq":
			removeBelow(tree, strings.TrimSuffix(dir, "/"))
		case strings.HasPrefix(base, ".wh."):
			removeBelow(tree, dir+strings.TrimPrefix(base, ".wh."))
			delete(tree, dir+strings.TrimPrefix(base, ".wh."))
		case h.Typeflag == tar.TypeLink:
			target := path.Join("/", h.Linkname)
			if added[target] == nil {
				added[target] = tree[target]
			}
			added[name] = added[target]
		default:
			added[name] = newInode(t, h, r)
		}
	}
	for name, node := range added {
		if node == nil {
			t.Fatalf("%s: %s is a link to nothing", blob, name)
		}
		if old := tree[name]; old != nil && old.kind == 'd' && node.kind != 'd' {
			removeBelow(tree, name)
		}
	}
	maps.Copy(tree, added)
}

// removeBelow removes what a directory holds.
func removeBelow(tree map[string]*inode, dir string) {
	maps.DeleteFunc(tree, func(name string, _ *inode) bool { return strings.HasPrefix(name, dir+"/") })
}

func newInode(t *testing.T, h *tar.Header, content io.Reader) *inode {
	n := &inode{kind: kinds[h.Typeflag], mode: h.Mode & 0o7777, uid: h.Uid, gid: h.Gid, link: h.Linkname, major: h.Devmajor, min: h.Devminor}
	if n.kind == 'l' {
		n.mode = 0o777
	}
	sum := sha256.New()
	size, err := io.Copy(sum, content)
	if err != nil {
		t.Fatal(err)
	}
	n.size = size
	sum.Sum(n.sum[:0])
	for _, key := range slices.Sorted(maps.Keys(h.PAXRecords)) {
		if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok {
			n.xattrs = append(n.xattrs, fmt.Sprintf("%s=%x", name, h.PAXRecords[key]))
		}
	}
	return n
}
