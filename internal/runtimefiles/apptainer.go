package runtimefiles

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// The files that Apptainer reads of a root file system.
const (
	metaDir       = ".singularity.d"
	runAction     = metaDir + "/actions/run"
	dockerEnvPath = metaDir + "/env/10-docker2singularity.sh"
	userEnvPath   = metaDir + "/env/90-environment.sh"
	startEnvPath  = metaDir + "/env/92-start.sh"
	runscriptPath = metaDir + "/runscript"
	startPath     = metaDir + "/startscript"
	labelsPath    = metaDir + "/labels.json"
	deffilePath   = metaDir + "/Singularity"
	historyDir    = metaDir + "/bootstrap_history"
)

// baseDirs are the directories that a root file system of Apptainer has, most of them to mount something over.
var baseDirs = []struct {
	path string
	mode uint32
}{
	{metaDir, 0o755},
	{metaDir + "/libs", 0o755},
	{metaDir + "/actions", 0o755},
	{metaDir + "/env", 0o755},
	{"dev", 0o755},
	{"proc", 0o755},
	{"root", 0o755},
	{"var/tmp", 0o1777},
	{"tmp", 0o1777},
	{"etc", 0o755},
	{"sys", 0o755},
	{"home", 0o755},
}

// apptainerLinks are the names that versions before 2.3 used.
var apptainerLinks = []struct{ path, to string }{
	{"singularity", runscriptPath},
	{".run", runAction},
	{".exec", metaDir + "/actions/exec"},
	{".test", metaDir + "/actions/test"},
	{".shell", metaDir + "/actions/shell"},
	{"environment", userEnvPath},
}

func apptainerFiles() []file {
	native := func(f *facts) bool { return f.fromApptainer }
	script := func(path, text string) file {
		return file{path: metaDir + "/" + path, mode: 0o755, text: fixed("#!/bin/sh\n" + text), kept: native}
	}
	return []file{
		{path: "etc/hosts", mode: 0o644, text: fixed(""), kept: native},
		{path: "etc/resolv.conf", mode: 0o644, text: fixed(""), kept: native},
		script("actions/exec", readEnv+actionExec),
		script("actions/run", readEnv+actionRun),
		script("actions/shell", readEnv+actionShell),
		script("actions/start", actionStart+readEnv+actionStartScript),
		script("actions/test", readEnv+actionTest),
		script("env/01-base.sh", envBase),
		{path: dockerEnvPath, mode: 0o755, text: dockerEnv, kept: func(f *facts) bool { return f.ownEnv }},
		script("env/90-environment.sh", envUser),
		{path: startEnvPath, mode: 0o755, text: startEnv, absent: func(f *facts) bool { return f.start == "" }},
		script("env/95-apps.sh", envApps),
		script("env/99-base.sh", envLibs),
		script("env/99-runtimevars.sh", envPath),
		{path: runscriptPath, mode: 0o755, text: runscript, kept: native},
		script("startscript", startScript),
		{path: labelsPath, mode: 0o644, text: labelsJSON},
		{path: deffilePath, mode: 0o644, text: func(f *facts) (string, error) { return Deffile(f.image), nil }},
	}
}

