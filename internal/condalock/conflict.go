package condalock

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
)

// failure is what solve.py says when there is no answer.
type failure struct {
	Kind    string      `json:"kind"` // "specs", "conflict" or "channel"
	Text    string      `json:"text"`
	Source  int         `json:"source"`
	Rivals  []int       `json:"rivals"`
	Unknown []unknown   `json:"unknown"`
	Wrong   []wrongSpec `json:"wrong"`
}

// unknown is a package that no channel has.
type unknown struct {
	Name      string   `json:"name"`
	Similar   []string `json:"similar"`
	Platforms []string `json:"platforms"` // that have it
}

// wrongSpec is a spec that the solver cannot read.
type wrongSpec struct {
	Source int    `json:"source"`
	Spec   int    `json:"spec"`
	Text   string `json:"text"`
}

// ConflictError says that no set of packages is what was asked for.
type ConflictError struct {
	File   string   // whose specs have no solution
	Rivals []string // the files whose specs they contradict; none when they have no solution alone
	Text   string   // the solver's explanation
	Asked  []string // what the files ask for of the packages in it: "a.yml:3:5 asks for python 3.11.*"
	hint   string
}

func (e *ConflictError) Error() string {
	where := e.File
	if len(e.Rivals) > 0 {
		where += " does not fit with " + strings.Join(e.Rivals, ", ")
	}
	return where + ": no set of conda packages is what is asked for:\n" + strings.Join(append([]string{e.Text}, e.Asked...), "\n")
}

// Hint says what would help, as far as the explanation tells.
func (e *ConflictError) Hint() string { return e.hint }

// explain makes an error of what the solver said.
func (s *Solver) explain(f *failure, r *Request) error {
	text := s.Config.Logins.redact(strings.TrimSpace(f.Text))
	switch f.Kind {
	case "specs":
		return wrongSpecs(f.Wrong, append(slices.Clone(r.Sources), s.Config.pinnedSource()))
	case "conflict":
		if f.Source < 0 || f.Source >= len(r.Sources) {
			break
		}
		e := &ConflictError{File: r.Sources[f.Source].Name, Text: strings.TrimPrefix(text, "Cannot solve the request because of: ")}
		e.Asked = r.Sources[f.Source].askedIn(e.Text)
		for _, i := range f.Rivals {
			if i >= 0 && i < len(r.Sources) {
				e.Rivals = append(e.Rivals, r.Sources[i].Name)
				e.Asked = append(e.Asked, r.Sources[i].askedIn(e.Text)...)
			}
		}
		e.hint = conflictHint(e.Text, f.Unknown, r)
		if held := s.Config.pinnedIn(e.Text); len(held) > 0 {
			e.Asked = append(e.Asked, held...)
			e.hint = cmp.Or(e.hint, "take it out of pinned_packages in .condarc, or say for once what goes: CONDA_PINNED_PACKAGES=\"NAME VERSION\"")
		}
		return e
	case "channel":
		return fault.Hint(fmt.Errorf("conda channel: %s", chain(text)), s.channelHint(text))
	}
	return fmt.Errorf("the solver: %s", text)
}

// pinnedSource is what the configuration pins, as messages name it.
func (c *Config) pinnedSource() Source {
	s := Source{Name: pinnedPlace}
	for _, text := range c.Pinned {
		s.Specs = append(s.Specs, Spec{Text: text})
	}
	return s
}

// pinnedIn lists the pinned packages that are in a text.
func (c *Config) pinnedIn(text string) []string {
	words := strings.Fields(text)
	var all []string
	for _, spec := range c.Pinned {
		if slices.Contains(words, conda.DependencyName(spec)) {
			all = append(all, pinnedPlace+" has "+withoutLogins(spec))
		}
	}
	return all
}

// askedIn lists the specs of a source for packages that are in a text, those of which the line is known.
func (s *Source) askedIn(text string) []string {
	words := strings.Fields(text)
	var all []string
	for _, spec := range s.Specs {
		if spec.Line > 0 && slices.Contains(words, conda.DependencyName(spec.Text)) {
			all = append(all, spec.at(s.Name)+" asks for "+withoutLogins(spec.Text))
		}
	}
	return all
}

