package deffile

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/containerfile"
	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/runtimefiles"
	"sconce.dev/sconce/internal/searchpath"
)

// metaDir is where Apptainer looks for what a definition file says, and appsDir where it looks for apps.
const (
	metaDir = "/.singularity.d/"
	appsDir = "/scif/apps/"
)

// Evaluate says what the file means for a target and platform. config is asked once for each base.
func (f *File) Evaluate(ctx context.Context, o Options, config ConfigFunc) (*containerfile.Build, error) {
	e := &evaluator{file: f, options: o, build: &containerfile.Build{}}
	for _, s := range f.stages {
		if err := e.stage(ctx, s, config); err != nil {
			return nil, err
		}
		if o.Target != "" && e.last().Name == strings.ToLower(o.Target) {
			return e.build, nil
		}
	}
	if o.Target != "" {
		return nil, fault.Usage(fmt.Errorf("%s has no stage %q", f.Name, o.Target))
	}
	return e.build, nil
}

type evaluator struct {
	file    *File
	options Options
	build   *containerfile.Build
}

func (e *evaluator) last() *containerfile.Stage { return e.build.Stages[len(e.build.Stages)-1] }

// find returns the number of a stage that stands above, or -1.
func (e *evaluator) find(name string) int {
	return slices.IndexFunc(e.build.Stages, func(s *containerfile.Stage) bool { return s.Name == strings.ToLower(name) })
}

func (e *evaluator) stage(ctx context.Context, s *stage, config ConfigFunc) error {
	name := strings.ToLower(s.header["stage"].value)
	if name == "" {
		name = strconv.Itoa(len(e.build.Stages))
	} else if e.find(name) >= 0 {
		return e.file.wrong(s.header["stage"].line, "give the stages different names", "there is a stage %s above", name)
	}
	from, packages, err := e.base(s)
	if err != nil {
		return err
	}
	made := &containerfile.Stage{Name: name, From: from, Parent: -1, Platform: e.options.Platform}
	if packages || from == containerfile.Scratch {
		made.Config.Env = []string{"PATH=" + searchpath.Default}
	} else {
		c, err := config(ctx, from, e.options.Platform)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", e.file.Name, s.line, err)
		}
		made.Author, made.Config = c.Author, *c.Config.DeepCopy()
	}
	w := &writer{evaluator: e, source: s, Stage: made}
	if err := w.all(); err != nil {
		return err
	}
	e.build.Stages = append(e.build.Stages, made)
	return nil
}

// buildFirst is what to do with the Dockerfile of Apptainer's newest bootstrap.
const buildFirst = "build it first: `sconce build -f Dockerfile CONTEXT -o oci:base`, with --target and --build-arg, then Bootstrap: oci, From: base"

// instead says what to write for bootstraps that are not there.
var instead = map[string]string{
	"library":       "get the file with `apptainer pull base.sif library://…`, then Bootstrap: localimage, From: base.sif",
	"shub":          "get the file with `apptainer pull base.sif shub://…`, then Bootstrap: localimage, From: base.sif",
	"oras":          "get the file with `apptainer pull base.sif oras://…`, then Bootstrap: localimage, From: base.sif",
	"docker-daemon": "save it with `docker save -o base.tar NAME`, then Bootstrap: docker-archive, From: base.tar",
	"buildkit":      buildFirst,
	"dockerfile":    buildFirst,
	"arch":          "Bootstrap: docker, From: archlinux",
	"busybox":       "Bootstrap: docker, From: busybox",
}

// base is the reference of what a stage begins with, and whether that is made of a distribution's packages.
func (e *evaluator) base(s *stage) (reference string, packages bool, err error) {
	agent := strings.ToLower(s.header["bootstrap"].value)
	if _, isRPM := rpmAgents[agent]; isRPM || agent == debianAgent {
		reference, err = e.packages(s, agent)
		return reference, true, err
	}
	reference, err = e.file.base(s)
	return reference, false, err
}

