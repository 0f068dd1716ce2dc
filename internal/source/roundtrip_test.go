package source_test

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// TestRoundTrip writes an image as the files of clusters and makes an image of them again.
func TestRoundTrip(t *testing.T) {
	st := storetest.New(t)
	want := smallImage(t, st)
	files := map[string]string{}
	for name, write := range map[string]func(f *os.File) error{
		"x.sqsh": func(f *os.File) error {
			return clusterfile.WriteSquashfs(t.Context(), f, clusterfile.FromImage(st, want), clusterfile.Options{Store: st, Squashfs: squashfs.DefaultOptions()})
		},
		"x.sif": func(f *os.File) error {
			return clusterfile.WriteSIF(t.Context(), f, clusterfile.FromImage(st, want), clusterfile.Options{Store: st, Squashfs: squashfs.DefaultOptions()})
		},
	} {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err == nil {
			err = write(f)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		files[name] = f.Name()
	}
	var digests []store.Digest
	for name, file := range files {
		ref, err := source.Parse(file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := source.Import(t.Context(), ref, source.Options{Store: st})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Config.Config, got.Config.Config); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if got.Platform().String() != want.Platform().String() || !got.Config.Created.Equal(want.Config.Created.Time) {
			t.Errorf("%s: for %s, of %v", name, got.Platform(), got.Config.Created)
		}
		have := paths(t, st, got)
		for _, p := range slices.Sorted(maps.Keys(paths(t, st, want))) {
			if !have[p] {
				t.Errorf("%s: %s is missing", name, p)
			}
		}
		digests = append(digests, got.Digest)
	}
	if digests[0] != digests[1] {
		t.Error("squashfs and SIF of one image give two images")
	}
}

// smallImage has a program and a file that a layer above replaces and one that it removes.
func smallImage(t *testing.T, st *store.Store) *image.Image {
	t.Helper()
	spec := image.Spec{Platform: v1.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}, Edit: func(c *v1.Config) {
		c.Env, c.Entrypoint, c.WorkingDir = []string{"PATH=/bin", "A=it's \"b\""}, []string{"/bin/tool", "-x"}, "/w"
		c.Labels, c.User = map[string]string{"k": "v"}, "1000"
	}}
	for _, entries := range [][]layer.Entry{
		{{Path: "bin", Type: layer.Dir, Mode: 0o755}, {Path: "bin/sh", Mode: 0o755, Size: 3}, {Path: "bin/tool", Type: layer.HardLink, Link: "bin/sh"}, {Path: "gone", Mode: 0o600, Size: 3}},
		{{Path: ".wh.gone"}, {Path: "bin", Type: layer.Dir, Mode: 0o755}, {Path: "bin/link", Type: layer.Symlink, Mode: 0o777, Link: "sh"}, {Path: "w", Type: layer.Dir, Mode: 0o1777, UID: 1000}},
	} {
		w, err := layer.NewWriter(t.Context(), st, layer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Abort()
		for _, e := range entries {
			if err := w.Add(e, content("abc"[:e.Size])); err != nil {
				t.Fatal(err)
			}
		}
		d, err := w.Close()
		if err != nil {
			t.Fatal(err)
		}
		spec.Additions = append(spec.Additions, image.Addition{Layer: d, CreatedBy: "test"})
	}
	im, err := image.Assemble(t.Context(), st, spec)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

func content(text string) layer.Content {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
}

// paths describes every file of an image, with its content.
func paths(t *testing.T, st *store.Store, im *image.Image) map[string]bool {
	t.Helper()
	tree, err := im.Tree(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	err = tree.Walk(func(n *image.Node) error {
		line := fmt.Sprintf("%q type %d mode %o owner %d:%d time %d link %q names %d", n.Path, n.Type, n.Mode, n.UID, n.GID, n.ModTime.Unix(), n.Link, n.Links)
		if n.Type == layer.Regular {
			data, err := tree.ReadFile(n.Path, 1<<20)
			if err != nil {
				return err
			}
			line += " " + string(data)
		}
		lines[line] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}
