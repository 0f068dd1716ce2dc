package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A command that a person is to type or paste, and a script, have what somebody else chose in them as words of a shell: by package quote, or by
// job.Path where variables are meant. These are the calls that may stand there.
var quotes = map[string]bool{
	"quote.Word": true, "quote.Words": true, "quote.Single": true, "job.Path": true, "strconv.Itoa": true,
	"word": true, "words": true, "optionWord": true, "fileName": true, "directive": true, "clearing": true, "s.programWords": true, // of package job
	"tomltext.String": true,
}

// comments are the calls that may stand in a line of comment.
var comments = map[string]bool{"quote.Comment": true, "quote.Clean": true, "ui.Clean": true, "comment": true, "Clean": true}

// unquoted are messages, files and, behind the name of a package, what stands in a command there as it is, with the reason. The list may only
// get shorter.
var unquoted = map[string]string{
	"cli/root.go: did you mean `%s %s`?":                                                                                         "names of our own commands",
	"cli/explain.go: `sconce %s` finds this before a job runs, as %s":                                                            "likewise",
	"cli/pipeline.go: sconce pipeline %s":                                                                                        "likewise",
	"cli/version.go: sconce %s (%s, %s)\n":                                                                                       "no command",
	"cli/stripe.go: mkdir -p %s && %s\n":                                                                                         "StripeCommand is given a word, and a layout has a form",
	"cluster/detect.go: srun has %s":                                                                                             "no command",
	"lint/rules_sbatchtasks.go: srun starts a container, and the script runs in one already by --%s":                             "no command",
	"lint/rules_sbatchtasks.go: srun is not told of --cpus-per-task=%s, and each task gets one CPU":                              "no command",
	"job/settle.go: logs: sbatch expands no variables such as %s":                                                                "no command",
	"pipeline/jobs.go: # Written by `sconce pipeline %s` from %s; what jobs look like is said there.\n":                          "names of our own",
	"uv/uv.go: add `sha256 = { %s = \"…\" }` under [uv] in %s":                                                                   "TOML, and the name of an architecture",
	"lock/uvkeys.go: sconce does not take %s from a recipe's directory":                                                          "no command",
	"cli/withdraw.go: withdrawn; `sconce withdraw %s@%s --undo --because TEXT` takes that back":                                  "a digest",
	"evidence/withdrawal.go: build another image; if it was withdrawn by mistake: `sconce withdraw %s@%s --undo --because TEXT`": "a digest",
	"build/conda.go":       "words that were quoted before",
	"conda/environment.go": "names of variables that have a form",
	"cli/packages.go":      "cleaned as whole lines",
	"torecipe/torecipe.go": "one line of a text of our own",
	"job: v.name":          "a variable, whose name has a form",
	"job: stripe":          "a layout, which has a form",
	"job: option":          "options of our own, and those of sbatch that a recipe has, without controls",
	"job: name":            "an option of our own",
	"job: dir":             "words that were quoted before",
	"job: note":            "our own text", "job: shell": "our own text", "job: end": "our own text", "job: sbatch": "our own text", "job: why": "our own text",
	"job: line":                 "a line of TOML whose value was quoted before",
	"job: strings.Join":         "lists of words that were quoted before",
	"imagetest/script.go":       "words that package job has quoted",
	"plan/component.go":         "prefixes that have a form",
	"runtimefiles/":             "scripts for what has sh alone, with quoting of their own",
	"tocontainerfile/":          "names of packages, which have a form, and words that were quoted before",
	"torecipe/containerfile.go": "words that were quoted before",
}

// isException reports whether a text of a file is among those of unquoted, and by which entry.
func isException(file, text, hole string) string {
	for entry := range unquoted {
		if entry == file+": "+text || entry == file || entry == path.Dir(file)+": "+hole || strings.HasSuffix(entry, "/") && strings.HasPrefix(file, entry) {
			return entry
		}
	}
	return ""
}

// begun matches what goes before a hole in a command that has not ended: one between backquotes, or one behind a colon or at the beginning of a
// line that names its program and what that is to do.
var begun = regexp.MustCompile("^[^`]*`(?:[^`]*`[^`]*`)*[a-z][^`]*$" +
	"|(?:^|\n *|: |; |&& |# +)(?:sconce [a-z]+|(?:docker|podman|apptainer|uv|git|cosign|oras|apt-get|dnf|zypper|dpkg|pip) (?:-[^ ]+ )*(?:" +
	"add|build|cache|check|clone|copy|export|import|init|inspect|install|lock|login|logout|logs|lint|pip|pull|push|run|slim|submit|test|venv|verify|--add-architecture)" +
	"|podman-hpc|python3? -m|chmod|chown|rm|mkdir|lfs|nvidia-ctk|sbatch|srun|scancel|export|cd) [^`\n]*$")

// commented matches what goes before a hole in a line of comment.
var commented = regexp.MustCompile(`(?:^|\n) *# [^\n]*$`)

