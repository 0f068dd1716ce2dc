package test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/tooltest"
)

// ailing is an image with one thing wrong with it, which one rule has to find.
type ailing struct {
	rule   string
	from   string // what the image comes as: "dir", "tar", "oci", "sqsh" or, for files with holes, "mksquashfs"
	target string // flags of sconce check
	image  content
	cure   func(*content) // changes one thing, and nothing is wrong any more

	severity, path, message string
	also                    string // other rules that have something to say, cured or not
}

// content is what an image consists of, besides what all have.
type content struct {
	files       files
	below       files // a layer below
	env, labels map[string]string
	cmd         []string
}

// files are those of an image by path, without a slash in front.
type files map[string]file

// file is a regular file, unless it says otherwise.
type file struct {
	data string
	mode int64  // 0: 0o644
	link string // of a symbolic link, its target
	kind byte   // of tar
	size int64  // zeros up to here
	from string // the file that data is in
	at   int64  // of from, a byte that is another: to
	to   byte
}

func text(data string) file            { return file{data: data} }
func program(data string) file         { return file{data: data, mode: 0o755} }
func linkTo(target string) file        { return file{link: target, kind: tar.TypeSymlink} }
func withMode(f file, mode int64) file { f.mode = mode; return f }
func zeros(size int64) file            { return file{size: size} }

// The cures.

func without(name string) func(*content) { return func(c *content) { delete(c.files, name) } }

func withFile(name string, f file) func(*content) { return func(c *content) { c.files[name] = f } }

func withoutVariable(name string) func(*content) { return func(c *content) { delete(c.env, name) } }

func withVariable(name, value string) func(*content) { return func(c *content) { c.env[name] = value } }

func withLabel(name, value string) func(c *content) {
	return func(c *content) { c.labels[name] = value }
}

func environment(pairs ...string) (env map[string]string) {
	env = map[string]string{}
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		env[k] = v
	}
	return env
}

// join puts the files of several parts together.
func join(parts ...files) files {
	all := files{}
	for _, p := range parts {
		maps.Copy(all, p)
	}
	return all
}

// corpus has an image for each rule.
func corpus(b binaries) []ailing {
	return slices.Concat(
		deviceCodeImages(b), driverImages(b), duplicateImages(b), linkImages(b), pythonImages(b), environmentImages(b), fileImages(b), networkImages(b), condaImages(b),
	)
}

// Each rule finds what it is for in an image that was broken on purpose, and nothing in the same image with one thing repaired.
func TestCorpus(t *testing.T) {
	begin(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("the fixtures with device code, and the names of files here, are those of amd64")
	}
	p := newPlace(t, nil)
	b := corpusBinaries(t)
	images := corpus(b)
	wantRulesCovered(t, p, images)
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range images {
		t.Run(images[i].rule, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			c := corpusImage{t: t, place: p.in(t), binaries: b, ailing: &images[i]}
			c.run()
		})
	}
}

// in is the same place for a part of the test.
func (p *place) in(t *testing.T) *place {
	q := *p
	q.t = t
	return &q
}

// wantRulesCovered fails when there is a rule without an image, or an image without a rule.
func wantRulesCovered(t *testing.T, p *place, images []ailing) {
	t.Helper()
	var rules []struct{ ID, Severity string }
	if err := json.Unmarshal([]byte(p.must("check", "--list-rules", "--json").stdout), &rules); err != nil {
		t.Fatal(err)
	}
	from := map[string]int{}
	for _, r := range rules {
		if !slices.ContainsFunc(images, func(a ailing) bool { return a.rule == r.ID }) {
			t.Errorf("no image of the corpus is made for the rule %s", r.ID)
		}
	}
	for _, a := range images {
		from[a.from]++
		if !slices.ContainsFunc(rules, func(r struct{ ID, Severity string }) bool { return r.ID == a.rule }) {
			t.Errorf("there is no rule %s", a.rule)
		}
	}
	for _, kind := range []string{"dir", "tar", "oci", "sqsh"} {
		if from[kind] < 5 {
			t.Errorf("%d images come as %s", from[kind], kind)
		}
	}
}

// corpusImage is an image on its way through the check.
type corpusImage struct {
	t        *testing.T
	place    *place
	binaries binaries
	*ailing
}