// imageAgents are the bootstraps that begin with an image.
var imageAgents = []string{"docker", "localimage", "oci", "oci-archive", "docker-archive"}

// base is the reference of what a stage begins with that is an image.
func (f *File) base(s *stage) (string, error) {
	if h, ok := s.header["fingerprints"]; ok {
		return "", f.wrong(h.line, "check the file with `apptainer verify` and leave the line out", "fingerprints: signatures of SIF files are not checked here")
	}
	kind := s.header["bootstrap"]
	agent := strings.ToLower(kind.value)
	from := s.header["from"].value
	if agent == "scratch" {
		return containerfile.Scratch, nil
	}
	if hint, ok := instead[agent]; ok {
		return "", f.wrong(kind.line, hint, "Bootstrap: %s is not supported", agent)
	}
	if !slices.Contains(imageAgents, agent) {
		return "", f.wrong(kind.line, "it is one of "+agentNames(), "there is no bootstrap %q", kind.value)
	}
	if from == "" {
		return "", f.wrong(kind.line, "add a line From: IMAGE", "Bootstrap: %s without From", agent)
	}
	switch agent {
	case "docker":
		from = strings.TrimPrefix(from, "//")
		_, registry, isAddress := strings.Cut(s.header["registry"].value, "://")
		if !isAddress {
			registry = s.header["registry"].value
		}
		return "docker://" + path.Join(registry, s.header["namespace"].value, from), nil
	case "localimage":
		if !filepath.IsAbs(from) {
			from = "./" + filepath.Clean(from)
		}
		return from, nil
	}
	return agent + ":" + from, nil
}

// writer adds to a stage what its sections say.
type writer struct {
	*evaluator
	*containerfile.Stage
	source *stage
	native bool // what it begins with has Apptainer's files
}

