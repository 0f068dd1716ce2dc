package containerfile

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/command"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/spelling"
)

// File is a parsed Containerfile.
type File struct {
	Name   string
	Syntax string // what the directive "# syntax=" names: noted, not fetched, as nothing here depends on it

	escape   rune
	globals  []*parser.Node // ARG instructions before the first FROM
	stages   []*section
	warnings []Warning
	mistakes []*Error // of form, in instructions without which the others can be judged
}

// section is a stage as it stands in the file. Its instructions are kept as nodes: expansion changes the typed ones.
type section struct {
	*instructions.Stage
	line  int
	nodes []*parser.Node

	unknown bool // its FROM is not well formed, and says nothing of the base
}

// Parse reads a Containerfile. name is used in messages. Mistakes of form are an [*Error] or [fault.Errors] here when nothing is left to judge:
// when there is no stage. Others are told by [File.Evaluate], together with what is wrong beside them.
func Parse(name string, data []byte) (*File, error) {
	f := &File{Name: name}
	result, err := f.parse(data)
	if err != nil {
		return nil, err
	}
	f.escape = result.EscapeToken
	f.Syntax, _, _, _ = parser.DetectSyntax(data)
	for _, w := range result.Warnings {
		f.warnings = append(f.warnings, Warning{Line: w.Location.Start.Line, Message: "an empty line within an instruction", Hint: "remove it, or end the line before without " + string(f.escape)})
	}
	for _, n := range result.AST.Children {
		err := checkText(n)
		if addErr := f.add(n); err == nil {
			err = addErr
		}
		if err != nil {
			f.mistakes = append(f.mistakes, f.at(n.StartLine, err))
		}
	}
	sortByLine(f.mistakes)
	if len(f.mistakes) == 0 && len(f.stages) == 0 {
		last := result.AST.Children[len(result.AST.Children)-1]
		return nil, f.at(last.StartLine, wrongf("FROM says what the image begins with; FROM scratch is an empty one", "there is no FROM"))
	}
	if len(f.stages) == 0 {
		return nil, several(f.mistakes)
	}
	return f, nil
}

// parse parses the form of all instructions. A here-document without an end takes in all that follows: what stands before it can be judged
// all the same.
func (f *File) parse(data []byte) (*parser.Result, error) {
	result, err := parser.Parse(bytes.NewReader(data))
	if err == nil {
		return result, nil
	}
	mistake := f.at(lineOf(err), explain(err))
	if !isEndless(err) {
		return nil, mistake
	}
	before := bytes.Join(slices.Collect(bytes.Lines(data))[:mistake.Line-1], nil)
	if result, err = parser.Parse(bytes.NewReader(before)); err != nil {
		return nil, mistake
	}
	f.mistakes = append(f.mistakes, mistake)
	return result, nil
}

// isEndless reports whether the parser found no end of a here-document.
func isEndless(err error) bool { return strings.TrimSpace(err.Error()) == "unterminated heredoc" }

// isFrom reports whether an instruction begins a stage, or means to.
func isFrom(n *parser.Node) bool {
	word := strings.ToUpper(n.Value)
	return word == "FROM" || spelling.Nearest(word, instructionNames()) == "FROM"
}

// meantName is the name that a FROM gives its stage that is not well formed, as far as it says so.
func meantName(n *parser.Node) string {
	words := strings.Fields(strings.ToLower(n.Original))
	if len(words) < 3 || words[len(words)-2] != "as" {
		return ""
	}
	return words[len(words)-1]
}

// add takes the next instruction.
func (f *File) add(n *parser.Node) error {
	c, err := instruction(n)
	switch c := c.(type) {
	case *instructions.Stage:
		f.warnName(c, n.StartLine)
		f.stages = append(f.stages, &section{Stage: c, line: n.StartLine})
		return nil
	case *instructions.ArgCommand:
		if len(f.stages) == 0 {
			f.globals = append(f.globals, n)
			return nil
		}
	}
	switch {
	case err != nil && isFrom(n): // a stage all the same, or everything after it would be wrong too
		f.stages = append(f.stages, &section{Stage: &instructions.Stage{Name: meantName(n)}, line: n.StartLine, unknown: true})
	case err == nil && len(f.stages) == 0:
		err = wrongf("begin with FROM; only ARG may stand before it", "%s before the first FROM", strings.ToUpper(n.Value))
	case err == nil:
		last := f.stages[len(f.stages)-1]
		last.nodes = append(last.nodes, n)
	}
	return err
}

// checkText refuses bytes that are not UTF-8, but in comments. Keys and the image's configuration are JSON, which has none of
// them: two commands that differ in nothing else would be one. BuildKit cannot run such a command either.
func checkText(n *parser.Node) error {
	whole := utf8.ValidString(n.Original)
	for _, doc := range n.Heredocs {
		whole = whole && utf8.ValidString(doc.Content)
	}
	if whole {
		return nil
	}
	return wrongf("save it as UTF-8; printf '\\351' writes any byte", "%s holds bytes that are not UTF-8", strings.ToUpper(n.Value))
}

