package lint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/edf"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/sbatch"
)

// Kind is what a file is.
type Kind string

// The kinds of files.
const (
	EDF      Kind = "edf"
	Script   Kind = "sbatch"
	UenvMeta Kind = "env.json" // a uenv's description
	Uenv     Kind = "uenv"     // a squashfs
	Profile  Kind = "profile"  // of a cluster
)

// Kinds lists them.
var Kinds = []Kind{EDF, Script, UenvMeta, Uenv, Profile}

// document is a file that is judged.
type document struct {
	path string
	kind Kind
	data []byte
	by   string // the script that names it, when nobody else did

	broken *edf.SyntaxError // where it is no TOML

	edf      *edf.File
	dialect  edf.Dialect
	usedBy   *document // the script whose job it is
	env      *edf.Environment
	problems []edf.Problem
	image    *opened // that the environment names; nil: none

	script       *sbatch.Script
	environments []*use
	uenv         *uenvFile
}

// use is an environment that a script names.
type use struct {
	option sbatch.Option
	call   *sbatch.Call // nil: by a directive
	doc    *document    // nil: it was not found
	lacks  string       // why, where that is known
}

// maxHead is how much of a file is looked at to find out what it is, in bytes.
const maxHead = 64 << 10

func (l *linter) load(path string) error {
	if l.document(path) != nil {
		return nil
	}
	d, err := l.open(path)
	if err != nil {
		return err
	}
	l.docs = append(l.docs, d)
	return nil
}

// document is the one of a path that is there already.
func (l *linter) document(path string) *document {
	for _, d := range l.docs {
		if same(d.path, path) {
			return d
		}
	}
	return nil
}

func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return a == b
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// read returns what is in a file, or will be.
func (l *linter) read(path string) ([]byte, error) {
	if text, unwritten := l.Texts[path]; unwritten {
		return []byte(text), nil
	}
	return readText(path)
}

func (l *linter) open(path string) (*document, error) {
	data, err := l.read(path)
	if err != nil {
		return nil, fault.Usage(fmt.Errorf("read %s: %w", path, err))
	}
	d := &document{path: path, kind: l.Kind, data: data}
	if d.kind == "" {
		d.kind = sniff(path, data)
	}
	switch d.kind {
	case EDF:
		d.readEDF()
	case Script:
		d.script = sbatch.Parse(path, data)
	case Uenv, UenvMeta:
		d.uenv = readUenv(d)
	case Profile:
	default:
		return nil, fault.Usage(fault.Hint(fmt.Errorf("%s is not a file that lint knows", path), hintFor(path, data)))
	}
	return d, nil
}

// readText reads a file, of a squashfs only the beginning.
func readText(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("it is not a regular file"))
	}
	head, err := io.ReadAll(io.LimitReader(f, maxHead))
	if err != nil || isSquashfs(head) {
		return head, err
	}
	rest, err := io.ReadAll(io.LimitReader(f, sbatch.MaxSize+1-maxHead))
	return append(head, rest...), err
}

func isSquashfs(head []byte) bool { return bytes.HasPrefix(head, []byte("hsqs")) }

var (
	directiveLine = lazyregexp.New(`(?m)^#SBATCH\s`)
	tomlKey       = lazyregexp.New(`(?m)^[ \t]*\[?[ \t]*([A-Za-z_-]+)[ \t]*[].=]`)
)

// sniff tells what a file is by its content.
func sniff(path string, data []byte) Kind {
	text := bytes.TrimLeft(data, " \t\r\n")
	switch {
	case isSquashfs(data):
		return Uenv
	case bytes.HasPrefix(data, []byte("#!")) || directiveLine.Regexp().Match(data):
		return Script
	case bytes.HasPrefix(text, []byte("{")):
		return UenvMeta
	case bytes.IndexByte(data, 0) >= 0:
		return ""
	}
	return sniffTOML(path, data)
}

// sniffTOML tells an environment from a profile by the keys, also where the file is broken.
func sniffTOML(path string, data []byte) Kind {
	var profile []string
	for _, k := range cluster.Keys() {
		name, _, _ := strings.Cut(k.Name, ".")
		profile = append(profile, name)
	}
	edfs, profiles := 0, 0
	for _, m := range tomlKey.Regexp().FindAllSubmatch(data, -1) {
		name := string(m[1])
		switch {
		case slices.Contains(edf.Keys, name):
			edfs++
		case slices.Contains(profile, name):
			profiles++
		}
	}
	switch {
	case filepath.Base(path) == "sconce.toml":
		return ""
	case edfs > 0 && edfs >= profiles:
		return EDF
	case profiles > 0:
		return Profile
	case filepath.Ext(path) == ".toml":
		return EDF
	}
	return ""
}

