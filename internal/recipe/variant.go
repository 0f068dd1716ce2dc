package recipe

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/spelling"
)

// A variant is the recipe with some of its keys replaced: tables of both are merged, a value or a list of strings of the variant
// goes before the recipe's, and lists of tables, as [[step]] makes them, are appended.
//
// Each table under [variant] is one. With a [matrix], each combination of its axes is a variant named WORD-WORD, which is all the
// words' [variant] tables in the order of the axes; then a [variant] that is a word of an axis is none by itself.

// maxVariants bounds the variants of a recipe: as many jobs as CI systems take from one list.
const maxVariants = 256

// maxVariantName bounds a variant's name in characters, so that version, name and a key fit into a tag.
const maxVariantName = 64

// The keys of a recipe that a variant cannot have.
var notOfVariants = []string{"name", "variant", "matrix"}

// matrixExclude is the key of [matrix] that is no axis.
const matrixExclude = "exclude"

// SplitVariant splits what a user calls a recipe, PATH or PATH:VARIANT. What exists as it is written has no variant.
func SplitVariant(ref string) (path, variant string) {
	if _, err := os.Lstat(ref); err == nil {
		return ref, ""
	}
	if i := strings.LastIndexByte(ref, ':'); i > 0 && formVariant.MatchString(ref[i+1:]) {
		return ref[:i], ref[i+1:]
	}
	return ref, ""
}

// Variants lists the variants of the recipe at path, in the order of the file; nil when it has none. Of the file, only what names
// variants is checked.
func Variants(path string) ([]string, error) {
	path = fileOf(path)
	data, err := read(path)
	if err != nil {
		return nil, fault.Usage(err)
	}
	c := newChecker(data, path, filepath.Dir(path))
	if !c.isTOML() {
		return nil, c.err()
	}
	c.doc = readDocument(c.source)
	names := variantNames(c.variants())
	return names, c.err()
}

// variant is one of a recipe's.
type variant struct {
	name  string
	parts []string // keys of [variant], each over those before
}

func variantNames(all []variant) []string {
	var names []string
	for _, v := range all {
		names = append(names, v.name)
	}
	return names
}

// axis is one list of [matrix].
type axis struct {
	name string
	node *node
}

// variants finds the variants that the document names. What is wrong with them is reported.
func (c *checker) variants() []variant {
	words := map[string]bool{}
	product := c.product(words)
	var all []variant
	if n := c.find("variant"); n != nil && n.table != nil {
		for _, name := range n.table.names {
			if !words[name] {
				all = append(all, variant{name, []string{name}})
			}
		}
	}
	all = append(all, product...)
	if len(all) > maxVariants {
		c.add(c.at("variant"), "", "the recipe has %d variants, and more than %d are too many", len(all), maxVariants)
		return all[:maxVariants]
	}
	c.checkVariantNames(all)
	return all
}

// checkVariantNames refuses names that two variants share, in themselves or in those of their package locks.
func (c *checker) checkVariantNames(all []variant) {
	seen := map[string]string{}
	for _, v := range all {
		file := strings.ToLower(strings.ReplaceAll(v.name, ".", "-"))
		if before, ok := seen[file]; ok {
			c.add(c.at("variant", v.parts[0]), "", "the variants %q and %q are too alike: their locks would have one name", before, v.name)
		}
		seen[file] = v.name
		if len(v.name) > maxVariantName {
			c.add(c.at("variant", v.parts[0]), "", "the name of variant %q is longer than %d characters", v.name, maxVariantName)
		}
	}
}

// product returns the combinations of [matrix] that are not excluded, and adds the words of its axes to words.
func (c *checker) product(words map[string]bool) []variant {
	n := c.find("matrix")
	if n == nil || n.table == nil {
		return nil
	}
	all := []variant{{}}
	for _, a := range axesOf(n.table) {
		all = c.times(all, a, words)
		if len(all) > maxVariants {
			c.add(n.key, "", "[matrix] has more than %d combinations", maxVariants)
			return nil
		}
	}
	if len(all) == 1 && all[0].name == "" {
		c.add(n.key, `add an axis: cuda = ["cu128", "cu130"]`, "[matrix] has no axis")
		return nil
	}
	return c.exclude(all, n.table.nodes[matrixExclude])
}

func axesOf(t *table) []axis {
	var all []axis
	for _, name := range t.names {
		if n := t.nodes[name]; name != matrixExclude && n.kind == kindList {
			all = append(all, axis{name, n})
		}
	}
	return all
}

// times continues each variant with each word of an axis.
func (c *checker) times(all []variant, a axis, words map[string]bool) []variant {
	if len(a.node.items) == 0 {
		c.add(a.node.value, "", "matrix.%s is empty", a.name)
		return all
	}
	var more []variant
	for _, v := range all {
		for _, word := range a.node.items {
			name := strings.TrimPrefix(v.name+"-"+word.text, "-")
			more = append(more, variant{name, append(slices.Clip(v.parts), word.text)})
		}
		if len(more) > maxVariants {
			break
		}
	}
	for _, word := range a.node.items {
		if c.find("variant", word.text) == nil {
			c.add(word.value, fmt.Sprintf("add [variant.%s]", tomlKey(word.text)), "matrix.%s: there is no variant %q", a.name, word.text)
		}
		words[word.text] = true
	}
	return more
}

