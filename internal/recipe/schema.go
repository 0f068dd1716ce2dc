package recipe

import (
	"encoding/json"
	"fmt"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/lazyregexp"
)

//go:generate go test -run TestSchemaFile -update .

// SchemaFile is the name the schema goes by: its $id, and what a recipe's #:schema comment refers to.
const SchemaFile = "sconce.schema.json"

const draft = "https://json-schema.org/draft/2020-12/schema"

// property is the part of JSON Schema, draft 2020-12, that a recipe needs. The order of its fields is that of the file.
type property struct {
	Schema      string               `json:"$schema,omitempty"`
	Ref         string               `json:"$ref,omitempty"`
	ID          string               `json:"$id,omitempty"`
	Title       string               `json:"title,omitempty"`
	Description string               `json:"description,omitempty"`
	Type        string               `json:"type,omitempty"`
	Enum        []string             `json:"enum,omitempty"`
	Pattern     string               `json:"pattern,omitempty"`
	Minimum     *int                 `json:"minimum,omitempty"`
	Maximum     *int                 `json:"maximum,omitempty"`
	Items       *property            `json:"items,omitempty"`
	Properties  map[string]*property `json:"properties,omitempty"`
	Names       *property            `json:"propertyNames,omitempty"`
	Additional  any                  `json:"additionalProperties,omitempty"` // false, or what every further key must be
	Required    []string             `json:"required,omitempty"`
	OneOf       []*property          `json:"oneOf,omitempty"`
	AnyOf       []*property          `json:"anyOf,omitempty"`
	Examples    []any                `json:"examples,omitempty"`
}

// Schema returns the JSON Schema of a recipe, by which editors complete and check it.
func Schema() ([]byte, error) {
	s, err := schemaOf(root())
	if err != nil {
		return nil, err
	}
	s.Schema, s.ID, s.Title = draft, SchemaFile, "sconce recipe"
	s.Description = "What a container image shall hold; see docs/recipe.md."
	base := s.Properties["base"]
	base.OneOf = []*property{{Required: []string{"image"}}, {Required: []string{"bootstrap"}}, {Required: []string{"recipe"}}}
	base.Properties["bootstrap"].OneOf = []*property{{Required: []string{"suite"}}, {Required: []string{"dnf"}}}
	addVariants(s)
	s.Properties["step"].Items.AnyOf = []*property{{Required: []string{"run"}}, {Required: []string{"copy"}}, {Required: []string{"patch"}}}
	return s.write()
}

// addVariants says what a variant is: the recipe's own keys, of which it needs none. With variants, a recipe needs no base of its own.
func addVariants(s *property) {
	s.AnyOf, s.Required = []*property{{Required: []string{"base"}}, {Required: []string{"variant"}}}, []string{"name"}
	one := s.Properties["variant"].Additional.(*property)
	one.Properties = map[string]*property{}
	for _, name := range variantShape().names {
		one.Properties[name] = &property{Ref: "#/properties/" + name}
	}
	base := *s.Properties["base"]
	base.OneOf = nil
	one.Properties["base"] = &base
}

// ProfileSchemaFile is the name that the schema of clusters' profiles goes by.
const ProfileSchemaFile = "sconce-cluster.schema.json"

// ProfileSchema returns the JSON Schema of a cluster's profile.
func ProfileSchema() ([]byte, error) {
	s, err := schemaOf(profile())
	if err != nil {
		return nil, err
	}
	s.Schema, s.ID, s.Title = draft, ProfileSchemaFile, "sconce cluster profile"
	s.Description = "What a cluster is; see docs/clusters.md."
	s.addEnvUenv()
	return s.write()
}

// addEnvUenv adds [env.uenv], a table among keys that the user chooses.
func (p *property) addEnvUenv() {
	k := cluster.KeyOf(envUenv)
	p.Properties["env"].Properties = map[string]*property{"uenv": {
		Type: "object", Description: k.Doc, Additional: &property{Type: "string", Pattern: pattern(k.Form)}, Names: &property{Pattern: pattern(k.NameForm)},
	}}
}

func (p *property) write() ([]byte, error) {
	out, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	return append(out, '\n'), nil
}

func schemaOf(s *shape) (*property, error) {
	p := &property{Description: s.description()}
	if err := p.addExamples(s); err != nil {
		return nil, err
	}
	switch {
	case s.free:
		p.Type, p.Additional = "object", stringProperty(s)
		if s.lists {
			p.Additional = &property{Type: "array", Items: stringProperty(s)}
		}
		p.Names = &property{Pattern: pattern(s.key.NameForm)}
	case s.element != nil:
		element, err := schemaOf(s.element)
		p.Type, p.Additional, p.Names = "object", element, &property{Pattern: pattern(s.key.NameForm)}
		return p, err
	case s.kind == kindTables:
		p.Type, p.Items = "array", &property{Type: "object", Additional: false}
		return p, p.Items.addFields(s)
	case s.overlay:
		p.Type, p.Additional = "object", false
	case s.kind == kindTable:
		p.Type, p.Additional = "object", false
		return p, p.addFields(s)
	case s.kind == kindList:
		p.Type, p.Items = "array", stringProperty(s)
	case s.kind == kindBool:
		p.Type = "boolean"
	case s.kind == kindInteger:
		p.Type, p.Minimum, p.Maximum = "integer", &s.key.Min, &s.key.Max
	default:
		p.Type, p.Enum, p.Pattern = "string", s.key.Enum, pattern(s.key.Form)
	}
	return p, nil
}

// description is what an editor shows beside the key.
func (s *shape) description() string {
	if s.key.Default == "" {
		return s.key.Doc
	}
	return s.key.Doc + " Default: " + s.key.Default + "."
}

func (p *property) addFields(s *shape) error {
	p.Properties = map[string]*property{}
	for _, name := range s.names {
		field, err := schemaOf(s.fields[name])
		if err != nil {
			return err
		}
		p.Properties[name] = field
	}
	return nil
}

// stringProperty is what an element of a list, or a value of a free table, must be.
func stringProperty(s *shape) *property {
	return &property{Type: "string", Enum: s.key.Enum, Pattern: pattern(s.key.Form)}
}

func pattern(re *lazyregexp.Regexp) string {
	if re == nil {
		return ""
	}
	return re.String()
}

func (p *property) addExamples(s *shape) error {
	if s.key.Example == "" {
		return nil
	}
	var doc map[string]any
	if err := toml.Unmarshal([]byte("value = "+s.key.Example), &doc); err != nil {
		return fmt.Errorf("example of %s: %w", s.path, err)
	}
	p.Examples = []any{doc["value"]}
	return nil
}
