package fileop

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// rig is an image to copy into and a context to copy from.
type rig struct {
	st      *store.Store
	base    layer.Descriptor
	tree    *image.Tree
	was     []string
	context *Context
}

func newRig(t testing.TB) rig {
	t.Helper()
	r := rig{st: storetest.New(t)}
	r.base = makeLayer(t, r.st, theBase...)
	r.tree = makeTree(t, r.st, r.base)
	r.was = list(t, r.tree)
	tar := makeTar(t, theArchive...)
	lines := append(slices.Clone(theContext), "f t.tar = "+string(tar), "f t.tar.gz = "+compressed(t, "gzip", tar),
		"f t.tar.bz2 = "+compressed(t, "bzip2", tar), "f t.tar.xz = "+compressed(t, "xz", tar))
	r.context = openContext(t, makeDir(t, lines...))
	return r
}

// copy returns what a Copy changes, or "error".
func (r rig) copy(t testing.TB, c Copy, fromImage bool) []string {
	t.Helper()
	var from Files = r.context
	if fromImage {
		from = FromTree(r.tree)
	}
	d, err := c.Layer(t.Context(), r.st, from, r.tree, layer.Options{}, nil)
	if err != nil {
		t.Log(err)
		return []string{"error"}
	}
	return r.changes(t, []layer.Descriptor{r.base, d})
}

func (r rig) changes(t testing.TB, layers []layer.Descriptor) []string {
	t.Helper()
	return changes(r.was, list(t, makeTree(t, r.st, layers...)))
}

// try makes a layer and returns what it changes, or the error.
func (r rig) try(t testing.TB, c Copy, from Files, open Open) ([]string, error) {
	t.Helper()
	d, err := c.Layer(t.Context(), r.st, from, r.tree, layer.Options{}, open)
	if err != nil {
		return nil, err
	}
	return r.changes(t, []layer.Descriptor{r.base, d}), nil
}

