package lint

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/edf"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/spelling"
)

// edfRules are about environments as they are written. What they know is from docs.cscs.ch, "Container Engine" and "Resources and
// hooks", and from the Sarus Suite's schema.
var edfRules = []Rule{
	{
		Rule: audit.Rule{
			ID: "edf-syntax", Severity: audit.Error,
			Title:  "Environments that are no TOML",
			Why:    "The job does not start: srun cannot read the file.",
			Remedy: "mend the line; each key and each table is written once, and a string ends on its line",
		},
		any: lookEDFSyntax,
	},
	{
		Rule: audit.Rule{
			ID: "edf-type", Severity: audit.Error,
			Title:  "Keys with a value of the wrong type",
			Why:    "A value of another type is refused when the job starts, or not looked at.",
			Remedy: "write image and workdir as strings, entrypoint and writable as true or false, mounts as a list of strings, env and annotations as tables",
		},
		edf: lookEDFType,
	},
	{
		Rule: audit.Rule{
			ID: "edf-unknown-key", Severity: audit.Error,
			Title:  "Keys that nobody reads",
			Why:    "A key that is not known has no effect, and in the Sarus Suite even the validator accepts it without a word.",
			Remedy: "the keys are " + strings.Join(edf.Keys, ", "),
		},
		edf: lookEDFKeys,
	},
	{
		Rule: audit.Rule{
			ID: "edf-unknown-annotation", Severity: audit.Error,
			Title:  "Annotations that no hook reads",
			Why:    "A hook whose annotation is misspelt stays off without a word: without the one for NCCL, the nodes talk over TCP.",
			Remedy: "write the full name, such as com.hooks.aws_ofi_nccl.enabled",
		},
		edf: lookAnnotationNames,
	},
	{
		Rule: audit.Rule{
			ID: "edf-annotation-type", Severity: audit.Warning,
			Title:  "Annotations that are not strings",
			Why:    "Annotations are strings by their documentation; what becomes of a number or a true differs between runtimes.",
			Remedy: `put the value in quotes: "true"`,
		},
		edf: lookAnnotationTypes,
	},
	{
		Rule: audit.Rule{
			ID: "edf-env-type", Severity: audit.Error,
			Title:  "Variables that are not strings",
			Why:    "A variable that is not a string is an error, and the job does not start.",
			Remedy: `put the value in quotes: OMP_NUM_THREADS = "8"`,
		},
		edf: lookEnvTypes,
	},
	{
		Rule: audit.Rule{
			ID: "edf-braces", Severity: audit.Error,
			Title:  "Variables without braces",
			Why:    "Only ${NAME} is replaced; $NAME stays as it is, and no image or directory has that name. The Sarus Suite replaces nothing at all in image.",
			Remedy: "write ${NAME}; where nothing is replaced, write the value",
		},
		edf: lookBraces,
	},
	{
		Rule: audit.Rule{
			ID: "edf-undefined-variable", Severity: audit.Warning,
			Title:  "Variables that may not be set",
			Why:    "A variable that is not set where srun is called ends the start with an error. Variables of [env] do not see each other.",
			Remedy: "export it before srun, or write ${NAME:-value}, with which it may be missing",
		},
		edf: lookUndefined,
	},
	{
		Rule: audit.Rule{
			ID: "edf-placeholder", Severity: audit.Error,
			Title:  "Placeholders that were left in",
			Why:    "The text stands for something that was to be filled in; as it is, a mount or the image is not found.",
			Remedy: "write the value; for your own name there is ${USER}",
		},
		edf: lookPlaceholders,
	},
	{
		Rule: audit.Rule{
			ID: "edf-entrypoint-default", Severity: audit.Warning,
			Title:  "entrypoint left to the default",
			Why:    "The Container Engine leaves an image's entrypoint out unless it is asked for; the Sarus Suite runs it, whatever its schema says.",
			Remedy: "write entrypoint = false, or true",
		},
		edf: lookEntrypoint,
	},
	{
		Rule: audit.Rule{
			ID: "edf-base-missing", Severity: audit.Error,
			Title:  "Bases that are not there",
			Why:    "The job does not start: a base environment is not found, or cannot be read.",
			Remedy: "name an environment of EDF_PATH or ~/.edf, or a file by a path that begins with / or ./",
		},
		edf: func(s *subject) { lookBases(s, edf.Missing, edf.Broken) },
	},
	{
		Rule: audit.Rule{
			ID: "edf-base-cycle", Severity: audit.Error,
			Title:  "Bases that lead back",
			Why:    "An environment that is its own base never ends; the start stops with an error.",
			Remedy: "take the name out of base_environment of one of the files",
		},
		edf: func(s *subject) { lookBases(s, edf.Cycle) },
	},
	{
		Rule: audit.Rule{
			ID: "edf-base-depth", Severity: audit.Error,
			Title:  "Too many bases of bases",
			Why:    fmt.Sprintf("More than %d levels of base_environment are an error.", edf.MaxDepth),
			Remedy: "put what the lower ones say into one file",
		},
		edf: func(s *subject) { lookBases(s, edf.Deep) },
	},
	{
		Rule: audit.Rule{
			ID: "edf-portable", Severity: audit.Warning,
			Title:  "What the Sarus Suite does not do",
			Why:    "The file is used with srun --edf, and there this has no effect or is an error; it is meant for the Container Engine.",
			Remedy: "leave it out, or keep a file for each of the two",
		},
		edf: lookPortable,
	},
}

