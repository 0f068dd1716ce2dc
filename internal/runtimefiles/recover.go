package runtimefiles

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/store"
)

// Recovered is the configuration of a root file system that came without one.
type Recovered struct {
	Config   v1.ConfigFile // Architecture and OS are empty unless From is FromRecord
	Manifest store.Digest  // of the image that it was made from, when From is FromRecord and there was one
	From     Origin
}

// Origin says who wrote what a configuration was recovered from.
type Origin string

// The origins, in the order in which they are believed.
const (
	FromRecord    Origin = "sconce"
	FromEnroot    Origin = "enroot"
	FromApptainer Origin = "apptainer"
	FromNothing   Origin = "" // the configuration is a guess: a default PATH and a shell
)

// Recover finds out the configuration of a root file system. read returns a file's content, or an error that wraps
// fs.ErrNotExist; it gets absolute paths, and should refuse files above 16 MiB. Any other error of it is returned.
//
// A record of sconce's has everything. Of enroot's and Apptainer's files the environment and labels are read; their start
// scripts become the entrypoint.
func Recover(read func(path string) ([]byte, error)) (Recovered, error) {
	r := reader{read: read}
	c := r.recover()
	if r.err != nil {
		return Recovered{}, r.err
	}
	return c, nil
}

// reader reads files until the first error.
type reader struct {
	read func(string) ([]byte, error)
	err  error
}

// file returns the content of a file, and whether it is there.
func (r *reader) file(p string, limit int) (string, bool) {
	if r.err != nil {
		return "", false
	}
	data, err := r.read("/" + p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", false
	case err != nil:
		r.err = fmt.Errorf("read /%s: %w", p, err)
	case len(data) > limit:
		r.err = fmt.Errorf("read /%s: its %d bytes are more than the %d accepted", p, len(data), limit)
	}
	return string(data), r.err == nil
}

func (r *reader) recover() Recovered {
	if text, ok := r.file(recordPath, maxRecord); ok {
		record, config, err := parseRecord([]byte(text))
		r.err = err
		return Recovered{Config: config, Manifest: record.Manifest, From: FromRecord}
	}
	c := Recovered{}
	env, hasEnv := r.file(environmentPath, maxScript)
	if rc, ok := r.file(rcPath, maxScript); ok {
		c.From = FromEnroot
		c.Config.Config.Entrypoint = slices.Clone(enrootEntrypoint)
		c.Config.Config.Labels = commentLabels(rc)
		c.Config.Config.Env = environmentLines(env)
	} else if _, ok := r.file(runAction, maxScript); ok {
		c.From = FromApptainer
		r.apptainer(&c.Config.Config)
	} else {
		c.Config.Config.Cmd = slices.Clone(defaultCmd)
		if hasEnv {
			c.Config.Config.Env = environmentLines(env)
		}
	}
	c.Config.Config.Env = withPath(c.Config.Config.Env)
	return c
}

func (r *reader) apptainer(c *v1.Config) {
	c.Entrypoint = slices.Clone(apptainerEntrypoint)
	if text, ok := r.file(dockerEnvPath, maxScript); ok {
		c.Env, _ = parseDockerEnv(text)
	}
	if text, ok := r.file(labelsPath, maxScript); ok && strings.TrimSpace(text) != "" {
		var err error
		if c.Labels, err = parseLabels(text); err != nil {
			r.err = fmt.Errorf("read /%s: %w", labelsPath, err)
		}
	}
}

// parseLabels reads labels.json. Values that are no text, which old versions wrote, are left out.
func parseLabels(text string) (map[string]string, error) {
	var all map[string]any
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, err
	}
	var labels map[string]string
	for k, v := range all {
		if s, ok := v.(string); ok {
			if labels == nil {
				labels = map[string]string{}
			}
			labels[k] = s
		}
	}
	return labels, nil
}

// withPath adds a PATH to an environment that has none.
func withPath(env []string) []string {
	if slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
		return env
	}
	return append([]string{"PATH=" + searchpath.Default}, env...)
}

