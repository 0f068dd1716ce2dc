package containerfile

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/searchpath"
)

// stage is a [Stage] in the making.
type stage struct {
	*evaluator
	*Stage
	number  int // in the file
	section *section

	env    *scope   // what instructions and commands see: ENV and ARG
	args   []string // names of ARG, also those without a value
	cmdSet bool     // CMD was given since FROM
}

// stageEnd is what FROM STAGE goes on with, besides the Stage.
type stageEnd struct {
	env  *scope
	args []string
}

// begin does what FROM says, and then what the base's ONBUILD asks for.
func (s *stage) begin(ctx context.Context) error {
	line := s.section.line
	s.unsure = false
	var err error
	if !s.section.unknown {
		err = s.base(ctx, line)
	}
	if !s.mistaken(line, err) {
		return err
	}
	if s.env == nil { // after a mistake, of which the file's own are known already
		s.From, s.env = Scratch, newScope(nil)
	}
	s.env.open = s.env.open || err != nil || len(s.file.mistakes) > 0
	if _, has := s.env.Get("PATH"); !has {
		s.env.set("PATH", searchpath.Default)
	}
	triggers := s.Config.OnBuild
	s.Config.OnBuild = nil
	for _, text := range triggers {
		if err := s.trigger(ctx, line, text); !s.mistaken(line, err) {
			return err
		}
	}
	return nil
}

// giveValue is what to do about a FROM that makes a name of a variable without a value.
const giveValue = "give the ARG before the first FROM a value, or pass --build-arg"

func (s *stage) base(ctx context.Context, line int) error {
	name, err := s.expand(line, s.globals, nil, s.section.BaseName)
	if err != nil {
		return err
	}
	switch {
	case name == "":
		return wrongf(giveValue, "FROM %s names nothing", s.section.BaseName)
	case name != s.section.BaseName && strings.ContainsAny(name[len(name)-1:], ":/@"):
		return wrongf(giveValue, "FROM %s names nothing: it is %q", s.section.BaseName, name)
	}
	if err := s.platform(line); err != nil {
		return err
	}
	if given, ok := s.options.Contexts[strings.ToLower(name)]; ok {
		return s.fromImage(ctx, line, given.reference())
	}
	if strings.EqualFold(name, Scratch) && s.earlier(name, s.number) < 0 {
		s.From = Scratch
		s.Config.Env = []string{"PATH=" + searchpath.Default} // no base says where programs will be
		s.env = newScope(s.Config.Env)
		return nil
	}
	number := s.earlier(name, s.number)
	if number < 0 && !strings.EqualFold(name, s.section.Name) { // FROM debian AS debian is the image
		if number, err = s.refer(name, s.number); err != nil {
			return err
		}
		s.warnNear(line, name, s.number)
	}
	if number >= 0 {
		return s.fromStage(ctx, number)
	}
	return s.fromImage(ctx, line, name)
}

// platform reads FROM --platform.
func (s *stage) platform(line int) error {
	if s.section.Platform == "" {
		return nil
	}
	text, err := s.expand(line, s.globals, nil, s.section.Platform)
	if err != nil {
		return err
	}
	if text == "" {
		return wrongf("for example --platform=linux/arm64", "FROM --platform=%s names nothing", s.section.Platform)
	}
	s.Platform, err = parsePlatform(text, s.options.Platform)
	return err
}

// reference is what FROM calls a source that is an image or a directory.
func (s Source) reference() string {
	if s.Dir != "" {
		return "dir:" + s.Dir
	}
	return s.Image
}

func (s *stage) fromStage(ctx context.Context, number int) error {
	i, err := s.evaluator.stage(ctx, number)
	if err != nil {
		return elsewhere{err}
	}
	parent := s.build.Stages[i]
	if s.section.Platform != "" && !s.Platform.Equals(parent.Platform) {
		return wrongf("", "stage %s is for %s, not for %s", parent.Name, platformString(parent.Platform), platformString(s.Platform))
	}
	s.Parent, s.Platform, s.Author, s.StartInterval = i, parent.Platform, parent.Author, parent.StartInterval
	s.Config = *parent.Config.DeepCopy()
	s.env, s.args = s.ends[i].env.clone(), slices.Clone(s.ends[i].args)
	return nil
}

func (s *stage) fromImage(ctx context.Context, line int, name string) error {
	c, err := s.config(ctx, name, s.Platform)
	if err != nil {
		if near := s.nearStage(name, s.number); near != "" {
			err = fault.Hint(err, "did you mean the stage "+near+"?")
		}
		return elsewhere{fmt.Errorf("%s:%d: %w", s.file.Name, line, err)}
	}
	if c.Architecture != "" && (c.OS != s.Platform.OS || c.Architecture != s.Platform.Architecture) {
		s.warn(line, "", "%s is for %s/%s, not for %s", name, c.OS, c.Architecture, platformString(s.Platform))
	}
	s.From, s.Author = name, c.Author
	s.Config = *c.Config.DeepCopy()
	s.env = newScope(s.Config.Env)
	return nil
}