func lookEDFSyntax(s *subject) {
	if s.broken == nil {
		return
	}
	at := lineStart(s.data, s.broken.Line) + max(s.broken.Column-1, 0)
	f := s.tell(s.in(at), "%s", s.broken.Message)
	line, _, _ := bytes.Cut(s.data[lineStart(s.data, s.broken.Line):], []byte("\n"))
	switch {
	case bytes.Contains(line, []byte(`"\n`)) || bytes.Contains(line, []byte(`'\n`)):
		f.Message = `the two characters \n stand behind a value`
		f.Remedy = `take them out; what wrote the file, mostly a heredoc or echo, does not turn \n into the end of a line`
	case strings.Contains(f.Message, "already"):
		f.Why = "TOML lets a table be written once: either under [annotations] with dots, or with a header of its own. The job does not start."
		f.Remedy = "write all keys of the table in one place"
	}
}

// wanted are the kinds of values of the keys at the top level.
func wanted(name string) (kinds []edf.Kind, words string) {
	switch name {
	case edf.Image, edf.Workdir:
		return []edf.Kind{edf.String}, "a string"
	case edf.Base:
		return []edf.Kind{edf.String, edf.List}, "a string or a list of strings"
	case edf.Entrypoint, edf.Writable:
		return []edf.Kind{edf.Bool}, "true or false"
	case edf.Mounts, edf.Devices:
		return []edf.Kind{edf.List}, "a list of strings"
	case edf.Env, edf.Annotations:
		return []edf.Kind{edf.Table}, "a table"
	}
	return nil, ""
}

func lookEDFType(s *subject) {
	for i := range s.edf.Entries {
		e := &s.edf.Entries[i]
		kinds, words := wanted(e.Name[0])
		if kinds == nil {
			continue
		}
		if len(e.Name) > 1 {
			if !slices.Contains(kinds, edf.Table) {
				s.tell(s.in(e.Key.Offset), "%s is a table, and has to be %s", e.Name[0], words)
			}
			continue
		}
		if !slices.Contains(kinds, e.Value.Kind) {
			f := s.tell(s.in(e.Value.At.Offset), "%s is %s, and has to be %s", e.Name[0], e.Value.Kind, words)
			if slices.Contains(kinds, edf.Bool) && (e.Value.Text == "true" || e.Value.Text == "false") {
				f.edits = s.replace(e.Value.At, e.Value.Text)
			}
			continue
		}
		for _, item := range e.Value.Items {
			if item.Kind != edf.String {
				s.tell(s.in(item.At.Offset), "%s holds %s, and has to be %s", e.Name[0], item.Kind, words)
			}
		}
	}
	for _, h := range s.edf.Headers {
		if kinds, words := wanted(h.Name[0]); h.Array && kinds != nil && len(h.Name) == 1 {
			s.tell(s.in(h.Key.Offset), "%s is a list of tables, and has to be %s", h.Name[0], words)
		}
	}
}

