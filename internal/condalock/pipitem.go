package condalock

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sconce.dev/sconce/internal/lazyregexp"
)

// PipItem is one item of a pip list: what conda writes as one line of a requirements file in the environment file's directory.
// Either one of Requirement, File and Constraints is set, or only Options.
type PipItem struct {
	Requirement string // PEP 508, or an address or path, "git+https://…"; with its marker
	Editable    bool   // -e: Requirement is an address or path
	File        string // -r: a requirements file, relative to the environment file
	Constraints string // -c: likewise

	// NoIsolation is --no-build-isolation on the line of the requirement or file, or on a line above it: what it builds against is
	// installed before it.
	NoIsolation bool

	Options []PipOption // all other options of the line

	Line, Column int
}

// PipOption is an option by its long name, without the dashes, and its value, if it takes one.
type PipOption struct{ Name, Value string }

// pipOptions are the options that may stand in a requirements file, and whether they take a value (pip's documentation,
// "Requirements File Format"). Short names lead to long ones.
var pipOptions = map[string]bool{
	"index-url": true, "extra-index-url": true, "find-links": true, "trusted-host": true, "no-binary": true, "only-binary": true,
	"requirement": true, "constraint": true, "editable": true, "hash": true, "config-settings": true, "config-setting": true,
	"global-option": true, "use-feature": true, "build-constraint": true,
	"no-index": false, "pre": false, "prefer-binary": false, "require-hashes": false, "no-build-isolation": false, "no-deps": false,
	"use-pep517": false, "no-use-pep517": false,
}

var pipShort = map[string]string{"r": "requirement", "c": "constraint", "e": "editable", "i": "index-url", "f": "find-links", "C": "config-settings"}

// ofRequirement are the options that belong to one requirement and stand on its line.
var ofRequirement = []string{"hash", "config-settings", "config-setting", "global-option"}

func (r *environmentReader) pip(n *yaml.Node) {
	isolation := true
	for _, item := range r.list(n, "pip") {
		text := strings.TrimSpace(r.text(item, "an item of pip"))
		if text == "" {
			continue
		}
		p, err := parsePip(text)
		if err != nil {
			r.wrong(item, "pip: %v", err)
			continue
		}
		p.Line, p.Column = item.Line, item.Column
		if p.NoIsolation && p.empty() {
			isolation = false // for all below it
			continue
		}
		if (p.Requirement != "" || p.File != "") && !isolation {
			p.NoIsolation = true
		}
		r.env.Pip = append(r.env.Pip, *p)
	}
}

func (p *PipItem) empty() bool {
	return p.Requirement == "" && p.File == "" && p.Constraints == "" && len(p.Options) == 0
}

var (
	pipComment  = lazyregexp.New(`(?:^|\s)#.*$`)
	firstOption = lazyregexp.New(`(?:^|\s)-{1,2}[A-Za-z]`)
)

// parsePip reads an item: a requirement, then options.
func parsePip(text string) (*PipItem, error) {
	text = strings.TrimSpace(pipComment.ReplaceAllString(text, ""))
	p := &PipItem{Requirement: text}
	var words []string
	if at := firstOption.Regexp().FindStringIndex(text); at != nil {
		var err error
		if words, err = splitWords(text[at[0]:]); err != nil {
			return nil, err
		}
		p.Requirement = strings.TrimSpace(text[:at[0]])
	}
	named := p.Requirement != ""
	for len(words) > 0 {
		name, value, rest, err := nextOption(words)
		if err != nil {
			return nil, err
		}
		words = rest
		if named && name != "no-build-isolation" && !slices.Contains(ofRequirement, name) {
			return nil, fmt.Errorf("--%s goes into an item of its own, not behind %q", name, p.Requirement)
		}
		if err := p.set(name, value); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *PipItem) set(name, value string) error {
	switch name {
	case "requirement":
		p.File = value
	case "constraint":
		p.Constraints = value
	case "editable":
		p.Requirement, p.Editable = value, true
	case "no-build-isolation":
		p.NoIsolation = true
	default:
		p.Options = append(p.Options, PipOption{name, value})
	}
	things := 0
	for _, s := range []string{p.Requirement, p.File, p.Constraints} {
		if s != "" {
			things++
		}
	}
	if things > 1 {
		return fmt.Errorf("one item is one requirement or one file")
	}
	return nil
}

// nextOption takes one option from words: --name value, --name=value, -r value, -rvalue. A word that is no option is a mistake.
func nextOption(words []string) (name, value string, rest []string, err error) {
	word := words[0]
	rest = words[1:]
	given := false
	switch {
	case strings.HasPrefix(word, "--"):
		name, value, given = strings.Cut(word[2:], "=")
	case strings.HasPrefix(word, "-") && len(word) > 1:
		name, value = pipShort[word[1:2]], strings.TrimPrefix(word[2:], "=")
		given = value != ""
	default:
		return "", "", nil, fmt.Errorf("%q stands behind an option; give it an item of its own", word)
	}
	takes, ok := pipOptions[name]
	if !ok {
		option, _, _ := strings.Cut(word, "=")
		return "", "", nil, fmt.Errorf("unknown option %s", option)
	}
	if takes && !given {
		if len(rest) == 0 {
			return "", "", nil, fmt.Errorf("%s needs a value", word)
		}
		value, rest = rest[0], rest[1:]
	}
	if !takes && given {
		return "", "", nil, fmt.Errorf("--%s takes no value", name)
	}
	return name, value, rest, nil
}

// splitWords splits as a shell does, with quotes and backslashes.
func splitWords(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, quote := false, rune(0)
	escaped := false
	for _, c := range text {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			escaped, inWord = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, inWord = c, true
		case quote == 0 && (c == ' ' || c == '\t'):
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	if quote != 0 || escaped {
		return nil, fmt.Errorf("a quote stays open")
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
