package fileop

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store/storetest"
)

// add unpacks an archive in a context.
func (r rig) add(t testing.TB, archive, dest string) ([]string, error) {
	t.Helper()
	c := openContext(t, makeDir(t, "f archive = "+archive))
	return r.try(t, Copy{Sources: []string{"archive"}, Dest: dest, Extract: true}, c, nil)
}

func TestExtract(t *testing.T) {
	r := newRig(t)
	archive := makeTar(t, "f 640 5:6 dir/in = in")
	unpacked := []string{"d 755 0:0 n", "d 755 0:0 n/dir", "f 640 5:6 n/dir/in = in"}
	for _, tool := range []string{"cat", "gzip", "bzip2", "xz", "zstd"} {
		data := string(archive)
		if tool != "cat" {
			data = compressed(t, tool, archive)
		}
		got, err := r.add(t, data, "/n")
		if diff := cmp.Diff(unpacked, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got)\n%s", tool, err, diff)
		}
	}
	for name, data := range map[string]string{
		"text": "text", "nothing": "", "compressed text": compressed(t, "gzip", []byte("text")), "a broken gzip": "\x1f\x8b\x08garbage",
		"zeros": strings.Repeat("\x00", 2048), "a broken xz": "\xfd7zXZ\x00 and more", "much text": strings.Repeat("text ", 1000), "bzip2": "BZh9text",
	} {
		got, err := r.add(t, data, "/n")
		if diff := cmp.Diff([]string{"f 644 0:0 n = " + data}, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
	}
}

func TestExtractLeavesAttributesOfMachines(t *testing.T) {
	r := newRig(t)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeDir, Mode: 0o755, ModTime: time.Unix(1e9, 0), PAXRecords: map[string]string{
		"SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.security.selinux": "s", "SCHILY.xattr.user.kept": "k",
	}})
	w.Close()
	c := openContext(t, makeDir(t, "f archive = "+b.String()))
	d, err := Copy{Sources: []string{"archive"}, Dest: "/", Extract: true}.Layer(t.Context(), r.st, c, r.tree, layer.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := makeTree(t, r.st, d).Lookup("x")
	if err != nil || len(n.Xattrs) != 1 || n.Xattrs["user.kept"] != "k" || n.ModTime.Unix() != 1e9 {
		t.Errorf("got %+v, %v", n, err)
	}
}

func TestExtractOntoImage(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		dest    string
		archive []string
		want    []string
	}{
		"attributes of directories": {
			"/",
			[]string{"d 700 3:4 opt", "d 711 5:6 ./opt/existing/"},
			[]string{"d 700 3:4 opt", "d 711 5:6 opt/existing", "- d 755 0:0 opt", "- d 2770 1001:1002 opt/existing"},
		},
		"through a link of the image": {"/", []string{"f lib/x = X"}, []string{"f 644 0:0 usr/lib/x = X"}},
		"a link is replaced": {
			"/", []string{"d lib", "f lib/x = X"}, []string{"d 755 0:0 lib", "f 644 0:0 lib/x = X", "- l 777 0:0 lib -> usr/lib"},
		},
		"a directory is replaced": {
			"/", []string{"f opt/existing = X"}, []string{"f 644 0:0 opt/existing = X", "- d 2770 1001:1002 opt/existing", "- f 600 7:8 opt/existing/a = old"},
		},
		"a directory is replaced and comes back": {
			"/",
			[]string{"f opt/existing = X", "d opt/existing", "f opt/existing/b = B"},
			[]string{"d 755 0:0 opt/existing", "f 644 0:0 opt/existing/b = B", "- d 2770 1001:1002 opt/existing", "- f 600 7:8 opt/existing/a = old"},
		},
		"the last counts": {"/n", []string{"f x = 1", "f x = 2"}, []string{"d 755 0:0 n", "f 644 0:0 n/x = 2"}},
		"a link to a file of the image": {
			"/opt", []string{"h existing/b => existing/a"}, []string{"f 600 7:8 opt/existing/b => opt/existing/a"},
		},
		"names that lead out": {
			"/n",
			[]string{"f /a = A", "f ../b = B", "f x/../../../c/d = D", "d /", "h e => /a", "h f => ../../b", "f ./g/../h = H"},
			[]string{
				"d 755 0:0 n", "f 644 0:0 n/a = A", "f 644 0:0 n/b = B", "d 755 0:0 n/c", "f 644 0:0 n/c/d = D", "f 644 0:0 n/e => n/a",
				"f 644 0:0 n/f => n/b", "f 644 0:0 n/h = H",
			},
		},
		"the directory that was packed": {
			"/opt/existing", []string{"d 700 5:6 .", "f x = X"}, []string{"f 644 0:0 opt/existing/x = X"},
		},
		"the directory that was packed, into a new one": {
			"/n", []string{"d 700 5:6 .", "f x = X"}, []string{"d 755 0:0 n", "f 644 0:0 n/x = X"},
		},
		"a device": {"/n", []string{"c 600 0:0 null"}, []string{"d 755 0:0 n", "c 600 0:0 n/null"}},
		// The destination is the root of everything.
		"a link that leads out": {
			"/n",
			[]string{"l x -> /etc", "f x/passwd = X", "l y -> ../../../etc", "f y/group = Y"},
			[]string{
				"d 755 0:0 n", "d 755 0:0 n/etc", "f 644 0:0 n/etc/group = Y", "f 644 0:0 n/etc/passwd = X", "l 777 0:0 n/x -> /etc",
				"l 777 0:0 n/y -> ../../../etc",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := r.add(t, string(makeTar(t, c.archive...)), c.dest)
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got)\n%s", err, diff)
			}
		})
	}
}

