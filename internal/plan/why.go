package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fileop"
)

// Difference says what made a step's key another than it was.
type Difference struct {
	Causes []string    // by name: files, packages, variables, the step below; never empty
	Before *StepRecord // what the step was; nil: it is new

	// Upstream says that nothing of the step itself is another: only what it is based on, or takes of other stages, is made in another
	// way. When that comes out the same, the step is not made again.
	Upstream bool
}

// Compare says of each step of now, by its place in the list, what made its key another than that of old. Steps whose key old
// has are not in it, nor are any when old is nil.
func Compare(old, now *Record) map[int]Difference {
	if old == nil {
		return nil
	}
	c := comparison{old: old, image: now.Image, known: make(map[Key]bool), taken: make(map[int]bool), changed: make(map[Key]string)}
	for _, t := range old.Steps {
		c.known[t.Key] = true
	}
	for i, t := range old.Steps { // those that stand are nobody's earlier form
		c.taken[i] = slices.ContainsFunc(now.Steps, func(n StepRecord) bool { return n.Key == t.Key })
	}
	why := make(map[int]Difference)
	for i, t := range now.Steps {
		if t.Key == "" || c.known[t.Key] {
			continue
		}
		why[i] = c.difference(t)
		c.changed[t.Key] = t.Title
	}
	return why
}

// comparison holds two plans of one image against each other.
type comparison struct {
	old     *Record
	image   string         // name of the image now, which its stage has too
	known   map[Key]bool   // keys of old
	taken   map[int]bool   // steps of old that a step of now was compared with, or that are the same
	changed map[Key]string // titles of the steps of now that are not in old
}

func (c *comparison) difference(t StepRecord) Difference {
	before := c.earlier(t)
	if before == nil {
		return Difference{Causes: []string{"the step is new"}}
	}
	return Difference{Causes: c.causes(before, t), Before: before, Upstream: upstreamOnly(before, t)}
}

// upstreamOnly reports whether two steps are the same but for what other stages made.
func upstreamOnly(before *StepRecord, t StepRecord) bool {
	if !t.Content || !slices.Equal(before.Files, t.Files) {
		return false
	}
	own := func(inputs []Input) []Input {
		return slices.DeleteFunc(slices.Clone(inputs), func(in Input) bool { return in.Name == filesInput && ofStage([]string{in.Value}) })
	}
	return slices.Equal(own(before.Inputs), own(t.Inputs))
}

func (c *comparison) causes(before *StepRecord, t StepRecord) []string {
	causes := append(differentFiles(before.Files, t.Files), differentInputs(before.Inputs, t.Inputs)...)
	if len(causes) > 1 && strings.HasPrefix(causes[0], "file ") { // it says more than that the files' digest is another
		causes = slices.DeleteFunc(causes, func(s string) bool { return strings.HasPrefix(s, filesInput) || strings.HasPrefix(s, "bind mount ") })
	}
	if upstream := c.upstream(t); len(causes) == 0 && upstream != "" {
		return []string{upstream}
	}
	if len(causes) > 0 {
		causes = byArguments(differentArguments(before.Args, t.Args), causes)
	}
	if len(causes) == 0 && len(before.On) != len(t.On) {
		causes = []string{"it is based on fewer steps"}
	}
	if len(causes) == 0 {
		causes = []string{OnOther}
	}
	return causes
}

// differentArguments are the build arguments that have another value than before.
func differentArguments(old, now []Input) []Input {
	before, after := group(old), group(now)
	var changes []Input
	for _, name := range namesOf(nil, now) {
		if a, b := before[name], after[name]; len(a) > 0 && !slices.Equal(a, b) {
			changes = append(changes, Input{name, describe("build argument "+name, a, b)})
		}
	}
	return changes
}

// byArguments puts the build arguments that have changed before what is another because of them. A command has each as a variable, too,
// which need not be named a second time.
func byArguments(args []Input, causes []string) []string {
	var all []string
	for _, arg := range args {
		all = append(all, arg.Value)
		causes = slices.DeleteFunc(causes, func(s string) bool { return strings.HasPrefix(s, "variable "+arg.Name+": ") })
	}
	return append(all, causes...)
}

// earlier finds what the step was in old: in the same stage, of the same kind, by title, else the next of its kind.
func (c *comparison) earlier(t StepRecord) *StepRecord {
	next := -1
	for i, o := range c.old.Steps {
		if c.taken[i] || o.Kind != t.Kind || !c.sameStage(o, t) && t.Kind != KindImage {
			continue
		}
		if o.Title == t.Title {
			next = i
			break
		}
		if next < 0 && t.Kind != "wheels" && t.Kind != "conda packages" { // of layers of packages only those of the same name are each other's
			next = i
		}
	}
	if next < 0 {
		return nil
	}
	c.taken[next] = true
	return &c.old.Steps[next]
}

