package recipe

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/units"
)

// checker finds the mistakes of one recipe. First TOML itself, then every key and value against the shape that the Go
// types give, then what only the recipe as a whole can tell (validate.go).
type checker struct {
	file, dir string
	variant   string // that is asked for; once it is chosen, the one
	source    []byte
	top       *shape // of the whole file
	doc       *table
	values    map[string]any // of the source
	decoded   []byte         // what becomes the recipe when that is not the source itself
	mistyped  map[*node]any  // values of a wrong type or key, and what takes their place; nil is nothing
	places    map[int]bool   // where mistakes are told; nil is everywhere
	problems  []*Error
	failure   error // what is wrong at no place of the file
	reach     reach.Bounds
}

func newChecker(data []byte, file, dir string) *checker {
	return &checker{top: root(), mistyped: map[*node]any{}, file: file, dir: dir, source: bytes.TrimPrefix(data, byteOrderMark)}
}

// run checks everything and returns the decoded recipe, which is good only when there are no problems.
func (c *checker) run() *Recipe {
	if !c.isTOML() {
		return nil
	}
	c.doc = readDocument(c.source)
	c.checkTable(c.doc, root())
	if err := c.leaveOut(); err != nil {
		c.failure = err
		return nil
	}
	if !c.choose() && (len(c.problems) == 0 || c.find("variant") != nil) {
		return nil
	}
	r := &Recipe{}
	if err := c.decode(r); err != nil {
		c.addDecodeError(err)
		return nil
	}
	c.validate(r)
	return r
}

// isTOML reports whether the source is well formed, with each key given once.
func (c *checker) isTOML() bool {
	if !utf8.Valid(c.source) {
		c.add(span{offset: firstInvalid(c.source)}, "save the recipe as UTF-8", "this is not UTF-8 text")
		return false
	}
	if err := toml.Unmarshal(c.source, &c.values); err != nil {
		c.addDecodeError(err)
		return false
	}
	return true
}

func firstInvalid(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return 0
}

// leaveOut takes the values of a wrong type out of what becomes the recipe, so that the rest is judged too: value by value, since what
// is wrong with a table as a whole may be for want of what was left out.
func (c *checker) leaveOut() (err error) {
	if len(c.mistyped) == 0 {
		return nil
	}
	c.places = map[int]bool{}
	(&node{table: c.doc}).addPlaces(c.places)
	c.values, _ = c.rightOf(c.values, &node{table: c.doc}).(map[string]any)
	if c.decoded, err = toml.Marshal(c.values); err != nil {
		return fmt.Errorf("%s: put together what is right: %w", c.file, err)
	}
	return nil
}

// rightOf returns what of a value, which stands at n, has the right types.
func (c *checker) rightOf(v any, n *node) any {
	if instead, wrong := c.mistyped[n]; wrong {
		return instead
	}
	switch v := v.(type) {
	case map[string]any:
		if n.table == nil {
			return v
		}
		for name, child := range n.table.nodes {
			if v[name] = c.rightOf(v[name], child); v[name] == nil {
				delete(v, name)
			}
		}
	case []any:
		for i, item := range n.items[:min(len(n.items), len(v))] {
			v[i] = c.rightOf(v[i], item)
		}
	}
	return v
}

// decode is strict unless the keys that strictness would refuse have been reported already.
func (c *checker) decode(r *Recipe) error {
	text := c.source
	if c.decoded != nil {
		text = c.decoded
	}
	d := toml.NewDecoder(bytes.NewReader(text))
	if len(c.problems) == 0 {
		d.DisallowUnknownFields()
	}
	return d.Decode(r)
}

// addDecodeError reports what go-toml found. After other problems it says nothing new.
func (c *checker) addDecodeError(err error) {
	if len(c.problems) > 0 {
		return
	}
	at, text := span{length: 1}, strings.TrimPrefix(err.Error(), "toml: ")
	var missing *toml.StrictMissingError
	if errors.As(err, &missing) && len(missing.Errors) > 0 {
		err = &missing.Errors[0]
	}
	var de *toml.DecodeError
	if errors.As(err, &de) {
		line, column := de.Position()
		at.offset = c.offset(line, column)
		text = strings.TrimPrefix(de.Error(), "toml: ")
	}
	if message, hint := foreign(c.source[at.offset:]); message != "" {
		c.add(at, hint, "%s", message)
		return
	}
	c.add(at, "", "%s", printable(text))
}