func lookEDFKeys(s *subject) {
	seen := map[string]bool{}
	tell := func(name []string, at edf.Span) {
		if slices.Contains(edf.Keys, name[0]) || seen[name[0]] {
			return
		}
		seen[name[0]] = true
		f := s.tell(s.in(at.Offset), "%s is no key of an environment", quote(name[0]))
		near := spelling.Nearest(name[0], edf.Keys)
		if near == "" && name[0] == "com" {
			f.Remedy = "put it under [annotations]"
		}
		if near != "" {
			f.Remedy = "write " + near
			if written := string(s.data[at.Offset : at.Offset+at.Length]); written == name[0] && s.edf.Find(near) == nil {
				f.edits = s.replace(at, near)
			}
		}
	}
	for _, h := range s.edf.Headers {
		tell(h.Name, h.Key)
	}
	for i := range s.edf.Entries {
		tell(s.edf.Entries[i].Name, s.edf.Entries[i].Key)
	}
}

// hooks are the annotations that the runtimes know, by what comes before the last word.
var hooks = map[string][]string{
	"com.hooks.cxi":             {"enabled"},
	"com.hooks.aws_ofi_nccl":    {"enabled", "variant"},
	"com.hooks.netstack":        {"source", "version", "name"},
	"com.hooks.ssh":             {"enabled", "authorize_ssh_key", "port"},
	"com.hooks.nvidia_cuda_mps": {"enabled"},
	"com.hooks.dcgm":            {"enabled"},
	"com.hooks.slurm":           {"enabled"},
	"com.pyxis":                 {"pytorch_remap_vars", "entrypoint_log"},
}

// withoutCom is where an annotation's name lacks its first part, in the text of a key or header.
var withoutCom = lazyregexp.New(`^(annotations[ \t]*\.[ \t]*)?(hooks|pyxis|sarus)\b`)

func lookAnnotationNames(s *subject) {
	for _, e := range s.edf.In(edf.Annotations) {
		name := e.Dotted()
		group, last := "", name
		if i := strings.LastIndexByte(name, '.'); i >= 0 {
			group, last = name[:i], name[i+1:]
		}
		switch first, _, _ := strings.Cut(name, "."); {
		case first == "hooks" || first == "pyxis" || first == "sarus":
			f := s.tell(s.in(e.Key.Offset), "%s lacks com. in front: the hook stays off", quote(name))
			f.edits = s.addCom(e)
		case hooks[group] != nil && !slices.Contains(hooks[group], last):
			near := spelling.Nearest(last, hooks[group])
			f := s.tell(s.in(e.Key.Offset), "%s is no annotation of %s", quote(last), group)
			f.Remedy = fmt.Sprintf("of %s there is %s", group, strings.Join(hooks[group], ", "))
			if near != "" {
				f.Remedy = "write " + group + "." + near
			}
		case strings.HasPrefix(name, "com.hooks.") && hooks[group] == nil:
			var known []string
			for g := range hooks {
				known = append(known, strings.TrimPrefix(g, "com.hooks."))
			}
			slices.Sort(known)
			if near := spelling.Nearest(strings.TrimPrefix(group, "com.hooks."), known); near != "" {
				s.tell(s.in(e.Key.Offset), "there is no hook %s", quote(strings.TrimPrefix(group, "com.hooks."))).Remedy = "write com.hooks." + near + "." + last
			}
		}
	}
}