func hintFor(path string, data []byte) string {
	switch {
	case filepath.Base(path) == "sconce.toml":
		return "`sconce plan` and `sconce lock` judge recipes"
	case bytes.Contains(data[:min(len(data), 256)], []byte("SIF_MAGIC")):
		return "`sconce check` judges images"
	}
	var names []string
	for _, k := range Kinds {
		names = append(names, string(k))
	}
	return "say what it is: --as " + strings.Join(names, ", --as ")
}

func (d *document) readEDF() {
	var err error
	d.edf, err = edf.Parse(d.path, d.data)
	errors.As(err, &d.broken)
}

// follow reads what a file leads to.
func (l *linter) follow(d *document) error {
	switch {
	case d.script != nil:
		return l.followScript(d)
	case d.edf != nil:
		return l.followEDF(d)
	}
	return nil
}

func (l *linter) followEDF(d *document) error {
	if d.dialect == "" {
		d.dialect = l.dialectOf(d.edf)
	}
	d.env, d.problems = edf.Resolve(d.edf, l.search(d.dialect))
	im, err := l.imageOf(d)
	d.image = im
	return err
}

// dialectOf is what a file is read as that no script names: the Sarus Suite's where the target or a key of its own says so.
func (l *linter) dialectOf(f *edf.File) edf.Dialect {
	switch {
	case l.Dialect != "":
		return l.Dialect
	case l.Target.Starter() == cluster.Sarus:
		return edf.Sarus
	case l.Target.Starter() == string(cluster.ContainerEngine):
		return edf.ContainerEngine
	case f.Find(edf.Devices) != nil:
		return edf.Sarus
	}
	return edf.ContainerEngine
}

func (l *linter) search(dialect edf.Dialect) edf.Search {
	return edf.Search{Dialect: dialect, Dirs: []string{l.Dir}, Lookup: l.Lookup}
}

// imageOf opens the image that an environment names.
func (l *linter) imageOf(d *document) (*opened, error) {
	text := d.env.Text(edf.Image)
	name, undefined := edf.Expand(text, l.Lookup)
	if d.dialect == edf.Sarus {
		name, undefined = text, nil // it expands nothing
	}
	if name == "" || len(undefined) > 0 || strings.Contains(name, "$") {
		return nil, nil
	}
	return l.image(name)
}

// image opens the image of a name, each once.
func (l *linter) image(name string) (*opened, error) {
	if im, ok := l.images[name]; ok || l.Image == nil {
		return im, nil
	}
	f, why, err := l.Image(l.ctx, name)
	if err != nil {
		return nil, err
	}
	im := &opened{f, why}
	l.images[name] = im
	if f == nil && why != "" {
		l.result.NotJudged = append(l.result.NotJudged, fmt.Sprintf("image %s: %s", name, why))
	}
	return im, nil
}

