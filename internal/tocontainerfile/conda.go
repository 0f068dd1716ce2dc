package tocontainerfile

import (
	_ "embed" // the script
	"fmt"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/conda"
	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
)

//go:embed conda.py
var condaScript string

// conda writes how the conda environment comes to be, with the Python packages p on top of it, which may be nil. uv brings rattler,
// and a Python where the base has none.
func (w *writer) conda(p *packages) error {
	c := w.lock.Conda
	if c == nil {
		return nil
	}
	if p != nil && len(p.compiled) > 0 {
		return fault.Hint(fmt.Errorf("%s: a Containerfile has no way to compile Python packages against a conda environment as the recipe does: %s", w.recipe.Path, p.compiled[0].Name),
			"build the image with `sconce build`, and begin the Containerfile with it")
	}
	all, variables := w.lock.CondaPackages, w.lock.Variables
	var lines []string
	for _, one := range all {
		lines = append(lines, one.URL+"#"+one.SHA256.Hex())
	}
	w.line("")
	w.line("# Conda packages, each with the hash that the lock has. rattler lays them down; link scripts of packages need a bash in the image.")
	w.line("RUN --mount=type=bind,from=%s,source=/uv,target=/usr/local/bin/uv \\", w.uv())
	w.line("    --mount=type=cache,target=/root/.cache \\")
	w.line("    UV_PYTHON_INSTALL_DIR=/root/.cache/uv/python uv run --quiet --no-project --python '>=3.10' --with py-rattler==%s \\", condalock.Rattler)
	w.line("    python - %s %s %s <<'PACKAGES'", c.Prefix, c.Platform, w.linkScripts())
	w.line("%sPACKAGES", strings.Replace(condaScript, "# THE PACKAGES\n", strings.Join(lines, "\n")+"\n", 1))
	w.line("# Scripts for activation (etc/conda/activate.d) are not sourced: what they set has to be said by ENV.")
	env := slices.Concat([]string{"PATH=" + c.Prefix + "/bin:$PATH"}, conda.Activation(c.Prefix, conda.RootOf(c.Prefix)), variables)
	for _, kv := range env {
		name, text, _ := strings.Cut(kv, "=")
		if name != "PATH" {
			text = value(text)
		}
		w.line("ENV %s=%s", name, text)
	}
	if p != nil {
		w.pythonOnConda(p)
	}
	return nil
}

// linkScripts says whether link scripts are run: rattler runs those of all packages or none.
func (w *writer) linkScripts() string {
	if only := w.recipe.Conda.LinkScripts; only != nil && len(*only) == 0 {
		return "without-link-scripts"
	}
	return "with-link-scripts"
}

// pythonOnConda installs Python packages into the conda environment, of which none are removed.
func (w *writer) pythonOnConda(p *packages) {
	at := path.Join(lockDir, path.Base(w.lock.Python.File))
	install := fmt.Sprintf("uv pip install%s --no-build --no-deps --python %s", w.bytecode(), quote.Word(w.lock.Python.Executable))
	commands := []string{"export UV_LINK_MODE=copy", install + " -r " + at}
	for _, name := range slices.Backward(w.recipe.Python.Prefer) { // what is installed last overwrites
		commands = append(commands, install+" --reinstall-package "+name+" -r "+at)
	}
	w.line("")
	w.line("# Python packages, each with the hash that the lock has")
	w.line("RUN --mount=type=bind,from=%s,source=/uv,target=/usr/local/bin/uv \\", w.uv())
	w.mountLock(p)
	w.line("    %s", strings.Join(commands, " && \\\n    "))
}