// warnName warns of names of stages that mean something else already. BuildKit takes them, and the stage is meant from there on.
func (f *File) warnName(s *instructions.Stage, line int) {
	switch s.Name {
	case "":
		return
	case Scratch, "context":
		f.warn(line, "give the stage another name", "a stage called %s hides what else has that name", s.Name)
	}
	for _, other := range f.stages {
		if s.Name == other.Name {
			f.warn(line, "give the stages different names", "the stage in line %d is called %s too; below, the name means this one", other.line, s.Name)
			return
		}
	}
}

func (f *File) warn(line int, hint, format string, args ...any) {
	f.warnings = append(f.warnings, Warning{Line: line, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// instruction returns the typed form of a node, made anew.
func instruction(n *parser.Node) (any, error) {
	name := strings.ToLower(n.Value)
	if _, known := command.Commands[name]; !known {
		return nil, wrongf(didYouMean(strings.ToUpper(n.Value), instructionNames(), "a line that goes on ends in \\"), "there is no instruction %s", n.Value)
	}
	bare := *n
	bare.PrevComment = nil // BuildKit's parser panics on "# check=…" there, which is for its linter
	if name == command.Run {
		bare.Flags = withoutLabels(n.Flags)
	}
	c, err := instructions.ParseInstruction(&bare)
	if err != nil {
		return nil, explainFlag(name, err)
	}
	switch name {
	case command.Run, command.Cmd, command.Entrypoint:
		empty := n.Next == nil || n.Next.Value == "" && n.Next.Next == nil
		if empty && (name == command.Run) == n.Attributes["json"] { // RUN without anything does nothing, and CMD [] too
			return nil, wrongf("", "%s without a command", strings.ToUpper(name))
		}
	case command.Onbuild:
		return c, checkTrigger(n)
	}
	return c, nil
}

// checkTrigger checks the instruction within an ONBUILD.
func checkTrigger(n *parser.Node) error {
	if n.Next == nil || len(n.Next.Children) == 0 {
		return wrongf("", "ONBUILD without an instruction")
	}
	inner := *n.Next.Children[0]
	inner.Heredocs = n.Heredocs
	_, err := instruction(&inner)
	return err
}

func instructionNames() []string {
	names := slices.Sorted(maps.Keys(command.Commands))
	for i := range names {
		names[i] = strings.ToUpper(names[i])
	}
	return names
}

// flags are the options of each instruction that has some.
var flags = map[string][]string{
	command.From:        {"--platform"},
	command.Run:         {"--mount", "--network", "--security", "--device"},
	command.Copy:        {"--from", "--chown", "--chmod", "--link", "--parents", "--exclude"},
	command.Add:         {"--chown", "--chmod", "--link", "--exclude", "--checksum", "--keep-git-dir", "--unpack"},
	command.Healthcheck: {"--interval", "--timeout", "--start-period", "--start-interval", "--retries"},
}

var (
	unknownFlag = lazyregexp.New(`unknown flag: (--\S+)`)
	suggestion  = lazyregexp.New(` \(did you mean (.*)\?\)$`)
)

// explainFlag is explain for an instruction whose options are known.
func explainFlag(instruction string, err error) error {
	m := unknownFlag.FindStringSubmatch(err.Error())
	if m == nil {
		return explain(err)
	}
	hint, upper := "it takes no options", strings.ToUpper(instruction)
	if known := flags[instruction]; len(known) > 0 {
		hint = didYouMean(m[1], known, upper+" takes "+strings.Join(known, ", "))
	}
	return wrongf(hint, "%s has no option %s", upper, m[1])
}

// explain takes the parser's suggestion out of its message.
func explain(err error) error {
	message := strings.TrimSpace(err.Error())
	if m := suggestion.FindStringSubmatch(message); m != nil {
		return wrongf("did you mean "+m[1]+"?", "%s", strings.TrimSuffix(message, m[0]))
	}
	switch {
	case isEndless(err):
		return wrongf("its last line holds only the word after <<", "a here-document has no end")
	case message == "file with no instructions":
		return wrongf("begin with FROM", "it holds no instruction")
	case strings.HasSuffix(message, "unsupported modifier (\uFFFD) in substitution"):
		return wrongf("", "%s: a } is missing", strings.TrimSuffix(message, ": unsupported modifier (\uFFFD) in substitution"))
	}
	return wrong{message, fault.HintOf(err)}
}

// lineOf returns the line in which the parser saw a mistake.
func lineOf(err error) int {
	var at *parser.LocationError
	if !errors.As(err, &at) || len(at.Locations) == 0 || len(at.Locations[0]) == 0 {
		return 1
	}
	line := at.Locations[0][0].Start.Line
	if strings.Contains(err.Error(), "escape token") || strings.Contains(err.Error(), "parser directive") {
		line++ // the parser counts these from 0
	}
	return line
}

// label is what a stage without a name is called: its number.
func (s *section) label(number int) string {
	if s.Name != "" {
		return s.Name
	}
	return strconv.Itoa(number)
}
