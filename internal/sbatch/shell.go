package sbatch

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Word is a word of a command.
type Word struct {
	Text  string // without quotes; variables and substitutions are there as they are written
	Fixed bool   // there are none
	At    int    // where in the file, in bytes
	node  *syntax.Word
}

// Call is a simple command.
type Call struct {
	Name    string // of the program, without its directory; "" when it is not fixed
	Words   []Word // all of them
	Options []Option
	Command []Word // of srun, what is started; of others the words behind the first
	At      int
	Traced  bool  // set -x is on
	Inside  *Call // the srun that starts this; nil for what the batch script runs itself
	Joined  bool  // & stands right behind the last word, and the line goes on right behind it: "a&b"
}

// Assign is a variable that is set, for a command or from then on.
type Assign struct {
	Name   string
	Value  string // as a Word's text
	Fixed  bool
	At     int
	Traced bool
	Inside *Call
}

// walker goes through the commands of a script, or of a text within it.
type walker struct {
	script *Script
	data   []byte // that was parsed
	offset int    // of data in the script; the same for all of it when flat
	flat   bool   // places in data are not places in the script: all are at offset
	inside *Call
	traced bool
	depth  int
}

// maxDepth bounds scripts within scripts.
const maxDepth = 8

func (w *walker) at(p syntax.Pos) int {
	if w.flat {
		return w.offset
	}
	return w.offset + int(p.Offset())
}

func (w *walker) statements(f *syntax.File) {
	syntax.Walk(f, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Stmt:
			w.statement(n)
		case *syntax.DeclClause:
			w.assigns(n.Args)
		}
		return true
	})
}

func (w *walker) statement(s *syntax.Stmt) {
	c, ok := s.Cmd.(*syntax.CallExpr)
	if !ok {
		return
	}
	w.assigns(c.Assigns)
	if len(c.Args) == 0 {
		return
	}
	call := &Call{At: w.at(c.Args[0].Pos()), Traced: w.traced, Inside: w.inside, Joined: w.isJoined(s)}
	for _, a := range c.Args {
		call.Words = append(call.Words, w.word(a))
	}
	if call.Words[0].Fixed {
		call.Name = path.Base(call.Words[0].Text)
	}
	call.Command = call.Words[1:]
	w.script.Calls = append(w.script.Calls, call)
	switch call.Name {
	case "set":
		w.set(call.Words[1:])
	case "srun", "sbatch", "salloc":
		call.Options, call.Command = parseOptions(call.Words[1:], call.Name == "sbatch")
	}
	w.started(call)
}

// isJoined reports whether a command was put into the background by an ampersand that was not meant to.
func (w *walker) isJoined(s *syntax.Stmt) bool {
	if !s.Background || !s.Semicolon.IsValid() {
		return false
	}
	i := int(s.Semicolon.Offset())
	blank := func(i int) bool {
		return i < 0 || i >= len(w.data) || bytes.IndexByte([]byte(" \t\r\n;)&"), w.data[i]) >= 0
	}
	return !blank(i-1) && !blank(i+1)
}

// set follows `set -x` and `set +x`.
func (w *walker) set(words []Word) {
	for i, word := range words {
		on := strings.HasPrefix(word.Text, "-")
		if word.Text == "--" {
			return
		}
		if !on && !strings.HasPrefix(word.Text, "+") {
			continue
		}
		if strings.Contains(word.Text, "x") ||
			strings.HasSuffix(word.Text, "o") && i+1 < len(words) && words[i+1].Text == "xtrace" {
			w.traced = on
		}
	}
}

func (w *walker) assigns(list []*syntax.Assign) {
	for _, a := range list {
		if a.Name == nil || a.Naked || a.Array != nil {
			continue
		}
		set := Assign{Name: a.Name.Value, Fixed: true, At: w.at(a.Pos()), Traced: w.traced, Inside: w.inside}
		if a.Value != nil {
			v := w.word(a.Value)
			set.Value, set.Fixed = v.Text, v.Fixed
		}
		w.script.Sets = append(w.script.Sets, set)
	}
}

// word reads a word.
func (w *walker) word(n *syntax.Word) Word {
	out := Word{Fixed: true, At: w.at(n.Pos()), node: n}
	var b strings.Builder
	w.parts(&b, n.Parts, &out)
	out.Text = b.String()
	return out
}

