package deffile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/spelling"
)

// headers are the keys that may stand above the sections of a stage.
var headers = []string{
	"bootstrap", "from", "stage", "registry", "namespace", "includecmd", "fingerprints", "library", "mirrorurl", "osversion", "include", "updateurl", "otherurl0", "confurl", "keyring", "gpg",
	"setopt", "product", "user", "regcode", "productpgp", "registerurl", "modules",
	"target", "frontend", "filename", "buildargs",
}

func isHeader(key string) bool { return slices.Contains(headers, key) || otherURL.MatchString(key) }

// sections are those of a whole image, and appSections those of an app, whose name follows.
var (
	sectionNames = []string{"arguments", "environment", "files", "help", "labels", "post", "pre", "runscript", "setup", "startscript", "test"}
	appSections  = []string{"appenv", "appfiles", "apphelp", "appinstall", "applabels", "apprun", "appstart", "apptest"}
)

var sectionLine = lazyregexp.New(`^%([A-Za-z]+)(?:\s+(.*))?$`)

// Parse reads a definition file. Templates get their values from args, and else from %arguments of their stage. name is used in
// messages. A mistake is an [*Error].
func Parse(name string, data []byte, args map[string]string) (*File, error) {
	f := &File{Name: name, text: data}
	if !utf8.Valid(data) || slices.Contains(data, 0) {
		return nil, f.wrong(1, "save it as UTF-8", "it holds bytes that are not UTF-8 text")
	}
	if err := f.split(strings.ReplaceAll(string(data), "\r\n", "\n")); err != nil {
		return nil, err
	}
	if len(f.stages) == 0 {
		return nil, f.wrong(1, "begin with Bootstrap: docker and From: debian:12", "there is no Bootstrap")
	}
	return f, f.fill(args)
}

// split sorts the lines into stages and sections.
func (f *File) split(text string) error {
	var in *section
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		number := i + 1
		switch m := sectionLine.FindStringSubmatch(strings.TrimRight(line, " \t")); {
		case m != nil:
			s, err := f.begin(m[1], m[2], number)
			if err != nil {
				return err
			}
			in = s
		case isBootstrap(line): // the next stage
			in = nil
			f.stages = append(f.stages, &stage{line: number, header: map[string]field{}})
			if err := f.addHeader(line, number); err != nil {
				return err
			}
		case in != nil:
			in.body = append(in.body, line)
		default:
			if err := f.addHeader(line, number); err != nil {
				return err
			}
		}
	}
	return nil
}

func isBootstrap(line string) bool {
	key, _, found := strings.Cut(line, ":")
	return found && strings.EqualFold(key, "bootstrap")
}

func (f *File) begin(name, args string, line int) (*section, error) {
	name = strings.ToLower(name)
	known := slices.Concat(sectionNames, appSections)
	switch {
	case !slices.Contains(known, name):
		hint := "its sections are %" + strings.Join(known, ", %")
		if near := spelling.Nearest(name, known); near != "" {
			hint = "did you mean %" + near + "?"
		}
		return nil, f.wrong(line, hint, "there is no section %%%s", name)
	case len(f.stages) == 0:
		return nil, f.wrong(line, "begin with Bootstrap: docker and From: debian:12", "%%%s before Bootstrap", name)
	}
	last := f.stages[len(f.stages)-1]
	before, _, _ := strings.Cut(args, "#")
	s := &section{name: name, args: strings.TrimSpace(before), line: line}
	if slices.Contains(appSections, name) && s.args != "" {
		s.args = strings.Fields(s.args)[0] // what follows the app's name means nothing
	}
	if other := last.earlier(s); other != nil {
		return other, nil // it goes on
	}
	last.sections = append(last.sections, s)
	return s, nil
}

// earlier finds the section that s goes on with. Its arguments are the last that are given.
func (st *stage) earlier(s *section) *section {
	for _, other := range st.sections {
		switch {
		case other.name != s.name || s.name == "files":
		case other.args == s.args:
			return other
		case !slices.Contains(appSections, s.name):
			if s.args != "" {
				other.args, other.line = s.args, s.line
			}
			return other
		}
	}
	return nil
}

