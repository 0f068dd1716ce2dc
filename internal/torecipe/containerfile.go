package torecipe

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/containerfile"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/searchpath"
)

// Containerfile is a Containerfile that has been read.
type Containerfile struct {
	File    string
	Context string // directory that COPY and ADD take files from
	Ignored string // file that says what the context leaves out; "" is none
	Build   *containerfile.Build
	Base    v1.Config // of the image that it begins with
}

// FromContainerfile writes a recipe with a step for each instruction that changes files, and what the configuration says
// besides that of the base.
//
// notes are what the user should know.
func FromContainerfile(c Containerfile, o Options) (text []byte, notes []string, err error) {
	t := &translator{Containerfile: c, options: o, refused: refusals{file: c.File}}
	d := t.draft()
	if err := t.refused.err(); err != nil {
		return nil, nil, err
	}
	name, err := beside(o.Dir, c.File)
	if err != nil {
		return nil, nil, err
	}
	text, err = d.text("What " + name + " says. A step for each of its instructions that changes files.")
	return text, t.notes, err
}

type translator struct {
	Containerfile
	options Options
	refused refusals
	stage   *containerfile.Stage
	notes   []string
}

func (t *translator) draft() *draft {
	t.stage = t.Build.Stages[len(t.Build.Stages)-1]
	d := &draft{Name: t.options.Name, Base: draftBase{Image: t.stage.From}}
	switch {
	case len(t.Build.Stages) > 1:
		t.refused.add(t.lineOf("FROM"), "a recipe has one stage, and this needs %d: build the file as it is, with `sconce build -f`", len(t.Build.Stages))
		return d
	case t.stage.From == containerfile.Scratch:
		t.refused.add(t.lineOf("FROM"), "a recipe is based on an image, and this on nothing")
		return d
	}
	for i, op := range t.stage.Ops {
		switch {
		case op.Run != nil:
			d.Steps = append(d.Steps, t.run(op))
		case op.Copy != nil:
			d.Steps = append(d.Steps, t.copy(op))
		case op.WorkDir != nil && !t.enteredNext(i):
			d.Steps = append(d.Steps, workdir(op.WorkDir))
		}
	}
	d.Image = t.image()
	return d
}

// workdir makes a directory that nothing else makes.
func workdir(w *containerfile.WorkDir) step {
	dir := quote.Single(w.Dir)
	if user := rootless(w.User); user != "" {
		return step{Run: fmt.Sprintf("[ -d %s ] || { mkdir -p -- %s && chown %s %s; }", dir, dir, quote.Single(withGroup(user)), dir)}
	}
	return step{Run: "mkdir -p -- " + dir}
}

// withGroup names the group that goes with a user who has none named: the number, or that of the image's /etc/passwd.
func withGroup(user string) string {
	if strings.Contains(user, ":") {
		return user
	}
	if _, err := strconv.ParseUint(user, 10, 32); err == nil {
		return user + ":" + user
	}
	return user + ":"
}

// enteredNext reports whether the next step begins in the directory that op i makes, and so makes it just so.
func (t *translator) enteredNext(i int) bool {
	made := t.stage.Ops[i].WorkDir
	for _, op := range t.stage.Ops[i+1:] {
		switch {
		case op.Run != nil:
			return op.Run.WorkDir == made.Dir && rootless(made.User) == ""
		case op.Copy != nil:
			return false
		}
	}
	return false
}

// one is a program alone, which a shell starts just as the kernel does.
var one = lazyregexp.New(`^[A-Za-z0-9_./-]+$`)

func (t *translator) run(op containerfile.Op) step {
	r := op.Run
	last := len(r.Args) - 1
	s := step{Run: r.Args[last], Shell: r.Args[:last], Env: t.envBesides(r.Env, t.Base.Env), Workdir: r.WorkDir, User: rootless(r.User)}
	switch {
	case len(r.Mounts) > 0:
		t.refused.add(op.Line, "RUN --mount: write the mount of the step by hand, as docs/recipe.md has them under mounts")
	case len(r.Files) > 0:
		t.refused.add(op.Line, "RUN with a script that names its own interpreter: write the step's shell by hand")
	case last == 0 && !one.MatchString(r.Args[0]):
		t.refused.add(op.Line, "RUN [%q]: a step's shell would read this program's name", r.Args[0])
	}
	if r.NoNetwork {
		s.Network = new(bool)
	}
	return s
}

// rootless leaves out the user that steps have anyway.
func rootless(user string) string {
	if user == "root" || user == "0" {
		return ""
	}
	return user
}