func (w *walker) parts(b *strings.Builder, parts []syntax.WordPart, out *Word) {
	for _, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			b.WriteString(unescape(p.Value))
		case *syntax.SglQuoted:
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			w.parts(b, p.Parts, out)
		default:
			out.Fixed = false
			b.Write(w.source(p))
		}
	}
}

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			if i++; s[i] == '\n' {
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func (w *walker) source(n syntax.Node) []byte {
	from, to := int(n.Pos().Offset()), int(n.End().Offset())
	if from > to || to > len(w.data) {
		return nil
	}
	return w.data[from:to]
}

// Shells are the programs whose -c takes a script.
var shells = []string{"bash", "sh", "dash"}

// programs are those of which it is worth knowing that a container starts them.
var programs = append([]string{
	"accelerate", "deepspeed", "mpiexec", "mpirun", "pip", "pip3", "python", "python3", "scontrol", "squeue", "srun", "torchrun", "uv",
}, shells...)

// wrappers are the programs that start another one, which stands in their arguments.
var wrappers = []string{"command", "env", "exec", "ionice", "nice", "nohup", "numactl", "setsid", "stdbuf", "taskset", "time", "timeout"}

// started looks at what srun, a container's runtime or a wrapper starts: a command, or the text of bash -c.
func (w *walker) started(call *Call) {
	inside := call.Inside
	if call.Name == "srun" {
		inside = call
	}
	words := call.Command
	switch {
	case slices.Contains(shells, call.Name):
		words = call.Words
	case call.Name != "srun" && !slices.Contains(wrappers, call.Name):
		return
	}
	i := slices.IndexFunc(words, func(word Word) bool { return word.Fixed && slices.Contains(programs, path.Base(word.Text)) })
	if i < 0 {
		return
	}
	name := path.Base(words[i].Text)
	if !slices.Contains(shells, name) {
		started := &Call{Name: name, Words: words[i:], Command: words[i+1:], At: words[i].At, Traced: w.traced, Inside: inside}
		w.script.Calls = append(w.script.Calls, started)
		return
	}
	for j := i + 1; j+1 < len(words) && strings.HasPrefix(words[j].Text, "-"); j++ {
		if !strings.HasPrefix(words[j].Text, "--") && strings.HasSuffix(words[j].Text, "c") {
			w.text(words[j+1], inside)
			return
		}
	}
}

// text goes through the text of bash -c.
func (w *walker) text(word Word, inside *Call) {
	if w.depth == maxDepth || word.node == nil {
		return
	}
	within := &walker{script: w.script, inside: inside, depth: w.depth + 1, offset: word.At, flat: true}
	if q, ok := single(word.node); ok && !w.flat {
		within.offset, within.flat = w.at(q.Left)+1, false
		within.data = []byte(q.Value)
	} else {
		within.data = []byte(w.innerText(word.node))
	}
	if f, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(bytes.NewReader(within.data), ""); err == nil {
		within.statements(f)
	}
}

// single returns the one part of a word in single quotes.
func single(n *syntax.Word) (*syntax.SglQuoted, bool) {
	if len(n.Parts) != 1 {
		return nil, false
	}
	q, ok := n.Parts[0].(*syntax.SglQuoted)
	return q, ok && !q.Dollar
}

// innerText is what bash -c gets, as far as it is fixed. What the outer shell puts in is left out: an X stands there.
func (w *walker) innerText(n *syntax.Word) string {
	var b strings.Builder
	var add func(parts []syntax.WordPart)
	add = func(parts []syntax.WordPart) {
		for _, p := range parts {
			switch p := p.(type) {
			case *syntax.Lit:
				b.WriteString(strings.NewReplacer(`\$`, `$`, `\"`, `"`, "\\`", "`", `\\`, `\`).Replace(p.Value))
			case *syntax.SglQuoted:
				b.WriteString(p.Value)
			case *syntax.DblQuoted:
				add(p.Parts)
			default:
				b.WriteByte('X')
			}
		}
	}
	add(n.Parts)
	return b.String()
}

// Expanded lists the variables that the outer shell puts into a word, as in "… $RANK …".
func (w Word) Expanded() []string {
	var all []string
	if w.node == nil {
		return nil
	}
	syntax.Walk(w.node, func(n syntax.Node) bool {
		if p, ok := n.(*syntax.ParamExp); ok && p.Param != nil {
			all = append(all, p.Param.Value)
		}
		return true
	})
	return all
}

// Broken reports whether quotes end within a word and begin again behind text that is not quoted, as in "a "$b" c".
func (w Word) Broken() bool {
	if w.node == nil {
		return false
	}
	parts := w.node.Parts
	quoted := func(p syntax.WordPart) bool { _, ok := p.(*syntax.DblQuoted); return ok }
	first := slices.IndexFunc(parts, quoted)
	for i := first + 1; first >= 0 && i+1 < len(parts); i++ {
		switch parts[i].(type) {
		case *syntax.Lit, *syntax.ParamExp:
			if slices.ContainsFunc(parts[i+1:], quoted) {
				return true
			}
		}
	}
	return false
}
