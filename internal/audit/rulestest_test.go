package audit

import (
	"bytes"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/facts"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/layer"
)

// mapRoot is a file system without links: files by path, without a slash in front, and directories, which end in one.
type mapRoot map[string]string

func (r mapRoot) info(name string) (facts.Info, error) {
	name = strings.Trim(path.Clean("/"+name), "/")
	if data, ok := r[name]; ok {
		return facts.Info{Path: name, Type: layer.Regular, Mode: 0o644, Size: int64(len(data))}, nil
	}
	for p := range r {
		if name == "" || strings.HasPrefix(p, name+"/") {
			return facts.Info{Path: name, Type: layer.Dir, Mode: 0o755}, nil
		}
	}
	return facts.Info{}, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
}

func (r mapRoot) Stat(name string) (facts.Info, error) { return r.info(name) }

func (r mapRoot) Resolve(name string) (string, error) {
	i, err := r.info(name)
	return "/" + i.Path, err
}

func (r mapRoot) Open(name string) (elfx.Handle, error) {
	i, err := r.info(name)
	if err != nil {
		return nil, err
	}
	if i.Type != layer.Regular {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	return mapFile{bytes.NewReader([]byte(r[i.Path]))}, nil
}

type mapFile struct{ *bytes.Reader }

func (mapFile) Close() error  { return nil }
func (f mapFile) Size() int64 { return f.Reader.Size() }

func (r mapRoot) ReadDir(name string) ([]string, error) {
	name = strings.Trim(path.Clean("/"+name), "/")
	var names []string
	for p := range r {
		if rest, ok := strings.CutPrefix("/"+p, path.Join("/", name)+"/"); ok || name == "" {
			first, _, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
			names = append(names, first)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func (r mapRoot) All(visit func(facts.Info) error) error {
	for p := range r {
		i, err := r.info(p)
		if err == nil {
			err = visit(i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sample is the facts of an image that a test makes up.
type sample facts.Facts

// imageWith makes the facts of an image with these variables.
func imageWith(env ...string) *sample {
	return &sample{
		Platform: "linux/amd64", Config: v1.Config{Env: env},
		Root: mapRoot{"usr/bin/": "", "usr/lib/libc.so.6": "", "opt/venv/bin/python": "", "opt/venv/lib/python3.11/": ""},
	}
}

// runs gives the facts code for GPUs.
func (f *sample) withGPU() *sample {
	f.GPU = &facts.GPUReport{Libraries: []facts.Library{{Path: "opt/venv/lib/libtorch_cuda.so", Linked: true, SASS: []facts.Code{{Arch: "90"}}}}}
	return f
}

func (f *sample) withFiles(files map[string]string) *sample {
	r := mapRoot{}
	for p, data := range f.Root.(mapRoot) {
		r[p] = data
	}
	for p, data := range files {
		r[p] = data
	}
	f.Root = r
	return f
}

func (f *sample) withPaths(paths ...facts.Info) *sample {
	f.Paths = paths
	return f
}

// regularInfo, directoryInfo: what a walk shows.
func regularInfo(p string, mode uint32, size int64) facts.Info {
	return facts.Info{Path: p, Type: layer.Regular, Mode: mode, Size: size}
}

func directoryInfo(p string, mode uint32) facts.Info {
	return facts.Info{Path: p, Type: layer.Dir, Mode: mode}
}

// ruleCase is an image and a target, and what one rule says of them.
type ruleCase struct {
	name   string
	facts  *sample
	target cluster.Profile
	want   []string // "severity: message"
}

var (
	sentence = regexp.MustCompile(`^(The|An|It|This|These|Some|No|All|Up|Each|Every)\b`)
	capital  = regexp.MustCompile(`^[A-Z][a-z]`) // of a word, and no variable
	relative = regexp.MustCompile(`(^|[\s(])(bin|etc|home|lib|lib64|opt|root|sbin|srv|usr|var)/`)
)

// wellSaid checks that findings speak with one voice: what was seen and what to do are said as hints are, in small letters and without
// a full stop, why it matters in sentences, and files are named from the root on.
func wellSaid(t *testing.T, f Finding) {
	t.Helper()
	if f.Message == "" || sentence.MatchString(f.Message) || strings.HasSuffix(f.Message, ".") {
		t.Errorf("%s: message %q", f.Rule, f.Message)
	}
	if !strings.HasSuffix(f.Why, ".") || strings.HasPrefix(f.Why, "the ") {
		t.Errorf("%s: why %q", f.Rule, f.Why)
	}
	if f.Remedy == "" || capital.MatchString(f.Remedy) || strings.HasSuffix(f.Remedy, ".") {
		t.Errorf("%s: remedy %q", f.Rule, f.Remedy)
	}
	for _, outdated := range []string{"pip wheel", "base.bootstrap", "apt-get install"} {
		if strings.Contains(f.Remedy, outdated) {
			t.Errorf("%s: the recipe has a key for what the remedy does by %s: %q", f.Rule, outdated, f.Remedy)
		}
	}
	if f.Path != "" && !strings.HasPrefix(f.Path, "/") {
		t.Errorf("%s: path %q", f.Rule, f.Path)
	}
	for _, text := range append([]string{f.Message}, f.Seen...) {
		if relative.MatchString(text) {
			t.Errorf("%s: %q names a file without a slash in front", f.Rule, text)
		}
	}
}

// checkRule runs one rule.
func checkRule(t *testing.T, id string, cases ...ruleCase) {
	t.Helper()
	i := slices.IndexFunc(Rules(), func(r Rule) bool { return r.ID == id })
	if i < 0 {
		t.Fatalf("no rule %s", id)
	}
	rule := Rules()[i]
	for _, c := range cases {
		t.Run(id+"/"+c.name, func(t *testing.T) {
			var got []string
			err := rule.look(&Subject{Facts: (*facts.Facts)(c.facts), Target: c.target, Context: t.Context()}, func(f Finding) {
				f = rule.complete(f)
				got = append(got, string(f.Severity)+": "+f.Message)
				wellSaid(t, f)
			})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(c.want, "\n\t"))
			}
		})
	}
}

var (
	onEnroot     = cluster.Profile{Runtime: cluster.Enroot, GPU: []string{"9.0"}}
	onApptainer  = cluster.Profile{Runtime: cluster.Apptainer, GPU: []string{"9.0"}}
	onEngine     = cluster.Profile{Runtime: cluster.ContainerEngine, Fabric: cluster.Slingshot, GPU: []string{"9.0"}}
	onPodman     = cluster.Profile{Runtime: cluster.Podman}
	onInfiniBand = cluster.Profile{Fabric: cluster.InfiniBand}
	onSlingshot  = cluster.Profile{Fabric: cluster.Slingshot}
)

func sortInfos(list []facts.Info) {
	slices.SortFunc(list, func(a, b facts.Info) int { return strings.Compare(a.Path, b.Path) })
}
