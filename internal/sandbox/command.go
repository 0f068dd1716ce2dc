package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/searchpath"
)

// lookUp finds a command as execvp(3) does, within the root that this process has moved into.
func lookUp(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, checkExecutable(name)
	}
	search := searchpath.Of(env)
	var denied error
	for dir := range strings.SplitSeq(search, ":") {
		file := path.Join("/", dir, name)
		if dir == "" || dir == "." {
			file = "./" + name
		}
		err := checkExecutable(file)
		if err == nil {
			return file, nil
		}
		if codeOf(err) == codeNotExecutable {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", notFound(name, search, env)
}

// missingCommands are commands that people expect in every image, and what to do about them.
var missingCommands = map[string]string{
	"pip":        pipFix,
	"pip3":       pipFix,
	"uv":         pipFix,
	"conda":      "packages of conda belong under [conda] in the recipe",
	"mamba":      "packages of conda belong under [conda] in the recipe",
	"micromamba": "packages of conda belong under [conda] in the recipe",
	"nvidia-smi": "it is part of this machine's driver, which `sconce run --gpu` brings",
	"nvcc":       "it is in CUDA's \"devel\" images, and in the Python package nvidia-cuda-nvcc",
	"python":     "perhaps it is called python3 there; packages = [\"python3\"] under [base] or [system] brings one",
}

const pipFix = "Python packages belong under [python] in the recipe; \"pip\" among them brings pip itself"

// notFound says that no directory of search, a PATH, has a command.
func notFound(name, search string, env []string) *Error {
	e := &Error{What: fmt.Sprintf("command %q is not in the image", name), Code: codeNotFound, Fix: "it was looked for in " + search}
	i := slices.IndexFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "CONDA_PREFIX=/") })
	if i >= 0 && slices.Contains([]string{"conda", "mamba", "micromamba"}, name) {
		e.Fix = "the environment in " + strings.TrimPrefix(env[i], "CONDA_PREFIX=") + " is active without it. `sconce export conda IMAGE` lists its packages; " +
			"client = true under [conda], or cotainr's --conda-client, adds conda and mamba"
		return e
	}
	if fix := missingCommands[name]; fix != "" {
		e.Fix = fix
	} else if strings.HasPrefix(name, "-") {
		e.Fix = "flags of sconce go before IMAGE"
	}
	return e
}

func checkExecutable(file string) error {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return &Error{What: fmt.Sprintf("command %s is not in the image", file), Code: codeNotFound}
	case err != nil:
		e := failed(fmt.Sprintf("command %s", file), err)
		e.Code = codeNotExecutable
		return e
	case info.IsDir():
		return &Error{What: fmt.Sprintf("command %s is a directory", file), Code: codeNotExecutable}
	case info.Mode()&0o111 == 0:
		return &Error{What: fmt.Sprintf("command %s is not executable", file), Code: codeNotExecutable, Fix: "chmod +x it where the image is built"}
	}
	return nil
}

// notExecutable says why the kernel would not execute a file that is there.
func notExecutable(file string, err error) *Error {
	e := failed("execute "+file, err)
	e.Code = codeNotExecutable
	switch {
	case errors.Is(err, unix.ENOENT):
		e.Fix = "the file is there, but not the interpreter that its first line or its ELF header names: it was built for another image"
	case errors.Is(err, unix.ENOEXEC):
		e.Fix = "it is neither a script with a #! line nor a program for this machine's processor"
	case errors.Is(err, unix.E2BIG):
		e.Fix = "the arguments and the environment are too long together"
	}
	return e
}