func (w *writer) all() error {
	w.native = slices.Equal(w.Config.Entrypoint, runtimefiles.ApptainerEntrypoint())
	if err := w.refuse(); err != nil {
		return err
	}
	w.layout()
	for _, step := range []func() error{w.files, w.post, w.apps, w.scripts, w.labels, w.test} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// each calls do for each section of a name.
func (w *writer) each(name string, do func(*section) error) error {
	for _, s := range w.source.sections {
		if s.name == name {
			if err := do(s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *writer) refuse() error {
	for _, s := range w.source.sections {
		switch {
		case (s.name == "setup" || s.name == "pre") && s.empty():
			continue
		case s.name == "setup" || s.name == "pre":
			return w.file.wrong(s.line, "what it makes on this machine, make before; what it puts into the image, put there by %files or %post",
				"%%%s runs on this machine and not in the image, which is not supported", s.name)
		case slices.Contains(appSections, s.name) && (s.args == "" || s.args != path.Base(s.args) || s.args == "." || s.args == ".."):
			return w.file.wrong(s.line, fmt.Sprintf("write %%%s NAME", s.name), "%%%s names no app", s.name)
		case s.args != "" && s.name != "files" && s.name != "post" && !slices.Contains(appSections, s.name):
			return w.file.wrong(s.line, "a script that begins with #! says what runs it", "%%%s takes no arguments", s.name)
		}
	}
	return nil
}

func (w *writer) add(line int, text string, op containerfile.Op) {
	op.Line, op.Text = line, text
	w.Ops = append(w.Ops, op)
}

// write adds files with content to a directory of the image.
func (w *writer) write(line int, text, dir, mode string, files ...fileop.InlineFile) {
	if len(files) > 0 {
		w.add(line, text, containerfile.Op{Copy: &containerfile.Copy{
			From: containerfile.Source{Stage: -1}, Copy: fileop.Copy{Inline: files, Dest: dir, Chmod: mode},
		}})
	}
}

// layout lays down what Apptainer's images all have, before anything of the file runs. It makes the image start by them.
func (w *writer) layout() {
	if w.native {
		return
	}
	dirs := map[string][]fileop.InlineFile{}
	for _, s := range runtimefiles.ApptainerScripts() {
		dir := path.Dir(s.Path) + "/"
		dirs[dir] = append(dirs[dir], fileop.InlineFile{Name: path.Base(s.Path), Content: []byte(s.Text)})
	}
	for _, dir := range []string{metaDir + "actions/", metaDir + "env/"} {
		w.write(w.source.line, "Bootstrap: "+dir, dir, "755", dirs[dir]...)
	}
}

func (w *writer) files() error {
	for _, ofStage := range []bool{true, false} { // those of stages come first
		err := w.each("files", func(s *section) error {
			if (s.args != "") != ofStage {
				return nil
			}
			return w.copies(s, s.args, "")
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// copies reads lines SOURCE [DESTINATION]. args may be "from STAGE"; destinations are below dir.
func (w *writer) copies(s *section, args, dir string) error {
	from := containerfile.Source{Stage: -1}
	if args != "" {
		words := strings.Fields(args)
		if len(words) != 2 || words[0] != "from" {
			return w.file.wrong(s.line, "write %files from STAGE", "%%%s %s", s.name, args)
		}
		if from.Stage = w.find(words[1]); from.Stage < 0 {
			return w.file.wrong(s.line, "a stage is named by a header Stage: NAME, above where it is used", "there is no stage %s above", words[1])
		}
	}
	for i, line := range s.body {
		words, err := split(line)
		number := s.line + 1 + i
		switch {
		case err != nil || len(words) > 2:
			return w.file.wrong(number, "write SOURCE [DESTINATION], with quotes around names that hold blanks", "%q is no pair of source and destination", strings.TrimSpace(line))
		case len(words) == 0:
			continue
		case len(words) == 1 && dir != "":
			words = append(words, "/")
		}
		dest := path.Join("/", dir, words[len(words)-1])
		if strings.HasSuffix(words[len(words)-1], "/") && dest != "/" {
			dest += "/"
		}
		c := &containerfile.Copy{From: from, Copy: fileop.Copy{Dest: dest, Nest: true, Chown: "0:0"}}
		c.Sources = []string{strings.TrimPrefix(path.Clean("/"+words[0]), "/")}
		if from.Stage < 0 {
			c.From, c.Sources = hostFiles(words[0])
		}
		w.add(number, "%"+s.name+" "+strings.TrimSpace(line), containerfile.Op{Copy: c})
	}
	return nil
}

// hostFiles says in which directory a source on this machine lies, and under what name: the build's own, or any other.
func hostFiles(source string) (containerfile.Source, []string) {
	p := filepath.Clean(source)
	if filepath.IsLocal(p) {
		return containerfile.Source{Stage: -1, Context: true}, []string{p}
	}
	return containerfile.Source{Stage: -1, Dir: filepath.Dir(p)}, []string{filepath.Base(p)}
}

// split splits a line into words, which may be quoted. A # that begins a word begins a comment.
func split(line string) ([]string, error) {
	var words []string
	for rest := strings.TrimSpace(line); rest != "" && rest[0] != '#'; rest = strings.TrimSpace(rest) {
		var b strings.Builder
		i := 0
		for i < len(rest) && rest[i] != ' ' && rest[i] != '\t' {
			switch c := rest[i]; c {
			case '"', '\'':
				end := strings.IndexByte(rest[i+1:], c)
				if end < 0 {
					return nil, fmt.Errorf("a quote has no end")
				}
				b.WriteString(rest[i+1 : i+1+end])
				i += end + 2
			default:
				b.WriteByte(c)
				i++
			}
		}
		if b.Len() == 0 {
			return nil, fmt.Errorf("a name is empty")
		}
		words = append(words, b.String())
		rest = rest[i:]
	}
	return words, nil
}

// scriptFile is where a step finds its script.
const scriptFile = "/dev/pipes/post"

func (w *writer) post() error {
	return w.each("post", func(s *section) error {
		if i := slices.IndexFunc(s.body, func(l string) bool {
			return strings.Contains(l, "APPTAINER_LABELS") || strings.Contains(l, "SINGULARITY_LABELS")
		}); i >= 0 {
			return w.file.wrong(s.line+1+i, "write the label below %labels; a value may be a template {{ NAME }}", "labels that %%post writes are not supported")
		}
		args := []string{"/bin/sh", "-ex", scriptFile}
		if words := strings.Fields(s.args); len(words) > 0 {
			if words[0] != "-c" || len(words) < 2 {
				return w.file.wrong(s.line, "write %post -c /bin/bash", "%%post takes no %s", s.args)
			}
			args = []string{"/bin/sh", "-ex", "-c", strings.Join(words[1:], " ") + " " + scriptFile}
		}
		w.run(s.line, "%post", "", args, s.text(), nil)
		return nil
	})
}

func (w *writer) run(line int, text, dir string, args []string, script string, env []string) {
	root := []string{"APPTAINER_ROOTFS=/", "APPTAINER_ENVIRONMENT=" + metaDir + "env/91-environment.sh", "SINGULARITY_ROOTFS=/", "SINGULARITY_ENVIRONMENT=" + metaDir + "env/91-environment.sh"}
	c := execop.Command{Args: args, WorkDir: dir, Env: slices.Concat(w.Config.Env, root, env)}
	if script != "" {
		c.Files = []execop.File{{Target: scriptFile, Mode: 0o755, Content: []byte(script)}}
	}
	w.add(line, text, containerfile.Op{Run: &containerfile.Run{Command: c}})
}

// shell makes a script of a section: by its own #! line, or for sh.
func shell(s *section) []byte {
	body := s.text()
	if trimmed := strings.TrimLeft(body, " \t\n"); strings.HasPrefix(trimmed, "#!") {
		return []byte(trimmed)
	}
	return []byte("#!/bin/sh\n\n" + body)
}

// tellOfCommand warns where IncludeCmd would make a difference if it made one. Apptainer's help says that the image starts its CMD in place of its
// ENTRYPOINT then; Apptainer and SingularityCE themselves have started both since Singularity 3, whatever the header says.
func (w *writer) tellOfCommand() {
	h, ok := w.source.header["includecmd"]
	if !ok || len(w.Config.Entrypoint) == 0 || len(w.Config.Cmd) == 0 {
		return
	}
	w.build.Warnings = append(w.build.Warnings, containerfile.Warning{
		Line: h.line, Message: fmt.Sprintf("IncludeCmd changes nothing, as in Apptainer: the image starts %q with %q", w.Config.Entrypoint, w.Config.Cmd),
		Hint: `where it is to start something else, write that below %runscript: exec PROGRAM "$@"`,
	})
}

// scripts writes what a container runs and reads when it starts.
func (w *writer) scripts() error {
	line := w.source.line
	var meta []fileop.InlineFile
	has := map[string]bool{}
	for _, part := range []struct{ section, name string }{{"runscript", "runscript"}, {"startscript", "startscript"}, {"test", "test"}} {
		_ = w.each(part.section, func(s *section) error {
			has[part.section], line = true, s.line
			meta = append(meta, fileop.InlineFile{Name: part.name, Content: shell(s)})
			return nil
		})
	}
	if !has["runscript"] && !w.native {
		text, err := runtimefiles.Runscript(v1.ConfigFile{Config: w.Config})
		if err != nil {
			return err
		}
		meta = append(meta, fileop.InlineFile{Name: "runscript", Content: []byte(text)})
		w.tellOfCommand()
	}
	w.write(line, "%runscript", metaDir, "755", meta...)
	_ = w.each("environment", func(s *section) error {
		w.write(s.line, "%environment", metaDir+"env/", "755", fileop.InlineFile{Name: "90-environment.sh", Content: []byte("#!/bin/sh\n\n" + s.text())})
		return nil
	})
	texts := []fileop.InlineFile{{Name: "Singularity", Content: w.file.text}}
	_ = w.each("help", func(s *section) error {
		texts = append(texts, fileop.InlineFile{Name: "runscript.help", Content: []byte(s.text())})
		return nil
	})
	w.write(w.source.line, "%help", metaDir, "644", texts...)
	if has["runscript"] || !w.native { // the base's command is in the script now
		w.Config.Cmd = nil
	}
	w.Config.Entrypoint = runtimefiles.ApptainerEntrypoint()
	return nil
}

func (w *writer) labels() error {
	return w.each("labels", func(s *section) error {
		if w.Config.Labels == nil {
			w.Config.Labels = map[string]string{}
		}
		maps.Copy(w.Config.Labels, s.labels())
		return nil
	})
}

// labels reads lines NAME VALUE. As Apptainer has it, quotes belong to the value, and it may be empty.
func (s *section) labels() map[string]string {
	all := map[string]string{}
	for _, line := range s.body {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value := line, ""
		if at := strings.IndexAny(line, " \t"); at > 0 {
			name, value = line[:at], strings.TrimSpace(line[at:])
		}
		all[name] = value
	}
	return all
}

// test runs %test, as a build of Apptainer does at its end.
func (w *writer) test() error {
	return w.each("test", func(s *section) error {
		w.run(s.line, "%test", "", []string{metaDir + "actions/test"}, "", nil)
		return nil
	})
}

// makeApp makes the directories of an app, as Apptainer does, and runs its script.
const makeApp = `mkdir -p bin lib scif/env "$SCIF_APPINPUT" "$SCIF_APPOUTPUT"; exec /bin/sh -ex ` + scriptFile

// appEnvironment returns what the script of an app knows of it (SCIF, "Environment namespace").
func appEnvironment(name, root string) []string {
	data := "/scif/data/" + name
	return []string{
		"SCIF_APPNAME=" + name, "SCIF_APPROOT=" + root, "SCIF_APPMETA=" + root + "/scif", "SCIF_APPBIN=" + root + "/bin",
		"SCIF_APPLIB=" + root + "/lib", "SCIF_APPDATA=" + data, "SCIF_APPINPUT=" + data + "/input", "SCIF_APPOUTPUT=" + data + "/output",
	}
}

// apps makes the apps of the Scientific Filesystem (SCIF) that the file has.
func (w *writer) apps() error {
	for _, s := range w.source.appsInOrder() {
		root := appsDir + s.args
		text := "%" + s.name + " " + s.args
		put := func(dir, mode, name string, content []byte) {
			w.write(s.line, text, root+dir, mode, fileop.InlineFile{Name: name, Content: content})
		}
		switch s.name {
		case "appfiles":
			if err := w.copies(s, "", root); err != nil {
				return err
			}
		case "appinstall":
			w.run(s.line, text, root, []string{"/bin/sh", "-ec", makeApp}, s.text(), appEnvironment(s.args, root))
		case "appenv":
			put("/scif/env/", "755", "90-environment.sh", []byte(s.text()))
		case "apprun":
			put("/scif/", "755", "runscript", shell(s))
		case "appstart":
			put("/scif/", "755", "startscript", shell(s))
		case "apptest":
			put("/scif/", "755", "test", shell(s))
		case "apphelp":
			put("/scif/", "644", "runscript.help", []byte(s.text()))
		case "applabels":
			data, err := json.MarshalIndent(s.labels(), "", "\t")
			if err != nil {
				return err
			}
			put("/scif/", "644", "labels.json", data)
		}
	}
	return nil
}

// appsInOrder returns the sections of apps: those that are scripts of the build come last, as they use what the others bring, and app by
// app as the file names them first.
func (st *stage) appsInOrder() []*section {
	var all, installs []*section
	first := map[string]int{}
	for i, part := range st.sections {
		if !slices.Contains(appSections, part.name) {
			continue
		}
		if _, known := first[part.args]; !known {
			first[part.args] = i
		}
		if part.name == "appinstall" {
			installs = append(installs, part)
		} else {
			all = append(all, part)
		}
	}
	slices.SortStableFunc(installs, func(a, b *section) int { return first[a.args] - first[b.args] })
	return append(all, installs...)
}