func (t *translator) copy(op containerfile.Op) step {
	c := op.Copy
	s := step{User: rootless(c.Chown)}
	switch {
	case len(c.URLs) > 0:
		t.refused.add(op.Line, "ADD of an address: download it in a step's run")
	case len(c.Inline) > 0:
		t.refused.add(op.Line, "%s of text in the file itself: write the text to a file", firstWords(op.Text))
	case !c.From.Context:
		t.refused.add(op.Line, "%s: the files are not from the build context", firstWords(op.Text))
	case c.Extract && slices.ContainsFunc(c.Sources, mayBeArchive):
		t.refused.add(op.Line, "ADD of an archive unpacks it: copy it and unpack it in a step's run")
	case c.Chmod != "" || c.Parents || c.Link || len(c.Exclude) > 0:
		t.refused.add(op.Line, "%s: a step's copy has no --chmod, --parents, --link or --exclude", firstWords(op.Text))
	case t.Ignored != "":
		t.refused.add(op.Line, "%s leaves files out of the context, and a step's copy takes all that it names", t.Ignored)
	}
	for _, source := range c.Sources {
		text, err := t.copyText(source, c.Dest, len(c.Sources) > 1)
		if err != nil {
			t.refused.add(op.Line, "%v", err)
		}
		s.Copy = append(s.Copy, text)
	}
	return s
}

// copyText writes SRC:DEST from the recipe's directory on.
func (t *translator) copyText(source, dest string, many bool) (string, error) {
	from, err := beside(t.options.Dir, filepath.Join(t.Context, source))
	if err != nil {
		return "", err
	}
	if from == "." || from == ".." || strings.HasSuffix(from, "/..") {
		t.notes = append(t.notes, "the recipe and its lock lie in the directory that is copied to "+dest+", and are copied as well")
	}
	if strings.HasSuffix(dest, "/.") {
		dest = strings.TrimSuffix(dest, ".")
	}
	if many && !strings.HasSuffix(dest, "/") {
		dest += "/"
	}
	if strings.Contains(dest, ":") {
		return "", fmt.Errorf("a step's copy cannot name %q: there is a colon in it", dest)
	}
	return from + ":" + dest, nil
}

// mayBeArchive reports whether ADD may unpack a file: a name without an extension of text may be anything.
func mayBeArchive(source string) bool {
	for _, ext := range []string{".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".tbz2", ".txz"} {
		if strings.HasSuffix(source, ext) {
			return true
		}
	}
	return strings.ContainsAny(source, "*?[")
}

// image is what the image says of itself besides its base.
func (t *translator) image() draftImage {
	c := t.stage.Config
	i := draftImage{Env: t.envBesides(c.Env, t.Base.Env), User: changed(c.User, t.Base.User), Workdir: changed(c.WorkingDir, t.Base.WorkingDir)}
	if !slices.Equal(c.Entrypoint, t.Base.Entrypoint) {
		i.Entrypoint = c.Entrypoint
	}
	if !slices.Equal(c.Cmd, t.Base.Cmd) {
		i.Cmd = c.Cmd
	}
	for name, value := range c.Labels {
		if old, had := t.Base.Labels[name]; !had || old != value {
			if i.Labels == nil {
				i.Labels = make(map[string]string)
			}
			i.Labels[name] = value
		}
	}
	for _, v := range slices.Sorted(maps.Keys(c.Volumes)) {
		if _, had := t.Base.Volumes[v]; !had {
			i.Volumes = append(i.Volumes, v)
		}
	}
	t.refuseConfig(c)
	return i
}

// refuseConfig refuses what [image] has no key for.
func (t *translator) refuseConfig(c v1.Config) {
	for _, x := range []struct {
		instruction string
		own, base   any
	}{
		{"EXPOSE", c.ExposedPorts, t.Base.ExposedPorts},
		{"HEALTHCHECK", c.Healthcheck, t.Base.Healthcheck},
		{"STOPSIGNAL", c.StopSignal, t.Base.StopSignal},
		{"ONBUILD", c.OnBuild, t.Base.OnBuild},
	} {
		if own := reflect.ValueOf(x.own); !own.IsZero() && !reflect.DeepEqual(x.own, x.base) {
			t.refused.add(t.lineOf(x.instruction), "%s: a recipe has no key for it", x.instruction)
		}
	}
	if len(c.Cmd) == 0 && len(t.Base.Cmd) > 0 && len(c.Entrypoint) == 0 {
		t.refused.add(t.lineOf("CMD"), "CMD []: a recipe cannot take away the base's command")
	}
}

// envBesides returns the variables that the base has not, or has otherwise.
func (t *translator) envBesides(own, base []string) map[string]string {
	var env map[string]string
	for _, kv := range own {
		name, value, _ := strings.Cut(kv, "=")
		if slices.Contains(base, kv) || name == "PATH" && value == searchpath.Default && !slices.ContainsFunc(base, isPath) {
			continue
		}
		if env == nil {
			env = make(map[string]string)
		}
		env[name] = value
	}
	return env
}

func isPath(kv string) bool { return strings.HasPrefix(kv, "PATH=") }

func changed(own, base string) string {
	if own == base {
		return ""
	}
	return own
}

// lineOf returns the line of the last instruction of a name, 1 when there is none.
func (t *translator) lineOf(instruction string) int {
	for _, op := range slices.Backward(t.stage.Ops) {
		if word, _, _ := strings.Cut(op.Text, " "); word == instruction {
			return op.Line
		}
	}
	return 1
}

// firstWords is an instruction up to its first argument that is no option.
func firstWords(text string) string {
	words := strings.Fields(text)
	return strings.Join(words[:min(2, len(words))], " ")
}
