package recipe

import (
	"github.com/pelletier/go-toml/v2/unstable"
)

// node is one value of the recipe with its places in the file, for messages.
type node struct {
	key   span // of the key that names it, or of the table header
	value span // of the value; the key's for a table of its own
	kind  kind
	text  string  // of a string, as decoded
	items []*node // of a list
	table *table  // of a table
}

// table is a TOML table: its keys in the order of the file.
type table struct {
	names []string
	nodes map[string]*node
}

func newTable() *table { return &table{nodes: map[string]*node{}} }

func (t *table) put(name string, n *node) {
	if _, ok := t.nodes[name]; !ok {
		t.names = append(t.names, name)
	}
	t.nodes[name] = n
}

// addPlaces adds where values stand that hold no tables.
func (n *node) addPlaces(places map[int]bool) {
	if n.table != nil {
		for _, child := range n.table.nodes {
			child.addPlaces(places)
		}
		return
	}
	for _, item := range n.items {
		item.addPlaces(places)
	}
	if n.kind != kindTables {
		places[n.value.offset] = true
	}
}

// kind is the type of a TOML value, named as messages name it.
type kind string

const (
	kindString  kind = "a string"
	kindInteger kind = "a number"
	kindFloat   kind = "a decimal number"
	kindBool    kind = "true or false"
	kindTime    kind = "a date or time"
	kindList    kind = "a list"
	kindTable   kind = "a table"
	kindAny     kind = "anything"
	kindTables  kind = "a list of tables" // [[name]]
)

// parser builds the tree of a document that has already been found to be valid TOML.
type parser struct {
	unstable.Parser
}

// readDocument returns the root table of data. It is lenient: whatever go-toml's decoder refuses has been refused.
func readDocument(data []byte) *table {
	var p parser
	p.Reset(data)
	root := newTable()
	current := root
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			current = p.openTable(root, e)
		case unstable.KeyValue:
			p.keyValue(current, e)
		}
	}
	return root
}

// openTable returns the table that a header names, making it and those on the way.
func (p *parser) openTable(root *table, header *unstable.Node) *table {
	t := root
	for keys := header.Key(); keys.Next(); {
		k := keys.Node()
		if keys.IsLast() && header.Kind == unstable.ArrayTable {
			return p.appendTable(t, k)
		}
		t = p.descend(t, k)
	}
	return t
}

// descend returns the table under key k, the last one where k names a list of tables.
func (p *parser) descend(t *table, k *unstable.Node) *table {
	name := string(k.Data)
	n := t.nodes[name]
	if n != nil && n.kind == kindTables && len(n.items) > 0 {
		return n.items[len(n.items)-1].table
	}
	if n == nil || n.table == nil {
		n = &node{key: place(k), value: place(k), kind: kindTable, table: newTable()}
		t.put(name, n)
	}
	return n.table
}

func (p *parser) appendTable(t *table, k *unstable.Node) *table {
	name := string(k.Data)
	n := t.nodes[name]
	if n == nil || n.kind != kindTables {
		n = &node{key: place(k), value: place(k), kind: kindTables}
		t.put(name, n)
	}
	element := &node{key: place(k), value: place(k), kind: kindTable, table: newTable()}
	n.items = append(n.items, element)
	return element.table
}

func (p *parser) keyValue(t *table, e *unstable.Node) {
	keys := e.Key()
	for keys.Next() {
		k := keys.Node()
		if !keys.IsLast() {
			t = p.descend(t, k)
			continue
		}
		n := p.value(e.Value(), p.valueStart(k))
		n.key = place(k)
		t.put(string(k.Data), n)
	}
}

// valueStart returns where the value after key k begins: go-toml does not say it for every type.
func (p *parser) valueStart(k *unstable.Node) span {
	data, i := p.Data(), int(k.Raw.Offset+k.Raw.Length)
	for i < len(data) && (data[i] == ' ' || data[i] == '\t' || data[i] == '=') {
		i++
	}
	return span{offset: i, length: 1}
}

// value converts one value; start is its place should go-toml not tell a better one.
func (p *parser) value(v *unstable.Node, start span) *node {
	n := &node{kind: kindOf(v.Kind), value: start}
	if v.Raw.Length > 0 {
		n.value = place(v)
	}
	switch v.Kind {
	case unstable.String:
		n.text = string(v.Data)
	case unstable.Array:
		for it := v.Children(); it.Next(); {
			n.items = append(n.items, p.value(it.Node(), start))
		}
	case unstable.InlineTable:
		n.table = newTable()
		for it := v.Children(); it.Next(); {
			p.keyValue(n.table, it.Node())
		}
	case unstable.Integer:
		n.text = string(v.Data)
	}
	n.key = n.value
	return n
}

func kindOf(k unstable.Kind) kind {
	switch k {
	case unstable.String:
		return kindString
	case unstable.Integer:
		return kindInteger
	case unstable.Float:
		return kindFloat
	case unstable.Bool:
		return kindBool
	case unstable.Array:
		return kindList
	case unstable.InlineTable, unstable.Table:
		return kindTable
	default:
		return kindTime
	}
}

func place(n *unstable.Node) span { return span{int(n.Raw.Offset), int(n.Raw.Length)} }