func TestExtractRefuses(t *testing.T) {
	defer func(n int64) { maxArchive = n }(maxArchive)
	maxArchive = 1 << 20
	r := newRig(t)
	cut := makeTar(t, "f x = "+strings.Repeat("x", 10000))
	for name, c := range map[string]struct{ archive, want string }{
		"a link from above":         {string(makeTar(t, "h x => ../../etc/passwd")), "no directory /n/etc"},
		"a link to nothing":         {string(makeTar(t, "h x => y")), "hard link to y, which is no file"},
		"a link to a directory":     {string(makeTar(t, "d y", "h x => y")), "hard link to y, which is no file"},
		"a loop":                    {string(makeTar(t, "l x -> y", "l y -> x", "f x/f = ")), "too many levels"},
		"below a file":              {string(makeTar(t, "f x = ", "f x/f = ")), "not a directory"},
		"a whiteout":                {string(makeTar(t, "f .wh.x = ")), "cannot be in an image"},
		"an archive that is cut":    {string(cut[:5000]), "EOF"},
		"a compressed one":          {cutOff(compressed(t, "gzip", makeTar(t, "f x = "+strings.Repeat("x", 10000), "f y = "))), "EOF"},
		"a bomb":                    {compressed(t, "gzip", makeTar(t, "f x = "+strings.Repeat("\x00", 2<<20))), "more than 1048576 bytes"},
		"an unknown type":           {string(makeTarOf('Z')), "type"},
		"a destination that is one": {string(makeTar(t, "f . = x")), "must be a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := r.add(t, c.archive, "/n")
			if err == nil || !strings.Contains(err.Error(), c.want) || fault.HintOf(err) == "" {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func cutOff(s string) string { return s[:len(s)-9] }

// makeTarOf makes a tar of one entry of a type.
func makeTarOf(typ byte) []byte {
	h := make([]byte, 512, 2048)
	copy(h, "x")
	copy(h[100:], "0000644\x000000000\x000000000\x0000000000000\x0000000000000\x00        ")
	h[156] = typ
	copy(h[257:], "ustar\x0000")
	sum := 0
	for _, b := range h {
		sum += int(b)
	}
	for i := 5; i >= 0; i-- {
		h[148+i] = '0' + byte(sum&7)
		sum >>= 3
	}
	h[154] = 0
	return append(h, make([]byte, 1536)...)
}

// FuzzExtract looks for archives that come to lie anywhere but below the destination.
func FuzzExtract(f *testing.F) {
	f.Add(makeTar(f, theArchive...))
	f.Add(makeTar(f, "l x -> /etc", "f x/passwd = X", "h y => x/passwd", "l z -> ../..", "d z/etc", "f . = "))
	f.Add(makeTar(f, "f opt = X", "d opt", "f opt/b = B", "h opt/c => opt/b", "f opt/b = C", "c 600 0:0 null", "p 600 0:0 pipe"))
	f.Add([]byte(compressed(f, "gzip", makeTar(f, "f x = "))))
	defer func(n int64) { maxArchive = n }(maxArchive)
	maxArchive = 4 << 20
	st := storetest.New(f)
	base := makeLayer(f, st, theBase...)
	tree := makeTree(f, st, base)
	f.Fuzz(func(t *testing.T, data []byte) {
		j, err := Copy{Sources: []string{"archive"}, Dest: "/opt", Extract: true}.newJob(t.Context(), st, tree)
		if err != nil {
			t.Fatal(err)
		}
		defer j.cleanup()
		if err := j.run(memory{"archive": data}, nil); err != nil {
			return
		}
		j.stage.checkBelow(t, "opt")
		w, err := layer.NewWriter(t.Context(), st, layer.Options{Compression: layer.None})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Abort()
		if err := j.stage.write(w); err != nil && !strings.Contains(err.Error(), "longer than") {
			t.Error(err)
		}
	})
}