// addCom puts com. where it is missing: into the key, or into the header above it.
func (s *subject) addCom(e *edf.Entry) []edit {
	spans := []edf.Span{e.Key}
	for _, h := range slices.Backward(s.edf.Headers) {
		if h.Key.Offset < e.Key.Offset {
			spans = append(spans, h.Key)
			break
		}
	}
	for _, at := range spans {
		if m := withoutCom.Regexp().FindSubmatchIndex(s.data[at.Offset : at.Offset+at.Length]); m != nil {
			return s.replace(edf.Span{Offset: at.Offset + m[4], Length: 0}, "com.")
		}
	}
	return nil
}

// unquoted are values that mean the same text when they are put in quotes.
func unquoted(v edf.Value) bool {
	return v.Kind == edf.Integer || v.Kind == edf.Float || v.Kind == edf.Bool
}

func (s *subject) quoteIt(v edf.Value) []edit {
	if !unquoted(v) {
		return nil
	}
	return s.replace(v.At, `"`+string(s.data[v.At.Offset:v.At.Offset+v.At.Length])+`"`)
}

func lookAnnotationTypes(s *subject) {
	for _, e := range s.edf.In(edf.Annotations) {
		if e.Value.Kind != edf.String && e.Value.Kind != edf.Table {
			s.tell(s.in(e.Value.At.Offset), "%s is %s, not a string", e.Dotted(), e.Value.Kind).edits = s.quoteIt(e.Value)
		}
	}
}

func lookEnvTypes(s *subject) {
	for _, e := range s.edf.In(edf.Env) {
		switch {
		case len(e.Name) > 2:
			s.tell(s.in(e.Key.Offset), "%s is a table, and a variable is a string", e.Name[1])
		case e.Value.Kind != edf.String:
			s.tell(s.in(e.Value.At.Offset), "%s is %s, and a variable is a string", e.Name[1], e.Value.Kind).edits = s.quoteIt(e.Value)
		}
	}
}

// texts are the strings of a file in which variables are replaced, each with its key.
func texts(f *edf.File) []edf.Entry {
	var all []edf.Entry
	for i := range f.Entries {
		e := f.Entries[i]
		if !slices.Contains(edf.Keys, e.Name[0]) {
			continue
		}
		for _, v := range append([]edf.Value{e.Value}, e.Value.Items...) {
			if v.Kind == edf.String {
				all = append(all, edf.Entry{Name: e.Name, Key: e.Key, Value: v})
			}
		}
	}
	return all
}

func lookBraces(s *subject) {
	for _, e := range texts(s.edf) {
		key := e.Name[0]
		for _, r := range edf.References(e.Value.Text) {
			switch {
			case s.dialect == edf.Sarus && key == edf.Image:
				s.tell(s.in(e.Value.At.Offset), "the Sarus Suite replaces no variables in image, and %s stays as it is", quote(e.Value.Text[r.Start:r.End]))
			case s.dialect == edf.Sarus || r.Braces:
			default:
				f := s.tell(s.in(e.Value.At.Offset), "%s is without braces, and stays as it is", quote("$"+r.Name))
				if key == edf.Env { // it may be for a program that expands it
					f.Severity = audit.Warning
				} else {
					f.edits = s.addBraces(e.Value, r.Name)
				}
			}
		}
	}
}

// addBraces puts braces around a variable in a string.
func (s *subject) addBraces(v edf.Value, name string) []edit {
	raw := s.data[v.At.Offset : v.At.Offset+v.At.Length]
	at := regexp.MustCompile(`\$`+name+`\b`).FindAllIndex(raw, -1)
	var edits []edit
	for _, m := range at {
		if m[0] == 0 || raw[m[0]-1] != '$' && raw[m[0]-1] != '\\' {
			edits = append(edits, s.replace(edf.Span{Offset: v.At.Offset + m[0], Length: m[1] - m[0]}, "${"+name+"}")...)
		}
	}
	return edits
}