func TestCopy(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		copy Copy
		want []string
	}{
		"a file": {
			Copy{Sources: []string{"a"}, Dest: "/n/f"},
			[]string{"d 755 0:0 n", "f 644 0:0 n/f = A"},
		},
		"owner and permissions": {
			Copy{Sources: []string{"glob/*"}, Dest: "/n/", Chown: "u:g", Chmod: "u=rwX,go="},
			[]string{"d 755 1001:1003 n", "f 600 1001:1003 n/1 = 1", "f 600 1001:1003 n/2 = 2", "f 600 1001:1003 n/[x] = 3", "f 600 1001:1003 n/z = 4"},
		},
		"a pattern's characters taken literally": {
			Copy{Sources: []string{`glob/\[x]`}, Dest: "/n"}, []string{"f 644 0:0 n = 3"},
		},
		"permissions as a number are for new directories too": {
			Copy{Sources: []string{"a"}, Dest: "/n/m/", Chmod: "0750", Chown: "5:6"},
			[]string{"d 750 5:6 n", "d 750 5:6 n/m", "f 750 5:6 n/m/a = A"},
		},
		"permissions as a number are for a new destination": {
			Copy{Sources: []string{"d/sub"}, Dest: "/n", Chmod: "700"}, []string{"d 700 0:0 n", "f 700 0:0 n/y = Y"},
		},
		"several files become one": {
			Copy{Sources: []string{"glob/[[z]*"}, Dest: "/n"}, []string{"f 644 0:0 n = 4"},
		},
		"several files in a directory that is there": {
			Copy{Sources: []string{"glob/[[z]*"}, Dest: "/opt/existing"}, []string{"f 644 0:0 opt/existing/[x] = 3", "f 644 0:0 opt/existing/z = 4"},
		},
		"a pattern before the point": {
			Copy{Sources: []string{"m*/./*/n", "[pd]/./q/g"}, Dest: "/n/", Parents: true},
			[]string{"d 755 0:0 n", "d 700 0:0 n/existing", "f 644 0:0 n/existing/n = N", "d 755 0:0 n/q", "f 644 0:0 n/q/g = G"},
		},
		"a pattern before the point matches nothing": {
			Copy{Sources: []string{"none*/./a"}, Dest: "/n/", Parents: true}, nil,
		},
		"nothing matches": {Copy{Sources: []string{"none*"}, Dest: "/n/"}, nil},
		"through a dangling link": {
			Copy{Sources: []string{"a"}, Dest: "/dangling"}, []string{"f 644 0:0 opt/none = A"},
		},
		"a directory is meant": {
			Copy{Sources: []string{"a"}, Dest: "/n/."}, []string{"d 755 0:0 n", "f 644 0:0 n/a = A"},
		},
		"the directories above are kept": {
			Copy{Sources: []string{"p/q/g", "m1/*/n"}, Dest: "/n", Parents: true, Chmod: "go-rx"},
			[]string{
				"d 755 0:0 n", "d 700 0:0 n/m1", "d 700 0:0 n/m1/existing", "f 600 0:0 n/m1/existing/n = N", "d 700 0:0 n/p", "d 700 0:0 n/p/q",
				"f 600 0:0 n/p/q/g = G",
			},
		},
		"the directories above are kept from a point on": {
			Copy{Sources: []string{"p/./**/f", "d/./."}, Dest: "/n/", Parents: true},
			[]string{
				"d 755 0:0 n", "f 644 0:0 n/hard = A", "l 777 0:0 n/ln -> ../a", "d 755 0:0 n/q", "d 755 0:0 n/q/r", "f 644 0:0 n/q/r/f = F",
				"d 700 0:0 n/sub", "f 644 0:0 n/sub/y = Y", "f 755 0:0 n/x = X",
			},
		},
		"without": {
			Copy{Sources: []string{"ig"}, Dest: "/n", Exclude: []string{"**/*.log", "node", "!node/in", "!deep/keep.log"}},
			[]string{
				"d 755 0:0 n", "d 755 0:0 n/deep", "d 755 0:0 n/deep/er", "f 644 0:0 n/deep/keep.log = 8", "f 644 0:0 n/keep.txt = 5",
				"d 755 0:0 n/node", "f 644 0:0 n/node/in = 10",
			},
		},
		"files without": {
			Copy{Sources: []string{"ig/*", "a"}, Dest: "/n/", Exclude: []string{"*.log", "a", "mod"}},
			[]string{"d 755 0:0 n", "d 755 0:0 n/er", "f 644 0:0 n/er/drop.log = 7", "f 644 0:0 n/in = 10", "f 644 0:0 n/keep.txt = 5"},
		},
		"inline": {
			Copy{Inline: []InlineFile{{"one", []byte("1\n")}, {"two", []byte("2\n")}}, Sources: []string{"a"}, Dest: "/n", Chown: "5:6"},
			[]string{"d 755 5:6 n", "f 644 5:6 n/a = A", "f 644 5:6 n/one = 1\n", "f 644 5:6 n/two = 2\n"},
		},
		"one inline": {
			Copy{Inline: []InlineFile{{"one", []byte("1\n")}}, Dest: "/etc/one", Chmod: "0755"}, []string{"f 755 0:0 etc/one = 1\n"},
		},
		"a layer of its own": { // whatever the image has: lib is a link there, and etc another's
			Copy{Sources: []string{"a"}, Dest: "/lib/", Chown: "1:2", Link: true},
			[]string{"d 755 1:2 lib", "f 644 1:2 lib/a = A", "- l 777 0:0 lib -> usr/lib"},
		},
		"permissions in a layer of its own": { // etc is the image's, and stays open
			Copy{Sources: []string{"a"}, Dest: "/etc/secret", Chmod: "600", Link: true}, []string{"f 600 0:0 etc/secret = A"},
		},
		"hard links": {
			Copy{Sources: []string{"."}, Dest: "/n", Exclude: []string{"*", "!a", "!d/hard"}},
			[]string{"d 755 0:0 n", "f 644 0:0 n/a = A", "d 755 0:0 n/d", "f 644 0:0 n/d/hard => n/a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := r.try(t, c.copy, r.context, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestCopyRefuses(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		copy Copy
		want string
	}{
		"what is missing":              {Copy{Sources: []string{"none"}, Dest: "/n"}, "has no none"},
		"below what is missing":        {Copy{Sources: []string{"none/*"}, Dest: "/n"}, "has no none"},
		"a link that leads out":        {Copy{Sources: []string{"p/esc"}, Dest: "/n"}, "which leads out of it"},
		"a file over a directory":      {Copy{Sources: []string{"m4"}, Dest: "/"}, "/opt/existing is a directory in the image and cannot become a file"},
		"a directory over a file":      {Copy{Sources: []string{"m3"}, Dest: "/"}, "/etc/passwd is not a directory in the image"},
		"a directory over a link":      {Copy{Sources: []string{"m2"}, Dest: "/"}, "/lib is not a directory in the image"},
		"a file as directory":          {Copy{Sources: []string{"a"}, Dest: "/etc/passwd/x"}, "/etc/passwd is not a directory in the image"},
		"an unknown user":              {Copy{Sources: []string{"a"}, Dest: "/n", Chown: "who"}, `user "who": /etc/passwd of the image has no such name`},
		"an unknown group":             {Copy{Sources: []string{"a"}, Dest: "/n", Chown: "u:who"}, `group "who": /etc/group of the image has no such name`},
		"names in a layer of its own":  {Copy{Sources: []string{"a"}, Dest: "/n", Chown: "u", Link: true}, "names mean nothing where the image is not known"},
		"permissions":                  {Copy{Sources: []string{"a"}, Dest: "/n", Chmod: "99"}, `"99" are no permissions`},
		"too many permissions":         {Copy{Sources: []string{"a"}, Dest: "/n", Chmod: "10000"}, `"10000" are no permissions`},
		"symbolic permissions":         {Copy{Sources: []string{"a"}, Dest: "/n", Chmod: "u+q"}, `"u+q" are no permissions`},
		"a pattern":                    {Copy{Sources: []string{"[a"}, Dest: "/n"}, "do not pair"},
		"an exclusion":                 {Copy{Sources: []string{"a"}, Dest: "/n", Exclude: []string{"[a"}}, "do not pair"},
		"a whiteout":                   {Copy{Inline: []InlineFile{{"x", nil}}, Dest: "/.wh.x"}, "cannot be in an image"},
		"a remote file without anyone": {Copy{URLs: []URL{{Address: "x"}}, Dest: "/n"}, "remote files cannot be had here"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.try(t, c.copy, r.context, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestCopyFromImage(t *testing.T) {
	r := newRig(t)
	lower := makeLayer(t, r.st, "d 755 0:0 bin", "f 4755 3:4 bin/tool = tool", "h bin/alias => bin/tool", "l bin/sh -> /bin/tool", "c 600 0:0 null", "p 640 1:1 pipe")
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	w.WriteHeader(&tar.Header{
		Name: "bin/ping", Mode: 0o755, Typeflag: tar.TypeReg, ModTime: time.Unix(1e9, 0), PAXRecords: map[string]string{"SCHILY.xattr.security.capability": capability},
	})
	w.Close()
	upper, err := layer.FromTar(t.Context(), r.st, &b, layer.Options{ModTime: layer.KeepTimes})
	if err != nil {
		t.Fatal(err)
	}
	from := FromTree(makeTree(t, r.st, lower, upper))
	got, err := r.try(t, Copy{Sources: []string{"/bin", "null", "pipe"}, Dest: "/n/"}, from, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"d 755 0:0 n", "f 4755 3:4 n/alias = tool", "c 600 0:0 n/null", "f 755 0:0 n/ping = ", "p 640 1:1 n/pipe", "l 777 0:0 n/sh -> /bin/tool",
		"f 4755 3:4 n/tool => n/alias",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	d, err := Copy{Sources: []string{"bin/ping"}, Dest: "/p"}.Layer(t.Context(), r.st, from, r.tree, layer.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := makeTree(t, r.st, d).Lookup("/p")
	if err != nil || n.Xattrs["security.capability"] != capability || n.ModTime.Unix() != 1e9 {
		t.Errorf("got %+v, %v", n, err)
	}
	if _, err := r.try(t, Copy{Sources: []string{"none"}, Dest: "/n"}, from, nil); err == nil || !strings.Contains(err.Error(), "the image has no /none") {
		t.Errorf("got %v", err)
	}
}

func TestDirectoriesOfTheImageStay(t *testing.T) {
	r := newRig(t)
	d, err := Copy{Sources: []string{"a"}, Dest: "/abslink/new"}.Layer(t.Context(), r.st, r.context, r.tree, layer.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"d 755 0:0 opt", "d 2770 1001:1002 opt/existing", "f 644 0:0 opt/existing/new = A"}
	if diff := cmp.Diff(want, list(t, makeTree(t, r.st, d))); diff != "" {
		t.Errorf("the layer (-want +got)\n%s", diff)
	}
}

// A file that is copied again as it is does not become newer than what was made of it.
func TestSameBytesKeepTheirTime(t *testing.T) {
	st := storetest.New(t)
	tree := makeTree(t, st)
	for _, step := range []struct {
		when int64
		from []string
		want map[string]int64
	}{
		{1e9, []string{"f again = one", "f changed = two", "f empty = ", "f chmod = x"}, map[string]int64{"again": 1e9, "changed": 1e9, "empty": 1e9, "chmod": 1e9}},
		{2e9, []string{"f again = one", "f changed = six", "f empty = ", "f new = x"}, map[string]int64{"again": 1e9, "changed": 2e9, "empty": 1e9, "new": 2e9}},
	} {
		copied := Copy{Sources: []string{"."}, Dest: "/"}
		d, err := copied.Layer(t.Context(), st, openContext(t, makeDir(t, step.from...)), tree, layer.Options{ModTime: time.Unix(step.when, 0)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int64{}
		tree = makeTree(t, st, d)
		for _, n := range tree.Root().Children() {
			got[n.Name()] = n.ModTime.Unix()
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("times (-want +got)\n%s", diff)
		}
	}
}

func TestSameEverywhere(t *testing.T) {
	st := storetest.New(t)
	empty := makeTree(t, st)
	var layers []layer.Descriptor
	var digests []store.Digest
	lines := append(slices.Clone(theContext), "f .dockerignore = p/fifo\n")
	for range 2 {
		c := openContext(t, makeDir(t, lines...))
		lines = slices.Clone(lines)
		digest, err := c.Digest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d, err := c.Layer(t.Context(), st, layer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		other, err := Copy{Sources: []string{"."}, Dest: "/"}.Layer(t.Context(), st, c, empty, layer.Options{}, nil)
		if err != nil || other != d {
			t.Errorf("got %v and %v, %v", d, other, err)
		}
		layers, digests = append(layers, d), append(digests, digest)
		time.Sleep(10 * time.Millisecond)
	}
	if layers[0] != layers[1] || digests[0] != digests[1] {
		t.Errorf("not the same: %v, %v", layers, digests)
	}
}

func TestDigestTells(t *testing.T) {
	base := []string{"f a = A", "d d", "f d/x = X", "l ln -> a", "f two = T", "f .dockerignore = ignored\n", "f ignored = I"}
	digest := func(c Copy, lines ...string) store.Digest {
		t.Helper()
		d, err := c.Digest(t.Context(), openContext(t, makeDir(t, lines...)))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	with := func(more ...string) []string { return append(base[:len(base):len(base)], more...) }
	all := Copy{Sources: []string{"."}, Dest: "/n"}
	want := digest(all, base...)
	for _, same := range [][]string{with("f ignored = changed"), with("d d")} {
		if digest(all, same...) != want {
			t.Errorf("%q: another digest", same[len(base):])
		}
	}
	if digest(Copy{Sources: []string{"./"}, Dest: "/n"}, base...) != want {
		t.Error("another digest for another spelling")
	}
	one := Copy{Sources: []string{"a"}, Dest: "/n"}
	if digest(one, base...) != digest(one, with("h other => a")...) {
		t.Error("another digest for a name elsewhere")
	}
	seen := map[store.Digest]string{want: "the first"}
	tells := func(name string, d store.Digest) {
		t.Helper()
		if other, ok := seen[d]; ok {
			t.Errorf("%s: same digest as %s", name, other)
		}
		seen[d] = name
	}
	for _, lines := range [][]string{with("f a = B"), with("f 600 0:0 a = A"), with("f d/y = "), with("d e"), with("f e = "), with("l e -> a"), with("h e => a")} {
		tells(lines[len(base)], digest(all, lines...))
	}
	for _, c := range []Copy{
		{Sources: []string{"."}, Dest: "/n/"},
		{Sources: []string{"."}, Dest: "/n", Chown: "1"},
		{Sources: []string{"."}, Dest: "/n", Chmod: "700"},
		{Sources: []string{"."}, Dest: "/n", Extract: true},
		{Sources: []string{"."}, Dest: "/n", Exclude: []string{"a"}},
		{Sources: []string{"a"}, Dest: "/n"},
		{Sources: []string{"a", "b*"}, Dest: "/n"},
		{Sources: []string{"a"}, Dest: "/n", Parents: true},
		{Sources: []string{"d/x"}, Dest: "/n", Parents: true},
		{Inline: []InlineFile{{"a", []byte("A")}}, Dest: "/n"},
		{Sources: []string{"ln"}, Dest: "/n/"},
	} {
		tells(fmt.Sprintf("%+v", c), digest(c, base...))
	}
}

func TestDownload(t *testing.T) {
	r := newRig(t)
	content := "remote"
	open := func(_ context.Context, u URL) (io.ReadCloser, string, error) {
		if u.Address == "bad" {
			return nil, "", errors.New("no such host")
		}
		return io.NopCloser(strings.NewReader(content)), path.Base(u.Address), nil
	}
	right := store.DigestOf([]byte(content))
	for name, c := range map[string]struct {
		copy Copy
		want []string
		err  string
	}{
		"into a directory":  {copy: Copy{URLs: []URL{{"http://x/dir/f.tar", right}}, Dest: "/n/", Extract: true}, want: []string{"d 755 0:0 n", "f 600 0:0 n/f.tar = remote"}},
		"as a file":         {copy: Copy{URLs: []URL{{"http://x/dir/f", ""}}, Dest: "/n", Chmod: "644", Chown: "1"}, want: []string{"f 644 1:1 n = remote"}},
		"without a name":    {copy: Copy{URLs: []URL{{"/", ""}}, Dest: "/n/"}, err: "gives the file no name"},
		"wrong":             {copy: Copy{URLs: []URL{{"http://x/f", store.DigestOf(nil)}}, Dest: "/n/"}, err: "sha256"},
		"not to be had":     {copy: Copy{URLs: []URL{{"bad", ""}}, Dest: "/n/"}, err: "add bad: no such host"},
		"wrong, and secret": {copy: Copy{URLs: []URL{{"http://me:hunter2@x/f?sig=hunter2", store.DigestOf(nil)}}, Dest: "/n/"}, err: "add http://x/f?…: "},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := r.try(t, c.copy, nil, open)
			if fmt.Sprint(err) != c.err && (c.err == "" || err == nil || !strings.Contains(err.Error(), c.err)) && (err != nil || c.err != "") {
				t.Errorf("got %v, want %q", err, c.err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestChmod(t *testing.T) {
	for _, c := range []struct {
		text  string
		typ   layer.Type
		mode  uint32
		wants uint32
	}{
		{"755", layer.Regular, 0o600, 0o755},
		{"0644", layer.Dir, 0o700, 0o644},
		{"+x", layer.Regular, 0o644, 0o755},
		{"u+x,g-r", layer.Regular, 0o644, 0o704},
		{"a+X", layer.Regular, 0o644, 0o644},
		{"a+X", layer.Regular, 0o744, 0o755},
		{"a+X", layer.Dir, 0o600, 0o711},
		{"go=u", layer.Regular, 0o750, 0o777},
		{"go=", layer.Regular, 0o777, 0o700},
		{"u=rw,go=r", layer.Regular, 0o4755, 0o644},
		{"ug+s", layer.Regular, 0o755, 0o6755},
		{"+t", layer.Dir, 0o777, 0o1777},
		{"u-w+x", layer.Regular, 0o644, 0o544},
		{"g=rx", layer.Dir, 0o2777, 0o2757},
	} {
		change, err := parseChmod(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got := change(c.typ, c.mode); got != c.wants {
			t.Errorf("%s of %o: got %o, want %o", c.text, c.mode, got, c.wants)
		}
	}
}

// Of several files that become one, somebody may have wanted each.
func TestCopyWarnsOfNames(t *testing.T) {
	r := newRig(t)
	var seen warnings
	ctx := progress.With(t.Context(), &seen)
	for _, c := range []Copy{
		{Sources: []string{"glob/[[z]*"}, Dest: "/n"},
		{Sources: []string{"glob/[[z]*"}, Dest: "/n/"},
		{Sources: []string{"glob/[[z]*"}, Dest: "/opt/existing"},
		{Sources: []string{"a"}, Dest: "/n"},
	} {
		if _, err := c.Layer(ctx, r.st, r.context, r.tree, layer.Options{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 1 || !strings.Contains(seen[0], "glob/[[z]* matches 2 files, and all of them become /n: of the last one, z") {
		t.Errorf("%q", seen)
	}
}

// warnings are those that were given.
type warnings []string

func (w *warnings) Emit(e progress.Event) {
	if e.Kind == progress.Warning {
		*w = append(*w, e.Text)
	}
}

// A link is what it says and nothing else: its target is not looked at, and what had its name is gone but for a directory.
func TestLink(t *testing.T) {
	r := newRig(t)
	made := func(l Link) []string {
		t.Helper()
		d, err := l.Layer(t.Context(), r.st, r.tree, layer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if d == (layer.Descriptor{}) {
			return nil
		}
		return list(t, makeTree(t, r.st, d))
	}
	for _, test := range []struct {
		link Link
		want []string
	}{
		{Link{"../lib/nowhere", "/abslink/x/l", "u"}, []string{"d 755 0:0 opt", "d 2770 1001:1002 opt/existing", "d 755 1001:1002 opt/existing/x", "l 777 1001:1002 opt/existing/x/l -> ../lib/nowhere"}},
		{Link{"/opt/other", "/abslink", ""}, []string{"l 777 0:0 abslink -> /opt/other"}},
		{Link{"shadow", "/etc/passwd", ""}, []string{"d 755 0:0 etc", "l 777 0:0 etc/passwd -> shadow"}},
		{Link{"/opt/existing", "/abslink", ""}, nil}, // which is there
	} {
		if diff := cmp.Diff(test.want, made(test.link)); diff != "" {
			t.Errorf("%+v (-want +got)\n%s", test.link, diff)
		}
	}
	for _, l := range []Link{{"x", "/", ""}, {"x", "/opt", ""}, {"x", "/etc/passwd/x", ""}, {"x", "/x", "nobody-here"}} {
		if _, err := l.Layer(t.Context(), r.st, r.tree, layer.Options{}); err == nil {
			t.Errorf("%+v: no error", l)
		}
	}
}

func TestMakeDir(t *testing.T) {
	r := newRig(t)
	for _, dir := range []string{"/", "/opt/existing", "/abslink/", "/lib"} {
		if d, err := (Dir{Path: dir, Owner: "u"}).Layer(t.Context(), r.st, r.tree, layer.Options{}); d != (layer.Descriptor{}) || err != nil {
			t.Errorf("%s: got %v, %v", dir, d, err)
		}
	}
	if _, err := (Dir{Path: "/etc/passwd/x"}).Layer(t.Context(), r.st, r.tree, layer.Options{}); err == nil {
		t.Error("no error below a file")
	}
	d, err := Dir{Path: "/abslink/x/y", Owner: "u"}.Layer(t.Context(), r.st, r.tree, layer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"d 755 0:0 opt", "d 2770 1001:1002 opt/existing", "d 755 1001:1002 opt/existing/x", "d 755 1001:1002 opt/existing/x/y"}
	if diff := cmp.Diff(want, list(t, makeTree(t, r.st, d))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestStepsShareAContext(t *testing.T) {
	r := newRig(t)
	var group errgroup.Group
	digests := make([]store.Digest, 8)
	for i := range digests {
		group.Go(func() (err error) {
			c := Copy{Sources: []string{"d", "glob", "a"}, Dest: "/n/"}
			if i%2 == 0 {
				if _, err := c.Layer(t.Context(), r.st, r.context, r.tree, layer.Options{}, nil); err != nil {
					return err
				}
			}
			digests[i], err = c.Digest(t.Context(), r.context)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(slices.Compact(digests)) != 1 {
		t.Errorf("got %q", digests)
	}
}

func TestCopyCanBeStopped(t *testing.T) {
	r := newRig(t)
	ctx, stop := context.WithCancelCause(t.Context())
	why := errors.New("stopped")
	stop(why)
	c := Copy{Sources: []string{"."}, Dest: "/n/"}
	if _, err := c.Layer(ctx, r.st, r.context, r.tree, layer.Options{}, nil); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Digest(ctx, r.context); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

// BenchmarkContext copies 20 000 small files, and one large one.
func BenchmarkContext(b *testing.B) {
	dir := b.TempDir()
	for i := range 200 {
		sub := filepath.Join(dir, fmt.Sprintf("d%03d", i))
		if err := os.Mkdir(sub, 0o755); err != nil {
			b.Fatal(err)
		}
		for k := range 100 {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("f%d", k)), bytes.Repeat([]byte{byte(i), byte(k)}, 2048), 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	f, err := os.Create(filepath.Join(dir, "large"))
	if err != nil {
		b.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{})
	if _, err := io.CopyN(f, random, 256<<20); err != nil {
		b.Fatal(err)
	}
	f.Close()
	open := func() *Context { return openContext(b, dir) }
	b.Run("digest", func(b *testing.B) {
		for b.Loop() {
			if _, err := open().Digest(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("one file's digest", func(b *testing.B) {
		for b.Loop() {
			if _, err := (Copy{Sources: []string{"d001/f1"}, Dest: "/"}).Digest(b.Context(), open()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("layer", func(b *testing.B) {
		st := storetest.New(b)
		for b.Loop() {
			if _, err := open().Layer(b.Context(), st, layer.Options{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