// sameStage reports whether steps are of one stage. That of the image itself has the image's name, which ends in its version.
func (c *comparison) sameStage(old, now StepRecord) bool {
	return old.Stage == now.Stage || old.Stage == c.old.Image && now.Stage == c.image
}

// upstream names the first changed step that t is based on.
func (c *comparison) upstream(t StepRecord) string {
	for _, on := range t.On {
		if title, ok := c.changed[on]; ok {
			return StandsOn + ": " + title
		}
	}
	for _, title := range slices.Sorted(maps.Values(c.changed)) { // a stage's key has no title
		return StandsOn + " what changed before it: " + title
	}
	return ""
}

// filesInput is the input that holds the digest of files by themselves.
const filesInput = "files"

func differentInputs(old, now []Input) []string {
	before, after := group(old), group(now)
	var causes []string
	for _, name := range namesOf(old, now) {
		a, b := before[name], after[name]
		switch {
		case slices.Equal(a, b):
		case name == filesInput && ofStage(a) && ofStage(b):
			causes = append(causes, "files of another stage, which has changed")
		default:
			causes = append(causes, describe(name, a, b))
		}
	}
	return causes
}

// ofStage reports whether files are those of a stage; see sourceKey.
func ofStage(values []string) bool { return len(values) == 1 && strings.HasPrefix(values[0], "stage ") }

func group(inputs []Input) map[string][]string {
	m := make(map[string][]string)
	for _, in := range inputs {
		m[in.Name] = append(m[in.Name], in.Value)
	}
	return m
}

// namesOf lists the names of inputs, those of now first, each once.
func namesOf(old, now []Input) []string {
	var names []string
	for _, in := range slices.Concat(now, old) {
		if !slices.Contains(names, in.Name) {
			names = append(names, in.Name)
		}
	}
	return names
}

func describe(name string, before, after []string) string {
	a, b := only(before, after), only(after, before)
	switch {
	case len(before) == 0:
		return name + ": added" + shown(": ", b)
	case len(after) == 0:
		return name + ": gone"
	case len(a) == 1 && len(b) == 1 && readable(a[0]) && readable(b[0]) && brief(a[0]) != brief(b[0]):
		return fmt.Sprintf("%s: %s → %s", name, brief(a[0]), brief(b[0]))
	case len(a)+len(b) == 0:
		return name + ": in another order"
	}
	return name + ": changed"
}

// only are the values of a that b has not.
func only(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(v string) bool { return slices.Contains(b, v) })
}

func shown(before string, values []string) string {
	if len(values) == 1 && readable(values[0]) {
		return before + brief(values[0])
	}
	return ""
}

// Causes that are not a step's own: such a step is another because one below it is.
const (
	StandsOn = "it is based on"      // how they begin
	OnOther  = "what it is based on" // when it is not known which
)

// maxReadable is how long a value may be to be shown, in bytes.
const maxReadable = 80

// readable reports whether a value means something to a person: structures and bare digests do not.
func readable(v string) bool {
	v = brief(v)
	return v != "" && len(v) <= maxReadable && !strings.HasPrefix(v, "{") && len(v) < 64
}

// brief is a value as a person would write it: a list as a command line, a name without the digest behind it.
func brief(v string) string {
	var words []string
	if strings.HasPrefix(v, "[") && json.Unmarshal([]byte(v), &words) == nil {
		return strings.Join(words, " ")
	}
	if name, _, found := strings.Cut(v, " sha256:"); found && name != "" {
		return name
	}
	return v
}

// maxNamed is how many files are named as the cause of one change.
const maxNamed = 3

func differentFiles(old, now []fileop.FileSum) []string {
	before, after := make(map[string]string), make(map[string]string)
	for _, f := range old {
		before[f.Path] = f.Sum
	}
	var changes []string
	for _, f := range now {
		after[f.Path] = f.Sum
		sum, was := before[f.Path]
		switch {
		case !was:
			changes = append(changes, "file "+f.Path+": added")
		case sum != f.Sum:
			changes = append(changes, "file "+f.Path+": changed")
		}
	}
	for _, f := range old {
		if _, is := after[f.Path]; !is {
			changes = append(changes, "file "+f.Path+": gone")
		}
	}
	if len(changes) > maxNamed {
		more := len(changes) - maxNamed
		changes = append(changes[:maxNamed], fmt.Sprintf("file changes: %d more", more))
	}
	return changes
}