// everywhere are variables that are set where jobs are submitted or run.
var everywhere = []string{"HOME", "USER", "LOGNAME", "PWD", "PATH", "SHELL", "TMPDIR", "HOSTNAME", "SCRATCH", "STORE", "PROJECT", "LD_LIBRARY_PATH"}

func lookUndefined(s *subject) {
	for _, e := range texts(s.edf) {
		for _, r := range edf.References(e.Value.Text) {
			if !r.Braces || r.HasDefault || slices.Contains(everywhere, r.Name) || strings.HasPrefix(r.Name, "SLURM") || s.isSet(r.Name) {
				continue
			}
			own, ofEnv := s.env.Env[r.Name]
			if ofEnv && e.Name[0] == edf.Env && own.Entry.Name[1] != e.Name[1] {
				s.tell(s.in(e.Value.At.Offset), "%s speaks of %s, and variables of [env] do not see each other", e.Name[1], r.Name).
					Remedy = "write the value, or export " + r.Name + " before srun"
				continue
			}
			s.tell(s.in(e.Value.At.Offset), "%s is not set here", r.Name)
		}
	}
}

// isSet reports whether a variable is set here, or by the script that uses the environment.
func (s *subject) isSet(name string) bool {
	if _, set := s.linter.Lookup(name); set {
		return true
	}
	if s.usedBy == nil {
		return false
	}
	for _, a := range s.usedBy.script.Sets {
		if a.Name == name && a.Inside == nil {
			return true
		}
	}
	return false
}

var placeholder = lazyregexp.New(`<[A-Za-z][A-Za-z0-9 _.-]*>|/path/to/|(?i)\bchange[-_]?me\b|\byour[-_](?:user|name|project|account|image|username)\b`)

func lookPlaceholders(s *subject) {
	for _, e := range texts(s.edf) {
		if found := placeholder.FindString(e.Value.Text); found != "" {
			s.tell(s.in(e.Value.At.Offset), "%s was left in %s", quote(found), strings.Join(e.Name, "."))
		}
	}
}

func lookEntrypoint(s *subject) {
	if s.dialect != edf.Sarus || s.env.Text(edf.Image) == "" {
		return
	}
	if _, written := s.env.Top[edf.Entrypoint]; written {
		return
	}
	if s.image != nil && s.image.Facts != nil && len(s.image.Config.Entrypoint) == 0 {
		return
	}
	s.tell(s.in(0), "entrypoint is not written, and the Sarus Suite runs the image's")
}

func lookBases(s *subject, kinds ...edf.ProblemKind) {
	for _, p := range s.problems {
		if slices.Contains(kinds, p.Kind) {
			s.tell(place{p.File.Path, p.File.Data, p.Value.At.Offset}, "%s", p.Message)
		}
	}
}

func lookPortable(s *subject) {
	if s.dialect != edf.Sarus {
		if devices := s.edf.Find(edf.Devices); devices != nil {
			f := s.tell(s.in(devices.Key.Offset), "devices is a key of the Sarus Suite alone")
			f.Why = "The Container Engine knows no such key; its hooks bring the devices."
		}
		return
	}
	image := s.env.Top[edf.Image]
	if isPath(image.Value.Text) {
		f := s.tell(of(image), "the Sarus Suite takes images of registries only, and %s is a path", quote(image.Value.Text))
		f.Severity = audit.Error
	}
	for _, name := range []string{"com.hooks.aws_ofi_nccl.variant", "com.hooks.netstack.source", "com.hooks.netstack.version", "com.hooks.netstack.name"} {
		if a, ok := s.env.Annotations[name]; ok {
			s.tell(of(a), "the Sarus Suite does not look at %s", name)
		}
	}
}

// quote shows a text of the file in a line.
func quote(text string) string { return fmt.Sprintf("%q", text) }