// quotationMarks are what word processors make of " and '.
const quotationMarks = "“”„‟«»‘’‚‛′″"

// foreign says what is wrong with a syntax error at a character that is not ASCII, of which go-toml names the first byte.
func foreign(rest []byte) (message, hint string) {
	r, size := utf8.DecodeRune(rest)
	switch {
	case size < 2:
		return "", ""
	case strings.ContainsRune(quotationMarks, r):
		return fmt.Sprintf("%c (U+%04X) is a typographic quotation mark, and strings stand between plain ones", r, r),
			`write " on both sides; word processors and chats change it when text is copied`
	case unicode.IsSpace(r):
		return fmt.Sprintf("U+%04X is not a blank in TOML", r), "write an ordinary blank"
	default:
		return fmt.Sprintf("%q (U+%04X) cannot stand here outside of quotation marks", r, r), ""
	}
}

// offset converts a line and a column in bytes, both from 1.
func (c *checker) offset(line, column int) int {
	offset := 0
	for ; line > 1; line-- {
		i := bytes.IndexByte(c.source[offset:], '\n')
		if i < 0 {
			break
		}
		offset += i + 1
	}
	return min(offset+max(column-1, 0), len(c.source))
}

// printable makes a text that may quote the file harmless to a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}

// checkTable checks every key of a table whose keys are fixed.
func (c *checker) checkTable(t *table, s *shape) {
	for _, name := range t.names {
		n := t.nodes[name]
		if field := s.fields[name]; field != nil {
			c.checkValue(n, field)
		} else {
			c.addUnknown(name, n, s)
		}
	}
}

func (c *checker) checkValue(n *node, s *shape) {
	if s.kind == kindTables && n.kind == kindList {
		c.checkTables(n, s) // step = [{ run = "…" }]
		return
	}
	if s.kind == kindAny {
		return
	}
	if n.kind != s.kind {
		c.addWrongType(n, s)
		return
	}
	switch {
	case s.free:
		c.checkFree(n.table, s)
	case s.element != nil:
		c.checkChosen(n.table, s)
	case s.kind == kindTables:
		c.checkTables(n, s)
	case s.kind == kindTable:
		c.checkTable(n.table, s)
	case s.kind == kindList:
		c.checkList(n, s)
	case s.kind == kindString:
		c.checkString(n, s, s.said())
	case s.kind == kindInteger:
		c.checkInteger(n, s)
	}
}

// checkTables checks a list of tables. Messages say which of them is meant.
func (c *checker) checkTables(n *node, s *shape) {
	for i, item := range n.items {
		if item.kind != kindTable {
			c.add(item.value, "", "%s must be %s, but this element is %s", s.path, s.expected(), item.kind)
			c.mistyped[item] = map[string]any{}
			continue
		}
		label := labelOf(s, i, item)
		c.checkTable(item.table, s.one(label, label+": "))
	}
}

// labelOf names one of a list of tables, counted from 1: step 2 ("NCCL").
func labelOf(s *shape, i int, item *node) string {
	label := fmt.Sprintf("%s %d", s.name, i+1)
	if name := item.table.nodes["name"]; name != nil && name.text != "" && len(name.text) < 40 {
		label += fmt.Sprintf(" (%q)", name.text)
	}
	return label
}

// checkChosen checks a table of tables whose keys the user chooses.
func (c *checker) checkChosen(t *table, s *shape) {
	for _, name := range t.names {
		n := t.nodes[name]
		path := s.path + "." + tomlKey(name)
		switch {
		case !s.key.NameForm.MatchString(name):
			c.add(n.key, "", "%s: the name %q must be %s", s.path, name, s.key.NameFormName)
		case n.kind != kindTable && s.elementShape().fields[name] != nil:
			c.add(n.key, fmt.Sprintf("put it under the name that it is for: %s", s.element.header), "%s.%s is for no %s", s.path, name, chosenIs[s.path])
			c.mistyped[n] = nil
		case n.kind != kindTable:
			c.add(n.value, fmt.Sprintf("write [%s]", path), "%s must be a table, not %s", path, n.kind)
			c.mistyped[n] = map[string]any{}
		default:
			c.checkTable(n.table, s.elementShape().one("["+path+"]", path+"."))
		}
	}
}