// Apptainer today has these actions built in, and reads the scripts of env in a shell of its own. Old versions, and people
// who run the image with something else, start the scripts of actions. All of them are for any POSIX shell.
const (
	readEnv = `
for sconce_env in /.singularity.d/env/*.sh; do
    [ ! -f "$sconce_env" ] || . "$sconce_env"
done
unset sconce_env
`
	actionExec = `
exec "$@"
`
	actionRun = `
if [ -n "${SINGULARITY_APPNAME:-}" ]; then
    exec "/scif/apps/$SINGULARITY_APPNAME/scif/runscript" "$@"
fi
if [ -x /.singularity.d/runscript ]; then
    exec /.singularity.d/runscript "$@"
fi
exec /bin/sh "$@"
`
	actionShell = `
if [ -n "${SINGULARITY_SHELL:-}" ] && [ -x "$SINGULARITY_SHELL" ]; then
    exec "$SINGULARITY_SHELL" "$@"
fi
if [ -x /bin/bash ]; then
    export SHELL=/bin/bash
    exec /bin/bash --norc "$@"
fi
export SHELL=/bin/sh
exec /bin/sh "$@"
`
	// The instance's first process waits for this signal.
	actionStart = `
kill -CONT 1
`
	actionStartScript = `
if [ -x /.singularity.d/startscript ]; then
    exec /.singularity.d/startscript "$@"
fi
`
	actionTest = `
if [ -n "${SINGULARITY_APPNAME:-}" ]; then
    exec "/scif/apps/$SINGULARITY_APPNAME/scif/test" "$@"
fi
if [ -x /.singularity.d/test ]; then
    exec /.singularity.d/test "$@"
fi
echo "This image has no test." >&2
`
	envBase = `# The scripts of this directory are read in the order of their names when a container starts.
`
	envUser = `# The place for an environment of your own: it is read after the image's.
`
	envApps = `# SCIF: an app of the image, chosen with --app.
if [ -n "${SINGULARITY_APPNAME:-}" ]; then
    SCIF_APPS=/scif/apps
    SCIF_APPROOT=$SCIF_APPS/$SINGULARITY_APPNAME
    if [ ! -d "$SCIF_APPROOT" ]; then
        echo "This image has no app $SINGULARITY_APPNAME." >&2
        exit 1
    fi
    export SCIF_APPS SCIF_APPROOT SINGULARITY_APPNAME
    PATH=$SCIF_APPROOT:$PATH
    if [ -d "$SCIF_APPROOT/bin" ]; then
        PATH=$SCIF_APPROOT/bin:$PATH
    fi
    export PATH
    if [ -d "$SCIF_APPROOT/lib" ]; then
        export LD_LIBRARY_PATH="$SCIF_APPROOT/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
    for sconce_app in 01-base 90-environment; do
        if [ -f "$SCIF_APPROOT/scif/env/$sconce_app.sh" ]; then
            . "$SCIF_APPROOT/scif/env/$sconce_app.sh"
        fi
    done
    unset sconce_app
fi
`
	envLibs = `# Apptainer puts the host's libraries for GPUs there. The image's own come first.
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs"
export PS1="${PS1:-Apptainer> }"
`
	envPath = `# What the user asked Apptainer to put in front of PATH, after it, or in its place.
PATH=${SING_USER_DEFINED_PREPEND_PATH:+$SING_USER_DEFINED_PREPEND_PATH:}${PATH:-}
PATH=$PATH${SING_USER_DEFINED_APPEND_PATH:+:$SING_USER_DEFINED_APPEND_PATH}
export PATH="${SING_USER_DEFINED_PATH:-$PATH}"
unset SING_USER_DEFINED_PREPEND_PATH SING_USER_DEFINED_APPEND_PATH SING_USER_DEFINED_PATH
`
	startScript = `# Started with an instance of the image. An OCI image has no such thing.
`
)

// startEnv sources what the image wants done when a container starts. An entrypoint is not part of all that Apptainer runs.
func startEnv(f *facts) (string, error) { return "#!/bin/sh\n" + sourceStart(f.start), nil }

// sourceStart is the line that does so in a script.
func sourceStart(start string) string {
	if start == "" {
		return ""
	}
	file := single(start + ".sh")
	return fmt.Sprintf("[ ! -r %[1]s ] || . %[1]s\n", file)
}

// ownedByShell are variables that Apptainer's shell, or bash, lets nobody set: trying would end the script.
var ownedByShell = []string{"BASHOPTS", "BASH_VERSINFO", "EUID", "GID", "IFS", "OPTIND", "PPID", "PWD", "SHELLOPTS", "UID"}