// holes returns the texts of a message with the expressions between them, as in a format and its arguments or in a sum.
func holes(e ast.Expr) (texts []string, between []ast.Expr) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return []string{text}, nil
		}
	case *ast.ParenExpr:
		return holes(e.X)
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			left, a := holes(e.X)
			right, b := holes(e.Y)
			joined := left[len(left)-1] + right[0]
			return slices.Concat(left[:len(left)-1], []string{joined}, right[1:]), append(a, b...)
		}
	case *ast.CallExpr:
		if texts, between := formatted(e); texts != nil {
			return texts, between
		}
	}
	return []string{"", ""}, []ast.Expr{e}
}

// verb is a verb of package fmt, with the number of its argument. Numbers are not looked for here: %d is no hole.
var verb = regexp.MustCompile(`%(?:\[([0-9]+)\])?[-+# 0-9.*]*([a-zA-Z%])`)

// formatted takes a call with a format apart.
func formatted(call *ast.CallExpr) (texts []string, between []ast.Expr) {
	for i, arg := range call.Args {
		format, inner := constant(arg)
		if !strings.Contains(format, "%") || inner {
			continue
		}
		at, next := 0, i+1
		text := ""
		for _, m := range verb.FindAllStringSubmatchIndex(format, -1) {
			text += format[at:m[0]]
			at = m[1]
			kind := format[m[4]:m[5]]
			if kind == "%" {
				text += "%"
				continue
			}
			if m[2] >= 0 {
				n, _ := strconv.Atoi(format[m[2]:m[3]])
				next = i + n
			}
			if next >= len(call.Args) {
				return nil, nil // no format after all
			}
			if kind == "s" || kind == "v" || kind == "q" {
				texts, between, text = append(texts, text), append(between, call.Args[next]), ""
			} else {
				text += "0"
			}
			next++
		}
		return append(texts, text+format[at:]), between
	}
	return nil, nil
}

// constant is a text of literals alone; inner reports that other things stand between them.
func constant(e ast.Expr) (text string, inner bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ = strconv.Unquote(e.Value)
		return text, e.Kind != token.STRING
	case *ast.BinaryExpr:
		a, inA := constant(e.X)
		b, inB := constant(e.Y)
		return a + b, inA || inB || e.Op != token.ADD
	}
	return "", true
}

func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return nameOf(e.X) + "." + e.Sel.Name
	case *ast.CallExpr:
		return nameOf(e.Fun)
	}
	return ""
}

// sources calls f with every file of the program's own code.
func sources(t *testing.T, f func(file string, set *token.FileSet, parsed *ast.File)) {
	t.Helper()
	for _, dir := range []string{".", "../cmd"} {
		err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				if d != nil && d.Name() == "testdata" {
					return fs.SkipDir
				}
				return err
			}
			if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || isTestHelper(filepath.ToSlash(filepath.Dir(file))) {
				return nil
			}
			set := token.NewFileSet()
			parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
			if err == nil {
				f(filepath.ToSlash(file), set, parsed)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// constants are the names of all constants of texts, by themselves and behind the name of their package.
func constants(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	sources(t, func(file string, _ *token.FileSet, parsed *ast.File) {
		for _, d := range parsed.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, spec := range g.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					all[path.Dir(file)+"."+name.Name], all[parsed.Name.Name+"."+name.Name] = true, true
				}
			}
		}
	})
	return all
}

// Commands in messages, hints and comments, and the scripts of jobs, have names and paths in them as words of a shell. Comments in what is
// written are lines.
func TestCommandsAreQuoted(t *testing.T) {
	known, met := constants(t), map[string]bool{}
	sources(t, func(file string, set *token.FileSet, parsed *ast.File) {
		dir := path.Dir(file)
		look := func(e ast.Expr) {
			texts, between := holes(e)
			line := false
			if call, ok := e.(*ast.CallExpr); ok {
				texts, between = formatted(call)
				line = (dir == "job" || dir == "imagetest") && path.Ext("."+nameOf(call.Fun)) == ".line"
			}
			before := ""
			for i, hole := range between {
				before += texts[i]
				name := nameOf(hole)
				isComment := commented.MatchString(before)
				good := quotes[name] || comments[name] && (isComment || line) || known[name] || known[dir+"."+name]
				if before += "x"; good || !isComment && !line && !begun.MatchString(before[:len(before)-1]) {
					continue
				}
				text := strings.Join(texts, "%s")
				if entry := isException(file, text, name); entry != "" {
					met[entry] = true
				} else {
					t.Errorf("%s: %s in %q is not quoted", set.Position(hole.Pos()), name, text)
				}
			}
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr: // which is looked at whole
				look(n)
				return n.Op != token.ADD
			case *ast.CallExpr:
				look(n)
			}
			return true
		})
	})
	for entry := range unquoted {
		if !met[entry] {
			t.Errorf("%s: all is quoted there now, take it out of the list", entry)
		}
	}
}