// chosenIs is what a key stands for that the user chooses, by the path of its table.
var chosenIs = map[string]string{"python.compile": "package", "job": "job", "variant": "variant"}

// bareKey is a key that TOML takes without quotes.
var bareKey = lazyregexp.New(`^[A-Za-z0-9_-]+$`)

func tomlKey(name string) string {
	if bareKey.MatchString(name) {
		return name
	}
	return strconv.Quote(name)
}

func (c *checker) checkList(n *node, s *shape) {
	for _, item := range n.items {
		if item.kind != kindString {
			c.add(item.value, "", "%s must be a list of strings%s, but this element is %s", s.said(), s.example(), item.kind)
			c.mistyped[item] = ""
			continue
		}
		c.checkString(item, s, s.said())
	}
}

// checkFree checks a table whose keys the user chooses.
func (c *checker) checkFree(t *table, s *shape) {
	for _, name := range t.names {
		n := t.nodes[name]
		if i := strings.IndexFunc(name, quote.Harmful); i >= 0 {
			c.add(n.key, "", "%s: the name %q holds a control character", s.path, name)
			continue
		}
		if s.key.NameForm != nil && !s.key.NameForm.MatchString(name) {
			c.add(n.key, "", "%s: the name %q must be %s", s.path, name, s.key.NameFormName)
			continue
		}
		if want := s.freeKind(); n.kind != want {
			c.addWrongType(n, &shape{name: name, path: s.path + "." + name, kind: want})
			continue
		}
		if s.lists {
			c.checkList(n, &shape{path: s.path + "." + name, kind: kindList, key: s.key})
			continue
		}
		c.checkString(n, s, s.path+"."+name)
	}
}

func (c *checker) checkString(n *node, s *shape, path string) {
	switch {
	case s.key.Lines && n.text != "" && strings.ContainsFunc(unixLines(n.text), quote.HarmfulInLines):
		c.add(n.value, "have the script write it, such as printf '\\033'", "%s holds a control character besides newlines and tabs", path)
	case !s.key.Lines && strings.ContainsFunc(n.text, quote.Harmful):
		c.add(n.value, "", "%s holds a control character in %q", path, n.text)
	case s.key.Enum != nil && !slices.Contains(s.key.Enum, n.text):
		c.add(n.value, didYouMean(spelling.Nearest(n.text, s.key.Enum)), "%s must be %s, not %q", path, oneOf(s.key.Enum), n.text)
	case s.key.Form != nil && !s.key.Form.MatchString(n.text):
		hint := ""
		if s.key.Form == formComponent && n.text != "" {
			hint = fmt.Sprintf("write %s = %q", s.name, ImageName(n.text))
		}
		c.add(n.value, hint, "%s must be %s, not %q", path, s.key.FormName, n.text)
	}
}

