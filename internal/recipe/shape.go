package recipe

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"sync"

	"sconce.dev/sconce/internal/cluster"
)

// shape is the type of a key: what the Go field makes of it.
type shape struct {
	name   string // last part of the path; "" for the root
	label  string // in place of path, in messages and documentation; "" is path
	path   string // dotted; in a shape for one table among several, how messages name the key
	header string // of a table: how the recipe writes it, "[python]" or "[[step]]"; "" for the root
	home   string // the header of the table that has the key
	key    key

	kind    kind     // kindTable, kindTables, kindString, kindBool, kindInteger or kindList (of strings)
	free    bool     // a table whose keys the user chooses, all strings
	lists   bool     // of a free table: all lists of strings
	overlay bool     // a table with the keys of the recipe that a variant can have
	element *shape   // of a table whose keys the user chooses, all tables: what each of them is
	names   []string // of a table with fixed keys, in the order of the Go fields
	fields  map[string]*shape
}

// chosen stands in paths for a key that the user chooses.
const chosen = "NAME"

// root is the shape of a whole recipe.
var root = sync.OnceValue(func() *shape { return shapeOf(reflect.TypeFor[Recipe](), "", "") })

func shapeOf(t reflect.Type, name, path string) *shape {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	s := &shape{name: name, path: path, key: keys[path]}
	switch t.Kind() {
	case reflect.Struct:
		s.kind = kindTable
		s.addFields(t)
	case reflect.Map:
		s.kind = kindTable
		s.addChosen(t.Elem())
	case reflect.Slice:
		s.kind = kindList
		if t.Elem().Kind() == reflect.Struct {
			s.kind = kindTables
			s.addFields(t.Elem())
		}
	case reflect.Bool:
		s.kind = kindBool
	case reflect.Int:
		s.kind = kindInteger
	case reflect.Interface:
		s.kind = kindAny
	default:
		s.kind = kindString
	}
	return s
}

func (s *shape) addFields(t reflect.Type) {
	s.fields = map[string]*shape{}
	s.header = s.writtenAs()
	s.addFieldsOf(t)
}

func (s *shape) addFieldsOf(t reflect.Type) {
	for f := range t.Fields() {
		name := f.Tag.Get("toml")
		path := strings.TrimPrefix(s.path+"."+name, ".")
		switch _, known := keys[path]; {
		case f.Anonymous:
			s.addFieldsOf(f.Type)
		case name == "-", t == reflect.TypeFor[cluster.Profile]() && !known: // its name is no key of [target]
		default:
			s.names = append(s.names, name)
			s.fields[name] = shapeOf(f.Type, name, path)
			s.fields[name].home = s.header
		}
	}
}

func (s *shape) addChosen(value reflect.Type) {
	s.header = s.writtenAs()
	s.lists = value.Kind() == reflect.Slice
	if s.free = value.Kind() == reflect.String || s.lists; s.free {
		return
	}
	if value.Kind() == reflect.Interface {
		path := s.path + "." + chosen
		s.element = &shape{name: chosen, path: path, header: "[" + path + "]", home: s.header, kind: kindTable, key: keys[path], overlay: true}
		return
	}
	s.element = shapeOf(value, chosen, s.path+"."+chosen)
	s.element.home = s.header
}

// variantShape is the shape of a variant: that of the recipe without what a variant cannot have.
var variantShape = sync.OnceValue(func() *shape {
	c := shape{name: chosen, path: "variant." + chosen, kind: kindTable, overlay: true, fields: map[string]*shape{}}
	for _, name := range root().names {
		if !slices.Contains(notOfVariants, name) {
			c.names = append(c.names, name)
			c.fields[name] = root().fields[name]
		}
	}
	return &c
})

// elementShape is the shape of the tables in a table whose keys the user chooses.
func (s *shape) elementShape() *shape {
	if s.element.overlay {
		return variantShape()
	}
	return s.element
}

// child is the shape of the table name in one of shape s, or nil where s has no such table.
func (s *shape) child(name string) *shape {
	if s.element != nil {
		return s.elementShape()
	}
	return s.fields[name]
}

// freeKind is what the values of a free table are.
func (s *shape) freeKind() kind {
	if s.lists {
		return kindList
	}
	return kindString
}

func (s *shape) writtenAs() string {
	switch {
	case s.path == "":
		return ""
	case s.kind == kindTables:
		return "[[" + s.path + "]]"
	default:
		return "[" + s.path + "]"
	}
}

// one returns the shape of one table among several of shape s, which messages call header and whose keys they name with
// the prefix.
func (s *shape) one(header, prefix string) *shape {
	c := *s
	c.header, c.fields = header, map[string]*shape{}
	for name, field := range s.fields {
		f := *field
		f.path = prefix + name
		c.fields[name] = &f
	}
	return &c
}

// said is how messages name the key.
func (s *shape) said() string { return cmp.Or(s.label, s.path) }

// isTable reports whether the key is a table of its own, rather than a value in one.
func (s *shape) isTable() bool { return (s.kind == kindTable || s.kind == kindTables) && !s.free }

// walk calls f for the shape and everything below it, parents first.
func (s *shape) walk(f func(*shape)) {
	f(s)
	for _, n := range s.names {
		s.fields[n].walk(f)
	}
	if s.element != nil {
		s.element.walk(f)
	}
}

// expected says which type the key takes, for messages.
func (s *shape) expected() string {
	switch {
	case s.lists:
		return "a table of lists of strings"
	case s.free:
		return "a table of strings"
	case s.kind == kindList:
		return "a list of strings"
	case s.kind == kindInteger:
		return "a whole number"
	default:
		return string(s.kind)
	}
}