// addHeader reads a line KEY: VALUE. A comment begins with any #, and a value that ends with a backslash goes on in the next line.
func (f *File) addHeader(line string, number int) error {
	var at *stage
	if len(f.stages) > 0 {
		at = f.stages[len(f.stages)-1]
	}
	line, _, _ = strings.Cut(line, "#")
	if line = strings.TrimSpace(line); line == "" {
		if at != nil {
			at.goesOn = ""
		}
		return nil
	}
	if at != nil && at.goesOn != "" {
		begun := at.header[at.goesOn]
		at.set(at.goesOn, begun.value+line, begun.line)
		return nil
	}
	key, value, found := strings.Cut(line, ":")
	key = strings.ToLower(strings.TrimSpace(key))
	switch {
	case !found:
		return f.wrong(number, "a header is KEY: VALUE, and a script stands below %post", "%q is no header", line)
	case at == nil:
		return f.wrong(number, "begin with Bootstrap: docker", "%s before Bootstrap", key)
	case !isHeader(key):
		hint := "its headers are " + strings.Join(headers, ", ")
		if near := spelling.Nearest(key, headers); near != "" {
			hint = "did you mean " + near + "?"
		}
		return f.wrong(number, hint, "there is no header %q", key)
	}
	if _, twice := at.header[key]; twice {
		return f.wrong(number, "a second stage begins with Bootstrap", "the header %s stands there twice", key)
	}
	at.set(key, strings.TrimSpace(value), number)
	return nil
}

// set gives a header its value, and notes whether that goes on.
func (st *stage) set(key, value string, line int) {
	rest, more := strings.CutSuffix(value, "\\")
	if st.goesOn = ""; more {
		st.goesOn = key
		if text, lines := strings.CutSuffix(rest, "\\n"); lines { // the next line stays one of its own
			rest = text + "\n"
		}
	}
	st.header[key] = field{rest, line}
}

var template = lazyregexp.New(`\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}`)

// fill puts values in the place of templates.
func (f *File) fill(given map[string]string) error {
	used := map[string]bool{}
	for _, s := range f.stages {
		values, err := f.defaults(s)
		if err != nil {
			return err
		}
		for name := range values {
			used[name] = true
		}
		maps.Copy(values, given)
		if err := f.fillStage(s, values, used); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !used[name] {
			return fault.Usage(fault.Hint(fmt.Errorf("%s: no stage has the build argument %s", f.Name, name), fmt.Sprintf("where it is meant, write {{ %s }}", name)))
		}
	}
	return nil
}

// defaults reads %arguments of a stage.
func (f *File) defaults(s *stage) (map[string]string, error) {
	values := map[string]string{}
	for _, part := range s.sections {
		if part.name != "arguments" {
			continue
		}
		for i, line := range part.body {
			if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
				continue
			}
			name, value, found := strings.Cut(line, "=")
			name = strings.TrimSpace(name)
			if !found || !template.MatchString("{{"+name+"}}") {
				return nil, f.wrong(part.line+1+i, "write NAME=VALUE", "%q is no argument", line)
			}
			values[name] = unquote(strings.TrimSpace(value))
		}
	}
	return values, nil
}

func (f *File) fillStage(s *stage, values map[string]string, used map[string]bool) error {
	var err error
	fill := func(text string, line int) string {
		return template.ReplaceAllStringFunc(text, func(t string) string {
			name := template.FindStringSubmatch(t)[1]
			used[name] = true
			value, ok := values[name]
			if !ok && err == nil {
				err = f.wrong(line, fmt.Sprintf("give it by --build-arg %s=VALUE, or below %%arguments", name), "{{ %s }} has no value", name)
			}
			return value
		})
	}
	for _, key := range slices.Sorted(maps.Keys(s.header)) {
		h := s.header[key]
		s.header[key] = field{fill(h.value, h.line), h.line}
	}
	for _, part := range s.sections {
		if part.name == "arguments" {
			continue
		}
		part.args = fill(part.args, part.line)
		for i, line := range part.body {
			part.body[i] = fill(line, part.line+1+i)
		}
	}
	return err
}

// unquote takes a pair of quotes off.
func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}