// chain puts the causes of an error, one per line, into one.
func chain(text string) string {
	lines := strings.FieldsFunc(text, func(c rune) bool { return c == '\n' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, ": ")
}

func wrongSpecs(wrong []wrongSpec, sources []Source) error {
	var all []error
	for _, w := range wrong {
		if w.Source < 0 || w.Source >= len(sources) || w.Spec < 0 || w.Spec >= len(sources[w.Source].Specs) {
			continue
		}
		source := sources[w.Source]
		spec := source.Specs[w.Spec]
		all = append(all, fmt.Errorf("%s: %q is not a conda requirement: %s", spec.at(source.Name), withoutLogins(spec.Text), chain(w.Text)))
	}
	return fault.Usage(errors.Join(all...))
}

var virtualInText = lazyregexp.New(`__[a-z_]+`)

// virtualHints say what makes a virtual package known, or other than it is.
var virtualHints = map[string]string{
	"__cuda":      cudaHint,
	"__cuda_arch": `say which GPUs the target has: gpu = ["sm_80"] under [target], or CONDA_OVERRIDE_CUDA_ARCH=8.0`,
	"__glibc":     `the base image's libc is too old for this package: take a newer base, or an older version of the package`,
	"__archspec":  `the package wants another CPU: say which the target has, under [target], or CONDA_OVERRIDE_ARCHSPEC=x86_64_v3`,
	"__linux":     `the package wants another kernel than the target's: CONDA_OVERRIDE_LINUX=6.1 says which the target runs`,
}

func conflictHint(text string, missing []unknown, r *Request) string {
	for _, u := range missing {
		switch {
		case len(u.Platforms) > 0:
			return fmt.Sprintf("%s is there for %s, and not for %s", u.Name, strings.Join(u.Platforms, ", "), r.Platform)
		case len(u.Similar) > 0:
			return fmt.Sprintf("the channels have no %s; did you mean %s?", u.Name, strings.Join(u.Similar, " or "))
		default:
			return fmt.Sprintf("the channels have no %s: name the channel that has it under channels, or list it under pip", u.Name)
		}
	}
	for _, name := range virtualInText.Regexp().FindAllString(text, -1) {
		if name == "__cuda" && r.Machine.Has("__cuda") {
			return fmt.Sprintf("the target's driver runs CUDA up to %s: ask for a version that is built for it", r.Machine.version(name))
		}
		if hint, ok := virtualHints[name]; ok {
			return hint
		}
	}
	if strings.Contains(text, "strict channel priority") {
		return `a channel further up has the package in other versions only: put the channel with the right one first, or use channel-priority = "flexible"`
	}
	return ""
}

func (s *Solver) channelHint(text string) string {
	if s.Offline {
		return "the channel's index is not in the store: run it once with the network"
	}
	return ChannelHint(text)
}

// ChannelHint says what to do about a channel of which the text tells what is wrong, such as "404 Not Found"; "" where that is not known.
func ChannelHint(text string) string {
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	switch {
	case has("401 Unauthorized", "403 Forbidden"):
		return "the channel asks for a login: put it into RATTLER_AUTH_FILE, ~/.rattler/credentials.json or ~/.netrc"
	case has("404 Not Found", "could not find subdir", "No such file"):
		return "no channel is there: check its name, or channel_alias and custom_channels in .condarc"
	case has("429 Too Many Requests"):
		return "the channel refuses more requests for now: try again later, or name a mirror of it in .condarc"
	case has("certificate", "tls", "TLS"):
		return "the server's certificate is not known here: name its authority with ssl_verify in .condarc, or SSL_CERT_FILE"
	case has("parse", "decode", "zstd", "EOF"):
		return "what came is not the index of a channel: it may be damaged, or a proxy or a page for logging in has answered"
	}
	return ""
}