// unixLines ends every line as Unix does, whatever the editor of the recipe does.
func unixLines(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

func (c *checker) checkInteger(n *node, s *shape) {
	v, err := strconv.ParseInt(strings.ReplaceAll(n.text, "_", ""), 0, 64)
	if err != nil || v < int64(s.key.Min) || v > int64(s.key.Max) {
		c.add(n.value, "", "%s must be between %d and %d, not %s", s.said(), s.key.Min, s.key.Max, n.text)
	}
}

func (c *checker) addWrongType(n *node, s *shape) {
	c.mistyped[n] = nil
	c.add(n.value, hintForType(n, s), "%s must be %s%s, not %s", s.said(), s.expected(), s.example(), n.kind)
	if s.kind == kindTables && n.kind == kindTable {
		c.checkTable(n.table, s.one(s.header, s.path+"."))
	}
}

// hintForType says how the value would be written that n may have been meant to be.
func hintForType(n *node, s *shape) string {
	switch {
	case s.kind == kindList && n.kind == kindString && len(n.text) < 40:
		return fmt.Sprintf("write %s = [%q]", s.name, n.text)
	case s.key.Lines && n.kind == kindList:
		return hintForLines(n, s)
	case s.isTable() && s.kind == kindTables, s.isTable() && n.kind == kindTables:
		return "write " + s.header
	}
	return ""
}

// hintForLines joins the elements of a short list to the one string that was wanted.
func hintForLines(n *node, s *shape) string {
	var lines []string
	for _, item := range n.items {
		lines = append(lines, item.text)
	}
	text := strings.Join(lines, "\n")
	if text == "" || len(text) > 60 || strings.ContainsFunc(text, quote.HarmfulInLines) {
		return "write one string, with a command on each line"
	}
	return fmt.Sprintf("write one string, with a command on each line: %s = %q", s.name, text)
}

// example returns ", e.g. VALUE" for messages about the type.
func (s *shape) example() string {
	if s.key.Example == "" {
		return ""
	}
	return ", e.g. " + s.key.Example
}

// addUnknown reports a key that table s does not have, with the nearest that exists. go-toml takes one that differs in case for that; it is
// left out, so that nobody judges what it would be.
func (c *checker) addUnknown(name string, n *node, s *shape) {
	if slices.ContainsFunc(s.names, func(known string) bool { return strings.EqualFold(known, name) }) {
		c.mistyped[n] = nil
	}
	path := strings.TrimPrefix(s.said()+"."+name, ".")
	hint := c.hintForUnknown(name, n, s)
	switch {
	case n.kind == kindTables:
		c.add(n.key, hint, "unknown table [[%s]]", printable(path))
	case n.kind == kindTable && s.name == "":
		c.add(n.key, hint, "unknown table [%s]", printable(path))
	case s.name == "":
		c.add(n.key, hint, "unknown key %q", name)
	default:
		c.add(n.key, hint, "unknown key %q in %s", name, s.header)
	}
}

// hintForUnknown says what key name of table s may have been meant.
func (c *checker) hintForUnknown(name string, n *node, s *shape) string {
	isTable := n.kind == kindTable || n.kind == kindTables
	if near := spelling.Nearest(name, s.candidates(isTable)); near != "" && isTable {
		return fmt.Sprintf("did you mean %s?", cmp.Or(s.fields[near].header, strconv.Quote(near)))
	} else if near != "" {
		return didYouMean(near)
	}
	if s.name == chosen && isTable {
		return fmt.Sprintf("a name with a dot in it needs quotes, such as [%s.%q]", strings.TrimSuffix(s.path, "."+chosen), "zope.interface")
	}
	if homes := c.homesOf(name); len(homes) > 0 {
		return fmt.Sprintf("%q belongs in %s", name, strings.Join(homes, " or "))
	}
	if near, homes := c.nearestElsewhere(name); near != "" && !isTable {
		return fmt.Sprintf("did you mean %q in %s?", near, strings.Join(homes, " or "))
	}
	if s.name == "" && isTable {
		return "the tables are " + c.listTables()
	}
	if s.name == "" {
		return "the keys outside of any table are " + units.Quoted(s.candidates(false))
	}
	if len(s.names) == 1 {
		return fmt.Sprintf("the only key of %s is %q", s.header, s.names[0])
	}
	return fmt.Sprintf("the keys of %s are %s", s.header, units.Quoted(s.names))
}

// candidates returns the names that an unknown one in table s may stand for. At the top, tables and keys are told apart.
func (s *shape) candidates(isTable bool) []string {
	if s.name != "" {
		return s.names
	}
	var names []string
	for _, n := range s.names {
		if s.fields[n].isTable() == isTable {
			names = append(names, n)
		}
	}
	return names
}

// homesOf returns the tables, in brackets, that have a key of this name.
func (c *checker) homesOf(name string) []string {
	var homes []string
	c.top.walk(func(s *shape) {
		if s.name == name {
			homes = append(homes, home(s))
		}
	})
	return homes
}

func home(s *shape) string { return cmp.Or(s.home, "the top of the file, before any [table]") }

// nearestElsewhere looks for the name in all tables.
func (c *checker) nearestElsewhere(name string) (string, []string) {
	var names []string
	c.top.walk(func(s *shape) {
		if !s.isTable() {
			names = append(names, s.name)
		}
	})
	near := spelling.Nearest(name, names)
	return near, c.homesOf(near)
}

func (c *checker) listTables() string {
	var tables []string
	for _, n := range c.top.candidates(true) {
		tables = append(tables, c.top.fields[n].header)
	}
	return strings.Join(tables, ", ")
}

func didYouMean(near string) string {
	if near == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %q?", near)
}

func oneOf(values []string) string {
	if len(values) == 2 {
		return fmt.Sprintf("%q or %q", values[0], values[1])
	}
	return "one of " + units.Quoted(values)
}