// trigger applies an instruction that the base recorded with ONBUILD.
func (s *stage) trigger(ctx context.Context, line int, text string) error {
	result, err := parser.Parse(strings.NewReader(text))
	if err == nil && len(result.AST.Children) != 1 {
		err = wrongf("", "it is not one instruction")
	}
	if err == nil {
		err = s.apply(ctx, result.AST.Children[0], line)
	}
	if e, ok := err.(elsewhere); ok { //nolint:errorlint // only the outermost says whether there is a place
		return e
	}
	if err != nil {
		err = explain(err)
		return wrong{fmt.Sprintf("ONBUILD %.60s of the base: %s", text, err), fault.HintOf(err)}
	}
	return nil
}

// apply does what one instruction says, as far as its variables are known.
func (s *stage) apply(ctx context.Context, n *parser.Node, line int) error {
	s.unsure = false
	c, err := instruction(n)
	if err != nil {
		return err
	}
	op := Op{Line: line, Text: text(n)}
	s.env.watch()
	if err := s.expandWords(c, line); err != nil {
		return err
	}
	switch c := c.(type) {
	case *instructions.RunCommand:
		s.warnChown(n.Flags, line)
		op.Run, err = s.run(ctx, c, line)
	case *instructions.CopyCommand:
		op.Copy, err = s.copyFiles(ctx, c, line)
	case *instructions.AddCommand:
		op.Copy, err = s.addFiles(c, line)
	case *instructions.WorkdirCommand:
		op.WorkDir = s.workDir(c.Path)
	default:
		err = s.configure(c, line)
	}
	if err != nil || s.unsure {
		return err
	}
	op.Args = s.argsOf(op)
	s.Ops = append(s.Ops, op)
	return nil
}

// argsOf are the build arguments that an instruction took: those that its words name, and all for a command, which sees them as
// variables.
func (s *stage) argsOf(op Op) []Arg {
	var args []Arg
	for _, name := range slices.Sorted(slices.Values(s.args)) {
		value, set := s.env.Get(name)
		if arg := (Arg{name, value}); set && (op.Run != nil || s.env.taken[name]) && !slices.Contains(args, arg) {
			args = append(args, arg)
		}
	}
	return args
}

// expandWords replaces the variables of an instruction that has some, but for ARG, whose values count one by one.
func (s *stage) expandWords(c any, line int) error {
	if _, is := c.(*instructions.ArgCommand); is {
		return nil
	}
	if c, ok := c.(instructions.SupportsSingleWordExpansion); ok {
		err := c.Expand(func(word string) (string, error) { return s.expand(line, s.env, s.args, word) })
		if err != nil {
			return explain(err)
		}
	}
	if c, ok := c.(instructions.SupportsSingleWordExpansionRaw); ok { // here-documents keep their quotes
		lex := shell.NewLex('\\')
		lex.SkipProcessQuotes = true
		return c.ExpandRaw(func(word string) (string, error) {
			result, _, err := s.env.expand(lex, word)
			return result, err
		})
	}
	return nil
}

// configure does what an instruction says that only changes the configuration.
func (s *stage) configure(c any, line int) error {
	switch c := c.(type) {
	case *instructions.ArgCommand:
		return s.declare(c, line)
	case *instructions.EnvCommand:
		for _, e := range c.Env {
			s.env.set(e.Key, e.Value)
			s.Config.Env = setEnv(s.Config.Env, e.Key, e.Value)
		}
	case *instructions.LabelCommand:
		s.Config.Labels = maps.Clone(s.Config.Labels)
		if s.Config.Labels == nil {
			s.Config.Labels = map[string]string{}
		}
		for _, l := range c.Labels {
			s.Config.Labels[l.Key] = l.Value
		}
	case *instructions.CmdCommand:
		s.Config.Cmd, s.cmdSet = s.commandLine(c.ShellDependantCmdLine), true
	case *instructions.EntrypointCommand:
		s.Config.Entrypoint = s.commandLine(c.ShellDependantCmdLine)
		if !s.cmdSet { // the base's arguments were for the base's entry point
			s.Config.Cmd = nil
		}
	case *instructions.ShellCommand:
		s.Config.Shell = c.Shell
	case *instructions.UserCommand:
		s.Config.User = c.User
	case *instructions.MaintainerCommand:
		s.Author = c.Maintainer
	case *instructions.OnbuildCommand:
		s.Config.OnBuild = append(s.Config.OnBuild, c.Expression)
	case *instructions.VolumeCommand:
		return s.volumes(c)
	case *instructions.ExposeCommand:
		return s.expose(c, line)
	case *instructions.StopSignalCommand:
		return s.stopSignal(c.Signal)
	case *instructions.HealthCheckCommand:
		s.healthcheck(c)
	default:
		return wrongf("", "%T cannot be evaluated", c)
	}
	return nil
}