func (c *corpusImage) run() {
	c.t.Helper()
	ill := c.check("ill", c.image)
	if n := ill.count(c.rule); n != 1 {
		c.t.Errorf("%d findings instead of one: %+v", n, ill.Findings)
	}
	at := c.path
	if at != "" {
		at = "/" + at // findings name files from the root on
	}
	if f := ill.find(c.t, c.rule); f.Severity != c.severity || f.Path != at || f.Message != c.message || f.Remedy == "" {
		c.t.Errorf("got\n\t%s: %s (%s)\nwant\n\t%s: %s (%s)", f.Severity, f.Message, f.Path, c.severity, c.message, at)
	}
	c.wantOnly(ill, c.rule, c.also)
	healthy := content{join(c.image.files), join(c.image.below), environment(), environment(), c.image.cmd}
	maps.Copy(healthy.env, c.image.env)
	maps.Copy(healthy.labels, c.image.labels)
	c.cure(&healthy)
	c.wantOnly(c.check("cured", healthy), c.also)
}

// wantOnly fails when others than these rules found something.
func (c *corpusImage) wantOnly(v verdict, rules ...string) {
	c.t.Helper()
	known := strings.Fields(strings.Join(rules, " "))
	for _, f := range v.Findings {
		if !slices.Contains(known, f.Rule) {
			c.t.Errorf("%s of %s: %s", f.Severity, f.Rule, f.Message)
		}
	}
}

func (v verdict) count(rule string) (n int) {
	for _, f := range v.Findings {
		if f.Rule == rule {
			n++
		}
	}
	return n
}

// check writes an image and has it checked.
func (c *corpusImage) check(state string, image content) verdict {
	c.t.Helper()
	image.files = join(c.binaries.base(), image.files)
	args := append([]string{"check", "--json", c.write(c.place.path(path.Base(c.t.Name()), state), image)}, strings.Fields(c.target)...)
	r := c.place.sconce(args...)
	var v verdict
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		c.t.Fatalf("%v: %v", err, r)
	}
	if want := map[bool]int{false: 0, true: 3}[v.Errors > 0]; r.code != want {
		c.t.Errorf("exit code %d, want %d: %v", r.code, want, r)
	}
	return v
}

// write writes an image in its form and returns its reference.
func (c *corpusImage) write(dir string, image content) string {
	c.t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		c.t.Fatal(err)
	}
	if len(image.env)+len(image.labels)+len(image.cmd) > 0 && c.from != "oci" && c.from != "sqsh" {
		c.t.Fatalf("a %s has no configuration", c.from)
	}
	switch c.from {
	case "dir":
		image.files.toDir(c.t, filepath.Join(dir, "root"))
		return "dir:" + filepath.Join(dir, "root")
	case "tar":
		name := filepath.Join(dir, "root.tar")
		if err := os.WriteFile(name, image.files.toTar(c.t).bytes(), 0o644); err != nil {
			c.t.Fatal(err)
		}
		return "tar:" + name
	case "mksquashfs":
		image.files.toDir(c.t, filepath.Join(dir, "root"))
		do(c.t, tooltest.Path(c.t, "mksquashfs"), filepath.Join(dir, "root"), filepath.Join(dir, "root.sqsh"), "-quiet", "-no-progress", "-Xcompression-level", "1")
		return filepath.Join(dir, "root.sqsh")
	}
	config := v1.Config{Labels: image.labels, Cmd: image.cmd}
	for _, k := range slices.Sorted(maps.Keys(image.env)) {
		config.Env = append(config.Env, k+"="+image.env[k])
	}
	layers := []v1.Layer{image.files.toTar(c.t).plain()}
	if len(image.below) > 0 {
		layers = []v1.Layer{image.below.toTar(c.t).gzipped(), layers[0]}
	}
	ref := writeLayout(c.t, filepath.Join(dir, "layout"), config, layers...)
	if c.from == "sqsh" {
		c.place.must("copy", ref, filepath.Join(dir, "image.sqsh"))
		return filepath.Join(dir, "image.sqsh")
	}
	return ref
}

