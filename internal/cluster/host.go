package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
)

// What a recipe, or a profile beside it, says of a job comes from whoever wrote it, and is read on the host of whoever submits it. So options
// of sbatch ask for resources there, and variables are for what runs in the image. Profiles of the user and the site may say more.

// requests are the options of sbatch that ask for resources or say when a job starts (Slurm 25.05, "sbatch"). The others name files and
// programs of the user, or change for whom and with which environment the job runs; so may options of plugins. A job's name is part of the names of files (%x).
var requests = []string{
	"account", "acctg-freq", "array", "begin", "cluster-constraint", "clusters", "comment", "constraint", "contiguous", "core-spec", "cores-per-socket", "cpu-freq",
	"cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution", "exclude", "exclusive", "extra", "extra-node-info", "gpu-bind",
	"gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "hold", "kill-on-invalid-dep",
	"licenses", "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nice", "no-kill", "no-requeue", "nodelist", "nodes",
	"ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "oom-kill-step", "overcommit", "oversubscribe", "partition", "power",
	"prefer", "priority", "qos", "requeue", "reservation", "resv-ports", "segment", "signal", "sockets-per-node", "spread-job", "stepmgr", "switches",
	"thread-spec", "threads-per-core", "time", "time-min", "tmp", "tres-bind", "tres-per-task", "use-min-nodes", "wait-all-nodes", "wckey",
}

// shortRequests are the short forms of some of these. Others stand in one word: "-Ho/file" is "-H -o /file".
const (
	shortRequests = "AaBbCcdGLMmNnpqStwx" // with a value
	bareRequests  = "HkOs"
)

// A value is one word, in quotes or without, that holds no comment; option is one option with its value, and no other behind it.
const value = `(?:[^\s'"\\#]+|'[^'\\]*'|"[^"\\]*")`

var option = lazyregexp.New(`^(?:--([a-z][a-z0-9-]*)(?:=` + value + `| +[^-\s]` + `[^\s'"\\#]*)?|-([A-Za-z])(?: *([^-\s'"\\#][^\s'"\\#]*))?)$`)

// CheckOption says no to an option of sbatch that is more than a request for resources.
func CheckOption(text string) error {
	m := option.Regexp().FindStringSubmatch(text)
	if m == nil {
		return fault.Hint(fmt.Errorf("%q is not one option of sbatch", text), `write each option as an element of its own: options = ["--exclusive", "--mem=0"]`)
	}
	long, short, value := m[1], m[2], m[3]
	switch {
	case long != "" && slices.Contains(requests, long),
		short != "" && strings.Contains(shortRequests, short),
		short != "" && strings.Contains(bareRequests, short) && value == "":
		return nil
	}
	name, _, _ := strings.Cut(text, "=")
	return fault.Hint(fmt.Errorf("%q does not ask for resources, and files of a repository may set no other option of sbatch", name),
		"if you want it, write it into a profile of your own: options under [slurm] of ~/.config/sconce/clusters/NAME.toml")
}

// Variables by which programs of the host, such as bash, srun and those that start containers, choose files and programs. They begin so,
// or are called so.
var (
	hostPrefixes = []string{
		"LD_", "BASH_", "SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SPANK_", "ENROOT_", "PYXIS_", "APPTAINER", "SINGULARITY", "PODMAN", "CONTAINERS_",
		"CONTAINER_", "DOCKER_", "UENV_", "SCONCE_", "PERL", "LUA_", "GCONV_", "GLIBC_", "GIT_",
		"PMIX_SERVER", "PMIX_SYSTEM", "PMI_FD", "FLUX_", "PALS_", // by them a sandbox in a job step finds directories to mount
		"FUSERMOUNT", "OPENSSL_", "SSL_CERT_", "KRB5", "GODEBUG", "SSH_AUTH_SOCK",
	}
	hostNames = []string{
		"PATH", "HOME", "PWD", "OLDPWD", "ENV", "IFS", "SHELL", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "LOCPATH", "NLSPATH", "HOSTALIASES",
		"XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_RUNTIME_DIR", "XDG_STATE_HOME",
		"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONWARNINGS", "PYTHONBREAKPOINT", "PYTHONEXECUTABLE",
		"PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX",
	}
)

// forTests begins the names of variables that only the kit of tests reads, in the image.
const forTests = "SCONCE_TEST_"

// CheckVariable says no to a variable that means something to the programs of the host which start the image: it is set there, too.
func CheckVariable(name string) error {
	begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	if begins(forTests) || !slices.Contains(hostNames, name) && !slices.ContainsFunc(hostPrefixes, begins) {
		return nil
	}
	return fault.Hint(fmt.Errorf("%s would also be read by the programs of the host that start the image", name),
		fmt.Sprintf("set it for the image alone: under [image] env, or in the command, as in \"env %s=… python train.py\"", name))
}

// checkBrought says what a profile that neither the user nor the site keeps may not say.
func (p Profile) checkBrought() error {
	for _, text := range p.Slurm.Options {
		if err := CheckOption(text); err != nil {
			return fmt.Errorf("slurm.options: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		if err := CheckVariable(name); err != nil {
			return fmt.Errorf("env: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.EnvUenv)) {
		if err := CheckVariable(name); err != nil {
			return fmt.Errorf("%s: %w", envUenv, err)
		}
	}
	return nil
}