// dockerEnv exports the image's environment in the words Apptainer uses, so that tools which look for them find them. A value
// that is there already wins, but for PATH's. (Apptainer clears the host's environment before, so the image's counts; what is
// given with --env comes after.) The pair of quotes within the other is no mistake.
func dockerEnv(f *facts) (string, error) {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n")
	for _, v := range f.env {
		value := escapeDouble.Replace(v.value)
		switch {
		case slices.Contains(ownedByShell, v.name):
		case v.bare:
			fmt.Fprintf(&b, "export %s=\"${%s:-}\"\n", v.name, v.name)
		case v.name == "PATH":
			fmt.Fprintf(&b, "export PATH=\"%s\"\n", value)
		case strings.ContainsAny(v.value, outsideQuotes):
			fmt.Fprintf(&b, "[ -n \"${%s:-}\" ] || %s=%s\nexport %s\n", v.name, v.name, single(v.value), v.name)
		default:
			fmt.Fprintf(&b, "export %s=\"${%s:-\"%s\"}\"\n", v.name, v.name, value)
		}
	}
	return b.String(), nil
}

// outsideQuotes is what bash, of all the shells, takes for more than text between the inner quotes: {a,b}, <(command). So
// values with them, JSON most of all, are written in another way.
const outsideQuotes = "{}()<>"

func runscript(f *facts) (string, error) {
	entrypoint, cmd := f.command(f.fromApptainer)
	setCmd := ":"
	if len(cmd) > 0 {
		setCmd = "set -- " + singles(cmd...)
	}
	command := strings.TrimLeft(singles(entrypoint...)+` "$@"`, " ")
	return fmt.Sprintf(runscriptText, single(doubles(entrypoint)), single(doubles(cmd)), setCmd, command), nil
}

// runscriptText does what Apptainer does for an OCI image: unless told not to, it has a shell evaluate the arguments once
// more. Apptainer knows such a script by the line with eval, as it stands here, and then runs it in its own shell, so that
// the image needs none. Without the two dashes an argument like -e would change how that shell works.
const runscriptText = `#!/bin/sh
# Starts the entrypoint and the command of the OCI image. Made by sconce.
OCI_ENTRYPOINT=%s
OCI_CMD=%s

if [ -n "${APPTAINER_NO_EVAL:-}${SINGULARITY_NO_EVAL:-}" ]; then
    # Every argument reaches the program as it was given.
    if [ $# -eq 0 ]; then
        %s
    fi
    exec %s
fi

SINGULARITY_OCI_RUN="-- ${OCI_ENTRYPOINT}"
if [ $# -eq 0 ]; then
    SINGULARITY_OCI_RUN="${SINGULARITY_OCI_RUN} ${OCI_CMD}"
fi
for sconce_arg in "$@"; do
    SINGULARITY_OCI_RUN="${SINGULARITY_OCI_RUN} \"${sconce_arg}\""
done
eval "set ${SINGULARITY_OCI_RUN}"
exec "$@"
`

// maxScript is the largest script or label file that is read back, in bytes. Real ones have a few kilobytes.
const maxScript = 1 << 20

// keepHistory moves the definition file that an earlier build of Apptainer left to where Apptainer keeps those. Ours, which
// only names an image, is not worth it.
func keepHistory(b *builder, f *facts) error {
	if hasFile(b.tree, recordPath) || !hasFile(b.tree, deffilePath) {
		return nil
	}
	old, err := b.tree.ReadFile(deffilePath, maxScript)
	if err != nil {
		return err
	}
	if string(old) == Deffile(f.image) {
		return nil
	}
	earlier, err := b.tree.ReadDir(historyDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	number := len(earlier)
	taken := func(name string) bool {
		_, err := b.tree.Lstat(historyDir + "/" + name)
		return err == nil
	}
	for taken("Apptainer" + strconv.Itoa(number)) {
		number++
	}
	return b.file(historyDir+"/Apptainer"+strconv.Itoa(number), 0o644, old)
}