// followScript reads the environments that a script names.
func (l *linter) followScript(d *document) error {
	add := func(options []sbatch.Option, call *sbatch.Call) error {
		o, ok := sbatch.Find(options, "environment", "edf")
		if !ok || !o.Fixed || o.Value == "" {
			return nil
		}
		dialect := edf.ContainerEngine
		if o.Name == "edf" {
			dialect = edf.Sarus
		}
		return l.use(d, o, call, dialect)
	}
	if err := add(d.script.Options(), nil); err != nil {
		return err
	}
	for _, c := range d.script.Calls {
		if c.Name == "srun" {
			if err := add(c.Options, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// environment returns the file of an environment that a script in dir names.
func (l *linter) environment(name, dir string, dialect edf.Dialect) (string, error) {
	if _, unwritten := l.Texts[name]; unwritten {
		return name, nil
	}
	return l.search(dialect).Find(name, dir)
}

func (l *linter) use(d *document, o sbatch.Option, call *sbatch.Call, dialect edf.Dialect) error {
	u := &use{option: o, call: call}
	d.environments = append(d.environments, u)
	path, err := l.environment(o.Value, filepath.Dir(d.path), dialect)
	if err != nil {
		if !edf.Unknown(err) {
			u.lacks = err.Error()
		}
		return nil
	}
	if u.doc = l.document(path); u.doc == nil {
		u.doc, err = l.openEDF(path)
		if err != nil {
			u.lacks = fmt.Sprintf("%s: %s", path, err)
			return nil
		}
		u.doc.by = d.path
		l.docs = append(l.docs, u.doc)
	}
	u.doc.usedBy = d
	if u.doc.dialect == "" {
		u.doc.dialect = dialect
	}
	if u.doc.edf != nil && u.doc.env == nil {
		return l.followEDF(u.doc)
	}
	return nil
}

func (l *linter) openEDF(path string) (*document, error) {
	data, err := l.read(path)
	if err != nil {
		return nil, err
	}
	d := &document{path: path, kind: EDF, data: data}
	d.readEDF()
	return d, nil
}

// allowance is a comment that allows what a rule finds.
type allowance struct {
	rule, reason string
	offset       int
}

// allowComment is a line of its own, or the end of one: # sconce: allow RULE why it is no problem.
var allowComment = lazyregexp.New(`(?m)#[ \t]*sconce:[ \t]*allow\b[ \t]*([^ \t\r\n]*)[ \t]*([^\r\n]*)`)

func allowances(data []byte) []allowance {
	var all []allowance
	for _, m := range allowComment.Regexp().FindAllSubmatchIndex(data, -1) {
		all = append(all, allowance{string(data[m[2]:m[3]]), strings.TrimSpace(string(data[m[4]:m[5]])), m[0]})
	}
	return all
}

// allowed is the reason that a file gives for living with a finding: the file itself, or the script that uses it.
func (l *linter) allowed(f Finding) string {
	if f.Rule == "lint-allow" {
		return ""
	}
	var texts [][]byte
	for _, d := range l.docs {
		for _, in := range d.texts() {
			if in.Path == f.Path {
				texts = append(texts, in.Data)
				if d.usedBy != nil {
					texts = append(texts, d.usedBy.data)
				}
			}
		}
	}
	for _, data := range texts {
		for _, a := range allowances(data) {
			if a.rule == f.Rule && a.reason != "" {
				return a.reason
			}
		}
	}
	return ""
}

// texts are the file and its bases.
func (d *document) texts() []*edf.File {
	all := []*edf.File{{Path: d.path, Data: d.data}}
	if d.env != nil {
		all = append(all, d.env.Files...)
	}
	return all
}

// fileRules are about all kinds of files.
var fileRules = []Rule{
	{
		Rule: audit.Rule{
			ID: "lint-allow", Severity: audit.Error,
			Title:  "Comments that allow nothing",
			Why:    "A comment that allows a rule which does not exist, or gives no reason, has no effect.",
			Remedy: "write # sconce: allow RULE and the reason; `sconce lint --list-rules` lists the rules",
		},
		any: lookAllow,
	},
	{
		Rule: audit.Rule{
			ID: "profile-invalid", Severity: audit.Error,
			Title:  "Profiles that sconce does not read",
			Why:    "Commands that are told to judge by this profile end with an error.",
			Remedy: "mend the line; `sconce clusters NAME` shows a profile that is right",
		},
		any: lookProfile,
	},
}

func lookAllow(s *subject) {
	if s.kind == Uenv || s.kind == UenvMeta {
		return
	}
	for _, a := range allowances(s.data) {
		switch err := audit.KnownAmong(s.linter.rules, a.rule, ""); {
		case a.rule == "":
			s.tell(s.in(a.offset), "the comment names no rule")
		case err != nil:
			f := s.tell(s.in(a.offset), "%s", err)
			if hint := fault.HintOf(err); hint != "" {
				f.Message += ": " + strings.TrimSuffix(hint, "?")
			}
		case a.reason == "":
			s.tell(s.in(a.offset), "the comment gives no reason for allowing %s", a.rule)
		}
	}
}

var lineOf = lazyregexp.New(`\bline (\d+): `)

func lookProfile(s *subject) {
	if s.kind != Profile {
		return
	}
	path, err := filepath.Abs(s.path)
	if err == nil {
		_, err = cluster.Find(path, "")
	}
	if err == nil {
		return
	}
	message := strings.TrimPrefix(err.Error(), "cluster profile "+path+": ")
	at := s.in(0)
	if m := lineOf.FindStringSubmatch(message); m != nil {
		line := 0
		_, _ = fmt.Sscan(m[1], &line)
		at.offset = lineStart(s.data, line)
		message = strings.Replace(message, m[0], "", 1)
	}
	f := s.tell(at, "%s", message)
	if hint := fault.HintOf(err); hint != "" {
		f.Remedy = hint
	}
}

// lineStart is where a line begins, counted from 1 on.
func lineStart(data []byte, line int) int {
	at := 0
	for range line - 1 {
		i := bytes.IndexByte(data[at:], '\n')
		if i < 0 {
			return at
		}
		at += i + 1
	}
	return at
}