var environmentLine = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*=`)

// environmentLines reads /etc/environment as enroot does. A variable of the host in a value stays what it is: enroot import
// wrote it as it found it in an image.
func environmentLines(text string) []string {
	var env []string
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimLeft(line, " \t\r\v\f")
		if !environmentLine.MatchString(line) || isReserved(line) || strings.Contains(line, "\x00") {
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		for range 2 { // enroot does it before its hooks and once more after them
			if m := quotedValue.FindStringSubmatch(value); m != nil {
				value = m[1]
			}
		}
		env = append(env, name+"="+value)
	}
	return joinEnv(variables(env))
}

// joinEnv makes an environment for a configuration, which is JSON and can hold nothing but UTF-8.
func joinEnv(vs []variable) []string {
	env := make([]string, len(vs))
	for i, v := range vs {
		env[i] = v.name + "=" + strings.ToValidUTF8(v.value, "\ufffd")
	}
	return env
}

// commentLabels reads the labels that enroot import writes at the top of /etc/rc.
func commentLabels(rc string) map[string]string {
	var labels map[string]string
	for line := range strings.SplitSeq(strings.ToValidUTF8(rc, "\ufffd"), "\n") {
		text, ok := strings.CutPrefix(line, "# ")
		if !ok {
			break
		}
		key, value, ok := strings.Cut(text, " ")
		if !ok || key == "" || strings.HasSuffix(key, ":") {
			continue // enroot-provenance: is no label
		}
		if labels == nil {
			labels = map[string]string{}
		}
		labels[key] = value
	}
	return labels
}

// isDockerEnv reports whether a script is nothing but exports in the form of dockerEnv.
func isDockerEnv(script string) bool {
	_, all := parseDockerEnv(script)
	return all
}

var (
	exportStart = lazyregexp.New(`^export ([A-Za-z_][A-Za-z0-9_]*)="`)
	orStart     = lazyregexp.New(`^\[ -n "\$\{[A-Za-z_][A-Za-z0-9_]*:-\}" \] \|\| ([A-Za-z_][A-Za-z0-9_]*)='`)
)

// parseDockerEnv reads the exports of a 10-docker2singularity.sh and reports whether the script holds nothing else. What it
// does not understand it leaves out.
func parseDockerEnv(script string) (env []string, all bool) {
	all = true
	var vs []string
	for rest := script; rest != ""; {
		name, value, after, ok := parseExport(rest)
		if ok {
			vs, rest = append(vs, name+"="+value), after
			continue
		}
		var line string
		line, rest, _ = strings.Cut(rest, "\n")
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = false
		}
	}
	return joinEnv(variables(vs)), all
}

// parseExport reads one of the forms of dockerEnv from the start of a script.
func parseExport(s string) (name, value, rest string, ok bool) {
	if m := orStart.FindStringSubmatch(s); m != nil {
		name = m[1]
		if value, rest, ok = parseSingle(s[len(m[0]):]); ok {
			rest, ok = strings.CutPrefix(rest, "\nexport "+name+"\n")
		}
		return name, value, rest, ok
	}
	m := exportStart.FindStringSubmatch(s)
	if m == nil {
		return "", "", "", false
	}
	name, s = m[1], s[len(m[0]):]
	end := "\"\n"
	if inner, ok := strings.CutPrefix(s, "${"+name+":-"); ok {
		if rest, ok := strings.CutPrefix(inner, "}\"\n"); ok {
			return name, "", rest, true
		}
		if s, ok = strings.CutPrefix(inner, `"`); !ok {
			return "", "", "", false
		}
		end = "\"}\"\n"
	}
	if value, rest, ok = parseDouble(s); ok {
		rest, ok = strings.CutPrefix(rest, end)
	}
	return name, value, rest, ok
}

// parseSingle undoes the quoting of single, of which the first quote has been read.
func parseSingle(s string) (value, rest string, ok bool) {
	var b strings.Builder
	for {
		piece, rest, found := strings.Cut(s, "'")
		b.WriteString(piece)
		if !found || strings.Contains(piece, "\x00") {
			return "", "", false
		}
		if s, found = strings.CutPrefix(rest, `"'"'`); !found {
			return b.String(), rest, true
		}
		b.WriteByte('\'')
	}
}

// parseDouble reads up to the closing double quote, which stays in rest. Text that a shell would expand is refused.
func parseDouble(s string) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '"':
			return b.String(), s[i:], true
		case '$', '`', 0:
			return "", "", false
		case '\\':
			if i++; i == len(s) {
				return "", "", false
			}
			if !strings.ContainsRune("\\\"`$", rune(s[i])) {
				b.WriteByte('\\')
			}
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}