// declare sets the variables of ARG: from the command line, from the default, or from the ARG of that name before FROM.
func (s *stage) declare(c *instructions.ArgCommand, line int) error {
	for _, arg := range c.Args {
		value, set := s.options.BuildArgs[arg.Key]
		if !set && arg.Value != nil {
			var err error
			if value, err = s.expand(line, s.env, s.args, *arg.Value); err != nil {
				return err
			}
			set = true
		}
		if !set {
			value, set = s.globals.Get(arg.Key)
			s.env.open = s.env.open || !set && s.globals.open
		}
		if set {
			s.env.set(arg.Key, value)
		}
		s.args = append(s.args, arg.Key)
		s.evaluator.args[arg.Key] = true
	}
	return nil
}

// setEnv returns env with a variable set, without changing env.
func setEnv(env []string, name, value string) []string {
	env = slices.Clone(env)
	for i, kv := range env {
		if key, _, _ := strings.Cut(kv, "="); key == name {
			env[i] = name + "=" + value
			return env
		}
	}
	return append(env, name+"="+value)
}

// commandLine returns the arguments of CMD or ENTRYPOINT.
func (s *stage) commandLine(c instructions.ShellDependantCmdLine) []string {
	switch {
	case len(c.CmdLine) == 0:
		return nil
	case c.PrependShell:
		return s.withShell(strings.Join(c.CmdLine, " "))
	default:
		return c.CmdLine
	}
}

// withShell returns what runs a line of the shell.
func (s *stage) withShell(line string) []string {
	if len(s.Config.Shell) > 0 {
		return append(slices.Clone(s.Config.Shell), line)
	}
	return []string{"/bin/sh", "-c", line}
}

// workDir sets the working directory. An empty name, as of a variable without a value, is the one that there is.
func (s *stage) workDir(dir string) *WorkDir {
	s.Config.WorkingDir = s.absolute(dir)
	if s.Config.WorkingDir == "/" {
		return nil
	}
	return &WorkDir{Dir: s.Config.WorkingDir, User: s.Config.User}
}

// absolute returns a path of the image, taken from the working directory.
func (s *stage) absolute(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join("/", s.Config.WorkingDir, name)
}

func (s *stage) volumes(c *instructions.VolumeCommand) error {
	s.Config.Volumes = maps.Clone(s.Config.Volumes)
	if s.Config.Volumes == nil {
		s.Config.Volumes = map[string]struct{}{}
	}
	for _, v := range c.Volumes {
		if v == "" {
			return wrongf("", "VOLUME names nothing")
		}
		s.Config.Volumes[v] = struct{}{}
	}
	return nil
}

// stopSignal takes a signal by its name, with or without SIG, or by its number.
func (s *stage) stopSignal(name string) error {
	number, err := strconv.Atoi(name)
	upper := "SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG")
	rt := strings.HasPrefix(upper, "SIGRTMIN") || strings.HasPrefix(upper, "SIGRTMAX")
	if (err != nil || number < 1 || number > 64) && unix.SignalNum(upper) == 0 && !rt {
		return wrongf("for example SIGTERM", "there is no signal %q", name)
	}
	s.Config.StopSignal = name
	return nil
}

func (s *stage) healthcheck(c *instructions.HealthCheckCommand) {
	h := c.Health
	s.StartInterval = h.StartInterval
	s.Config.Healthcheck = &v1.HealthConfig{
		Test: h.Test, Interval: h.Interval, Timeout: h.Timeout, StartPeriod: h.StartPeriod, Retries: h.Retries,
	}
}

// expose reads ports: PORT[-PORT][/PROTOCOL].
func (s *stage) expose(c *instructions.ExposeCommand, line int) error {
	s.Config.ExposedPorts = maps.Clone(s.Config.ExposedPorts)
	if s.Config.ExposedPorts == nil {
		s.Config.ExposedPorts = map[string]struct{}{}
	}
	for _, given := range c.Ports {
		words, err := s.lex.ProcessWords(given, s.env)
		if err != nil {
			return explain(err)
		}
		for _, word := range words {
			if i := strings.LastIndexByte(word, ':'); i >= 0 {
				s.warn(line, "where a port is published is said when the image is run", "EXPOSE %s: only the port of the container counts", word)
				word = word[i+1:]
			}
			if err := exposeRange(s.Config.ExposedPorts, word); err != nil {
				return err
			}
		}
	}
	return nil
}

func exposeRange(ports map[string]struct{}, word string) error {
	span, protocol, _ := strings.Cut(word, "/")
	if protocol == "" {
		protocol = "tcp"
	}
	protocol = strings.ToLower(protocol)
	if !slices.Contains([]string{"tcp", "udp", "sctp"}, protocol) {
		return wrongf("it is tcp, udp or sctp", "EXPOSE %s: there is no protocol %s", word, protocol)
	}
	low, high, isSpan := strings.Cut(span, "-")
	if !isSpan {
		high = low
	}
	first, err1 := strconv.ParseUint(low, 10, 16)
	last, err2 := strconv.ParseUint(high, 10, 16)
	if err1 != nil || err2 != nil || first > last {
		return wrongf("for example 8080, 53/udp or 9000-9010", "EXPOSE %s is no port", word)
	}
	for port := first; port <= last; port++ {
		ports[fmt.Sprintf("%d/%s", port, protocol)] = struct{}{}
	}
	return nil
}