// toTar makes a layer of the files and the directories that they are in.
func (fs files) toTar(t *testing.T) *tarLayer {
	l := newTarLayer(t)
	made := map[string]bool{".": true}
	var dirs func(name string)
	dirs = func(name string) {
		if !made[name] {
			made[name] = true
			dirs(path.Dir(name))
			if _, own := fs[name]; !own {
				l.dir(name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fs)) {
		f := fs[name]
		dirs(path.Dir(name))
		l.add(tar.Header{Name: name, Typeflag: f.kind, Mode: f.mode, Linkname: f.link}, f.content())
		made[name] = true
	}
	return l
}

func (f file) content() string {
	return f.data + strings.Repeat("\x00", max(0, int(f.size)-len(f.data)))
}

// toDir writes the files below a directory. No link leads out of it.
func (fs files) toDir(t *testing.T, dir string) {
	t.Helper()
	err := os.Mkdir(dir, 0o755)
	var root *os.Root
	if err == nil {
		root, err = os.OpenRoot(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range slices.Sorted(maps.Keys(fs)) {
		if err := fs[name].write(root, name); err != nil {
			t.Fatal(err)
		}
	}
}

func (f file) write(root *os.Root, name string) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	mode := os.FileMode(f.mode & 0o777)
	if f.mode == 0 {
		mode = 0o644
	}
	if f.mode&0o4000 != 0 {
		mode |= os.ModeSetuid
	}
	if f.mode&0o1000 != 0 {
		mode |= os.ModeSticky
	}
	switch f.kind {
	case tar.TypeSymlink:
		return root.Symlink(f.link, name)
	case tar.TypeDir:
		return errors.Join(root.MkdirAll(name, 0o755), root.Chmod(name, mode))
	}
	h, err := root.Create(name)
	if err != nil {
		return err
	}
	defer h.Close()
	if f.from != "" {
		return f.copy(h)
	}
	_, err = h.WriteString(f.data)
	if f.size > 0 {
		err = errors.Join(err, h.Truncate(f.size))
	}
	return errors.Join(err, h.Chmod(mode))
}

// copy writes what another file has, with holes where that has zeros.
func (f file) copy(h *os.File) error {
	from, err := os.Open(f.from)
	if err != nil {
		return err
	}
	defer from.Close()
	piece, end := make([]byte, 1<<20), int64(0)
	none := make([]byte, len(piece))
	for {
		n, err := from.ReadAt(piece, end)
		if !bytes.Equal(piece[:n], none[:n]) {
			_, err := h.WriteAt(piece[:n], end)
			if err != nil {
				return err
			}
		}
		end += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	err = h.Truncate(end)
	if f.at > 0 {
		_, err = h.WriteAt([]byte{f.to}, f.at)
	}
	return err
}

// recipeKey is how a remedy names a key of the recipe: "[image] env" or "image.env".
var recipeKey = regexp.MustCompile(`\[([a-z.]+)\] ([a-z-]+)|\b((?:base|target|system|python|image|slim|check|publish)\.[a-z.-]+[a-z])`)

// What a remedy says about the recipe can be written into one.
func TestRemediesNameKeys(t *testing.T) {
	begin(t)
	p := newPlace(t, nil)
	var rules []struct{ ID, Remedy string }
	var schema map[string]any
	err := json.Unmarshal([]byte(p.must("check", "--list-rules", "--json").stdout), &rules)
	if err = errors.Join(err, json.Unmarshal([]byte(p.must("schema").stdout), &schema)); err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, r := range rules {
		for _, m := range recipeKey.FindAllStringSubmatch(r.Remedy, -1) {
			if path.Ext(m[3]) == ".sqsh" { // a file's name
				continue
			}
			named++
			if key := m[1] + "." + m[2] + m[3]; !inSchema(schema, strings.Trim(key, ".")) {
				t.Errorf("%s: there is no key %s in a recipe: %s", r.ID, strings.Trim(key, "."), r.Remedy)
			}
		}
	}
	if named < 10 {
		t.Errorf("only %d keys are named", named)
	}
}

// inSchema reports whether a JSON Schema of tables has a key. What follows the name of a free table may be anything.
func inSchema(schema map[string]any, key string) bool {
	for name := range strings.SplitSeq(key, ".") {
		properties, _ := schema["properties"].(map[string]any)
		next, ok := properties[name].(map[string]any)
		if !ok {
			return schema["additionalProperties"] != nil && schema["additionalProperties"] != false
		}
		schema = next
	}
	return true
}
