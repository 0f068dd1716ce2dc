package build

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/store"
)

// start is what activation scripts do that the image cannot have: variables that are not the same for every user, and functions of the
// shell. Their scripts are sourced when a container starts, by two files in the environment:
//
//   - start.sh, for any POSIX shell to source: Apptainer's and enroot's scripts do (see package runtimefiles), and bash itself by
//     $BASH_ENV, where there are functions. Other shells have bash tell them the variables.
//   - start, which sources that and becomes the command that it is given: the image's entrypoint begins with it.
//
// What is recorded in the image keeps its value, so that PATH does not grow with each shell, and so do, in the second shell of a
// container and those after it, the variables of the user.
type start struct {
	prefix string
	scripted
}

// newStart returns nil where nothing is left to do.
func newStart(prefix string, found scripted) *start {
	if len(found.Personal)+len(found.Functions) == 0 {
		return nil
	}
	return &start{prefix, found}
}

func (s *start) program() string { return s.prefix + "/etc/conda/start" }
func (s *start) file() string    { return s.program() + ".sh" }

// enter makes each bash source the scripts, if they define functions. Whoever has a file for that already keeps it.
func (s *start) enter(e *environment) {
	if s != nil && len(s.Functions) > 0 {
		e.setDefault("BASH_ENV", s.file())
	}
}

// edit makes containers start with the scripts.
func (s *start) edit(c *v1.Config) {
	if s == nil {
		return
	}
	if len(c.Entrypoint)+len(c.Cmd) == 0 {
		c.Cmd = []string{s.Shell}
	}
	if len(c.Entrypoint) == 0 || c.Entrypoint[0] != s.program() { // the base's own may begin with it
		c.Entrypoint = append([]string{s.program()}, c.Entrypoint...)
	}
	if c.Labels == nil {
		c.Labels = make(map[string]string)
	}
	c.Labels[image.LabelStart] = s.program()
}

// startText takes the names of what is kept, those of the user's variables, the prefix, and lines that source the scripts.
const startText = `# Made by sconce, for what activation scripts of packages do anew for each user or shell. To be sourced by any shell.
if [ -n "${BASH_VERSION:-}" ]; then
    __sconce_keep='%[1]s'
    [ "${SCONCE_STARTED:-}" != '%[3]s' ] || __sconce_keep="$__sconce_keep %[2]s"
    for __sconce_name in $__sconce_keep; do
        eval "__sconce_set_$__sconce_name=\${$__sconce_name+set} __sconce_was_$__sconce_name=\${$__sconce_name-}"
    done
%[4]s
    for __sconce_name in $__sconce_keep; do
        eval "if [ -n \"\$__sconce_set_$__sconce_name\" ]; then export $__sconce_name=\"\$__sconce_was_$__sconce_name\"; else unset $__sconce_name; fi"
        unset "__sconce_set_$__sconce_name" "__sconce_was_$__sconce_name"
    done
    unset __sconce_keep __sconce_name
    export SCONCE_STARTED='%[3]s'
elif [ "${SCONCE_STARTED:-}" != '%[3]s' ]; then
    eval "$('%[3]s/etc/conda/start')"
    export SCONCE_STARTED='%[3]s'
fi
`

// programText takes the path of bash, the prefix and the names of the user's variables. With -p, bash does not look at $BASH_ENV.
// A quote is written as Apptainer's shell reads it, to which a backslash before one is a backslash.
const programText = `#!%[1]s -p
# Made by sconce. Becomes the command that it is given, once the scripts are sourced. Without one it tells another shell the variables.
. '%[2]s/etc/conda/start.sh' >&2
[ $# -eq 0 ] || exec "$@"
quote="'\"'\"'"
for name in %[3]s; do
    [ -z "${!name+set}" ] || printf "export %%s='%%s'\n" "$name" "${!name//\'/$quote}"
done
`

func (s *start) texts() (program, file string) {
	var kept []string
	for _, kv := range s.Variables {
		name, _, _ := strings.Cut(kv, "=")
		kept = append(kept, name)
	}
	var lines []string
	for _, script := range s.Scripts {
		lines = append(lines, fmt.Sprintf("    [ ! -r %[1]s ] || . %[1]s >&2", quote.Single(script)))
	}
	personal := strings.Join(shellNames(s.Personal), " ")
	program = fmt.Sprintf(programText, s.Shell, s.prefix, personal)
	return program, fmt.Sprintf(startText, strings.Join(shellNames(kept), " "), personal, s.prefix, strings.Join(lines, "\n"))
}

var shellName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)

// shellNames leaves out what no shell takes for the name of a variable.
func shellNames(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !shellName.MatchString(name) })
}

// layer makes the layer of the two files.
func (s *start) layer(ctx context.Context, st *store.Store, o layer.Options) (layer.Descriptor, error) {
	w, err := layer.NewWriter(ctx, st, o)
	if err != nil {
		return layer.Descriptor{}, err
	}
	defer w.Abort()
	for _, dir := range layer.Parents(strings.TrimPrefix(s.program(), "/")) {
		if err := w.Add(layer.Entry{Path: dir, Type: layer.Dir, Mode: 0o755}, nil); err != nil {
			return layer.Descriptor{}, err
		}
	}
	program, file := s.texts()
	for _, f := range []struct {
		path, text string
		mode       uint32
	}{{s.program(), program, 0o755}, {s.file(), file, 0o644}} {
		e := layer.Entry{Path: strings.TrimPrefix(f.path, "/"), Type: layer.Regular, Mode: f.mode, Size: int64(len(f.text))}
		if err := w.Add(e, func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(f.text)), nil }); err != nil {
			return layer.Descriptor{}, err
		}
	}
	return w.Close()
}