func (c *checker) exclude(all []variant, n *node) []variant {
	if n == nil || n.kind != kindList {
		return all
	}
	for _, item := range n.items {
		before := len(all)
		all = slices.DeleteFunc(all, func(v variant) bool { return v.name == item.text })
		if len(all) == before {
			c.add(item.value, didYouMean(spelling.Nearest(item.text, variantNames(all))), "matrix.exclude: %q is no combination", item.text)
		}
	}
	if len(all) == 0 {
		c.add(n.value, "", "matrix.exclude leaves nothing")
	}
	return all
}

// choose makes c's document and values those of a variant. It reports whether there is one to go on with: the named one, the only
// one, or, of a recipe without any, the recipe itself.
func (c *checker) choose() bool {
	before := len(c.problems)
	all := c.variants()
	if len(c.problems) > before {
		return false
	}
	names := variantNames(all)
	i := slices.Index(names, c.variant)
	switch {
	case len(all) == 0 && c.variant == "":
		return true
	case len(all) == 0:
		c.failure = fmt.Errorf("%s has no variants, and so no %q", c.file, c.variant)
		return false
	case c.variant == "" && len(all) == 1:
		i = 0
	case c.variant == "":
		c.failure = fault.Hint(fmt.Errorf("%s has variants: %s", c.file, strings.Join(names, ", ")), "name one: "+asArgument(c.file, names[0]))
		return false
	case i < 0:
		hint := didYouMean(spelling.Nearest(c.variant, names))
		if hint == "" {
			hint = "its variants are " + strings.Join(names, ", ")
		}
		c.failure = fault.Hint(fmt.Errorf("%s has no variant %q", c.file, c.variant), hint)
		return false
	}
	c.variant = all[i].name
	return c.apply(all[i].parts)
}

// asArgument is how a variant of a recipe is named on a command line.
func asArgument(file, variant string) string {
	if filepath.Base(file) == FileName {
		file = filepath.Dir(file)
	}
	return file + ":" + variant
}

// apply lays parts of [variant] over the recipe. What is decoded afterwards is the sum, and places are those of the keys that counted.
func (c *checker) apply(parts []string) bool {
	doc, values := c.doc.without("variant", "matrix"), maps.Clone(c.values)
	delete(values, "variant")
	delete(values, "matrix")
	tables, _ := c.values["variant"].(map[string]any)
	for _, part := range parts {
		over, _ := tables[part].(map[string]any)
		n := c.find("variant", part)
		if over == nil || n == nil || n.table == nil {
			continue // an empty one
		}
		values = merged(values, over, true)
		doc = doc.merged(n.table, true)
	}
	text, err := toml.Marshal(values)
	if err != nil {
		c.failure = fmt.Errorf("%s: put variant %s together: %w", c.file, c.variant, err)
		return false
	}
	c.doc, c.decoded = doc, text
	return true
}

// baseKinds are the keys of [base] of which there is one: a variant's takes the place of the recipe's, whichever that was.
var baseKinds = []string{"image", "bootstrap", "recipe"}

// dropsBase reports whether a key of the recipe's [base] makes room for another one of the variant's.
func dropsBase[V any](name string, over map[string]V) bool {
	return slices.Contains(baseKinds, name) && slices.ContainsFunc(baseKinds, func(other string) bool {
		_, given := over[other]
		return given && other != name
	})
}

// merged lays over over below, neither of which is changed. top says that they are whole recipes.
func merged(below, over map[string]any, top bool) map[string]any {
	sum := maps.Clone(below)
	for name, v := range over {
		switch v := v.(type) {
		case map[string]any:
			if was, ok := sum[name].(map[string]any); ok {
				if top && name == "base" {
					was = maps.Clone(was)
					maps.DeleteFunc(was, func(key string, _ any) bool { return dropsBase(key, v) })
				}
				sum[name] = merged(was, v, false)
				continue
			}
			sum[name] = v
		case []any:
			if was, ok := sum[name].([]any); ok && areTables(v) && areTables(was) {
				sum[name] = slices.Concat(was, v)
				continue
			}
			sum[name] = v
		default:
			sum[name] = v
		}
	}
	return sum
}

func areTables(list []any) bool {
	for _, v := range list {
		if _, ok := v.(map[string]any); !ok {
			return false
		}
	}
	return len(list) > 0
}

// without is t without some keys.
func (t *table) without(names ...string) *table {
	c := newTable()
	for _, name := range t.names {
		if !slices.Contains(names, name) {
			c.put(name, t.nodes[name])
		}
	}
	return c
}

// merged is the document of [merged].
func (t *table) merged(over *table, top bool) *table {
	sum := t.without()
	for _, name := range over.names {
		n, was := over.nodes[name], t.nodes[name]
		switch {
		case was != nil && was.table != nil && n.table != nil:
			below := was.table
			if top && name == "base" {
				below = below.without(slices.DeleteFunc(slices.Clone(below.names), func(key string) bool { return !dropsBase(key, n.table.nodes) })...)
			}
			both := *was
			both.table = below.merged(n.table, false)
			sum.put(name, &both)
		case was != nil && was.isTables() && n.isTables():
			both := *was
			both.items = slices.Concat(was.items, n.items)
			sum.put(name, &both)
		default:
			sum.put(name, n)
		}
	}
	return sum
}

// isTables reports whether n is a list of tables, however it is written.
func (n *node) isTables() bool {
	return len(n.items) > 0 && !slices.ContainsFunc(n.items, func(item *node) bool { return item.kind != kindTable })
}
