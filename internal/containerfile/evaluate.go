package containerfile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/spelling"
)

// Options say what to build of a file.
type Options struct {
	BuildArgs     map[string]string // --build-arg
	Target        string            // name or number of a stage; "" is the last
	Platform      v1.Platform       // of the image; when empty, that of this machine
	Contexts      map[string]Source // --build-context: what a name stands for, before stages and images: an Image or a Dir
	BuildPlatform v1.Platform       // what $BUILDPLATFORM says; when empty, that of this machine
}

// ConfigFunc looks up the configuration of an image.
type ConfigFunc = func(ctx context.Context, reference string, platform v1.Platform) (*v1.ConfigFile, error)

// Evaluate says what the file means. config is asked for the base image of each stage that the target needs. Mistakes in the
// file are an [*Error] or [fault.Errors], all of them, with what the rest of the file means; what config returns is wrapped with the line.
//
// When an instruction is not well formed, config is not asked, so that a slip is told at once: no registry is waited for.
func (f *File) Evaluate(ctx context.Context, o Options, config ConfigFunc) (*Build, error) {
	if o.Platform.OS == "" {
		o.Platform = thisMachine()
	}
	if o.BuildPlatform.OS == "" {
		o.BuildPlatform = thisMachine()
	}
	for _, name := range slices.Sorted(maps.Keys(o.BuildArgs)) {
		if !utf8.ValidString(name + o.BuildArgs[name]) { // for the reason that checkText has
			return nil, fault.Usage(fmt.Errorf("the build argument %q holds bytes that are not UTF-8", name))
		}
	}
	e := &evaluator{
		file: f, options: o, config: config,
		lex:   shell.NewLex(f.escape),
		args:  map[string]bool{},
		done:  map[int]int{},
		build: &Build{Warnings: slices.Clone(f.warnings), Proxy: proxyEnv(o.BuildArgs)},
	}
	if len(f.mistakes) > 0 {
		e.mistakes, e.config = slices.Clone(f.mistakes), unknownConfig
	}
	e.readGlobals()
	target, err := f.target(o.Target)
	if err != nil && len(f.mistakes) > 0 { // which may hide it: one of the others shows what else is wrong
		target, err = f.target("")
	}
	if err == nil {
		_, err = e.stage(ctx, target)
	}
	if len(e.mistakes) > 0 {
		sortByLine(e.mistakes)
		return e.build, several(e.mistakes)
	}
	if err != nil {
		return nil, err
	}
	e.warnUnused()
	slices.SortStableFunc(e.build.Warnings, func(a, b Warning) int { return a.Line - b.Line })
	return e.build, nil
}

// unknownConfig stands for the configuration of any image.
func unknownConfig(context.Context, string, v1.Platform) (*v1.ConfigFile, error) {
	return &v1.ConfigFile{}, nil
}

// target returns the number of the stage that is asked for.
func (f *File) target(name string) (int, error) {
	if name == "" {
		return len(f.stages) - 1, nil
	}
	var names []string
	for i, s := range slices.Backward(f.stages) {
		if strings.EqualFold(s.Name, name) || strconv.Itoa(i) == name {
			return i, nil
		}
		names = append(names, s.label(i))
	}
	slices.Reverse(names)
	hint := didYouMean(name, names, "its stages are "+strings.Join(names, ", "))
	return 0, fault.Usage(fault.Hint(fmt.Errorf("%s has no stage %q", f.Name, name), hint))
}

type evaluator struct {
	file    *File
	options Options
	config  ConfigFunc
	lex     *shell.Lex
	globals *scope
	build   *Build
	args    map[string]bool // names that an ARG has declared
	done    map[int]int     // number in the file -> index in build.Stages
	ends    []stageEnd      // of build.Stages

	mistakes []*Error // so far: what comes after one is looked at all the same
	unsure   bool     // the instruction at hand uses a variable that is missing, perhaps, only because of one of them
}

func (e *evaluator) warn(line int, hint, format string, args ...any) {
	w := Warning{Line: line, Message: fmt.Sprintf(format, args...), Hint: hint}
	if !slices.Contains(e.build.Warnings, w) {
		e.build.Warnings = append(e.build.Warnings, w)
	}
}

// expand replaces variables and warns of those without a value. declared are names that may have none.
func (e *evaluator) expand(line int, s *scope, declared []string, word string) (string, error) {
	result, missing, err := s.expand(e.lex, word)
	e.unsure = e.unsure || s.open && (len(missing) > 0 || err != nil && strings.Contains(word, "?"))
	for _, name := range missing {
		if !slices.Contains(declared, name) && !hasAlternative(word, name) {
			e.warn(line, didYouMean(name, s.names, ""), "$%s is not set", name)
		}
	}
	if err != nil {
		return "", explain(err)
	}
	return result, nil
}

// hasAlternative reports whether a word says what stands for a variable without a value.
func hasAlternative(word, name string) bool {
	for _, operator := range []string{":-", "-", ":+", "+"} {
		if strings.Contains(word, "${"+name+operator) {
			return true
		}
	}
	return false
}

// readGlobals sets the variables that FROM sees.
func (e *evaluator) readGlobals() {
	e.globals = predefined(e.options)
	for _, n := range e.file.globals {
		c, err := instruction(n)
		if err != nil {
			e.mistaken(n.StartLine, err)
			continue
		}
		for _, arg := range c.(*instructions.ArgCommand).Args {
			value, set := e.options.BuildArgs[arg.Key]
			if !set && arg.Value != nil {
				set = true
				if value, err = e.expand(n.StartLine, e.globals, nil, *arg.Value); err != nil {
					e.mistaken(n.StartLine, err)
					set, e.globals.open = false, true
				}
			}
			if set {
				e.globals.set(arg.Key, value)
			}
		}
	}
}

// warnUnused names the build arguments that no ARG of the file declares.
func (e *evaluator) warnUnused() {
	for _, n := range e.file.globals {
		collectArgs(n, e.args)
	}
	for _, s := range e.file.stages { // also those that were not needed
		for _, n := range s.nodes {
			collectArgs(n, e.args)
		}
	}
	names := slices.Sorted(maps.Keys(e.args))
	for _, name := range slices.Sorted(maps.Keys(e.options.BuildArgs)) {
		_, known := e.globals.values[name]
		if !e.args[name] && !known && !isProxy(name) {
			e.warn(0, didYouMean(name, names, "declare it: ARG "+name), "the build argument %s is used by no ARG", name)
		}
	}
}

func collectArgs(n *parser.Node, into map[string]bool) {
	c, err := instruction(n)
	if arg, ok := c.(*instructions.ArgCommand); ok && err == nil {
		for _, a := range arg.Args {
			into[a.Key] = true
		}
	}
}

// refer looks up a stage by its name or number, as seen from the stage with number from, or -1 when there is none.
func (e *evaluator) refer(name string, from int) (int, error) {
	stages := e.file.stages
	number, err := strconv.Atoi(name)
	isNumber := err == nil && number >= 0
	if isNumber && number >= len(stages) {
		return -1, wrongf(fmt.Sprintf("they are numbered from 0 to %d", len(stages)-1), "there is no stage %d", number)
	}
	if i := e.earlier(name, from); i >= 0 {
		return i, nil
	}
	for i, s := range stages[from:] {
		i += from
		switch named := strings.EqualFold(s.Name, name); {
		case !named && (!isNumber || number != i):
		case i == from:
			return -1, wrongf("", "stage %s cannot use itself", s.label(i))
		default:
			hint := "move it up"
			if named {
				hint += "; or, for the image of that name, write docker.io/library/" + name
			}
			return -1, wrongf(hint, "stage %s comes only in line %d", s.label(i), s.line)
		}
	}
	return -1, nil
}

// earlier returns the last stage before number from that a name or number means, or -1.
func (e *evaluator) earlier(name string, from int) int {
	for i, s := range slices.Backward(e.file.stages[:from]) {
		if strings.EqualFold(s.Name, name) || strconv.Itoa(i) == name {
			return i
		}
	}
	return -1
}

// nearStage returns the name of an earlier stage that is meant, perhaps, by the name of an image, or "".
func (e *evaluator) nearStage(image string, from int) string {
	if strings.ContainsAny(image, "/:@") {
		return ""
	}
	var names []string
	for _, s := range e.file.stages[:from] {
		names = append(names, s.Name)
	}
	return spelling.Nearest(image, names)
}

// warnNear warns when the name of an image looks like that of a stage.
func (e *evaluator) warnNear(line int, image string, from int) {
	if near := e.nearStage(image, from); near != "" {
		e.warn(line, "did you mean "+near+"?", "no stage is called %s, so it is taken for an image", image)
	}
}

// stage evaluates a stage of the file, and those that it uses before it, and returns its index in the build.
func (e *evaluator) stage(ctx context.Context, number int) (int, error) {
	if i, ok := e.done[number]; ok {
		return i, nil
	}
	section := e.file.stages[number]
	s := &stage{
		evaluator: e, number: number, section: section,
		Stage: &Stage{Name: section.label(number), Parent: -1, Platform: e.options.Platform},
	}
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	for _, n := range section.nodes {
		err := s.apply(ctx, n, n.StartLine)
		if !e.mistaken(n.StartLine, err) {
			return 0, err
		}
		s.env.open = s.env.open || err != nil
	}
	e.build.Stages = append(e.build.Stages, s.Stage)
	e.ends = append(e.ends, stageEnd{s.env, s.args})
	e.done[number] = len(e.build.Stages) - 1
	return e.done[number], nil
}

// elsewhere marks an error that says itself where it comes from.
type elsewhere struct{ error }

func (e elsewhere) Unwrap() error { return e.error }

// mistaken notes a mistake in a line, so that all of them are reported at once, but for what may only follow from another one. It
// reports whether to go on: not after an error that is not about the file.
func (e *evaluator) mistaken(line int, err error) bool {
	var other elsewhere
	switch {
	case err == nil:
	case errors.As(err, &other):
		return false
	case !e.unsure:
		e.mistakes = append(e.mistakes, e.file.at(line, err))
	}
	return true
}

// source says where the files of COPY --from=name, or of a mount's from=name, come from.
func (s *stage) source(ctx context.Context, line int, name string) (Source, error) {
	if strings.ContainsRune(name, '$') {
		return Source{}, wrongf("FROM takes variables of an ARG before the first FROM: give that stage a name and use it", "from cannot hold a variable: %s", name)
	}
	if given, ok := s.options.Contexts[strings.ToLower(name)]; ok {
		return given, nil
	}
	number, err := s.refer(name, s.number)
	if err != nil {
		return Source{}, err
	}
	if number >= 0 {
		i, err := s.evaluator.stage(ctx, number)
		if err != nil {
			return Source{}, elsewhere{err}
		}
		return Source{Stage: i}, nil
	}
	if strings.EqualFold(name, Scratch) {
		return Source{}, wrongf("", "%s holds no files", Scratch)
	}
	s.warnNear(line, name, s.number)
	return Source{Stage: -1, Image: name}, nil
}
