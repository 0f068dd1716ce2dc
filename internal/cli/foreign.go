package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/quote"
)

// foreignCommands are commands of docker, podman, apptainer and enroot that people type out of habit, and what does here what
// they do there.
var foreignCommands = map[string]string{
	"attach":     "nothing runs in the background here: `sconce run` keeps the terminal, `sconce logs` shows a job's output",
	"bootstrap":  "a base of a distribution's packages is [base] bootstrap in a recipe: `sconce init` writes one",
	"commit":     "a container is gone when it ends; put the change into the recipe as a [[step]], and `sconce build` adds a layer",
	"compose":    "sconce builds images and runs one command in one; services are for the cluster's own tools",
	"container":  "nothing runs in the background here: `sconce run IMAGE` runs a command and keeps the terminal, `sconce jobs` lists jobs on the cluster",
	"containers": "nothing runs in the background here; `sconce jobs` lists jobs on the cluster",
	"cp":         "`sconce copy IMAGE dir:DIR` unpacks an image; files get into one by `copy` in a [[step]], or are bound with `sconce run -B SRC:DST`",
	"create":     "there are no containers to be created first: `sconce run IMAGE`",
	"def":        "`sconce build FILE.def` builds a definition file; `sconce init` writes a recipe (sconce.toml), which does more",
	"delete":     "`sconce images rm NAME:TAG` removes an image's name from the store, `sconce pipeline gc` what nobody needs from staging repositories",
	"diff":       "`sconce plan --why` says what changed and what is made again; `sconce inspect` shows an image's layers",
	"events":     "nothing runs in the background here; `sconce jobs` lists jobs on the cluster, `sconce logs` shows what one prints",
	"exec":       "there is no container that runs: `sconce run IMAGE -- COMMAND`, or `sconce shell IMAGE`",
	"history":    "`sconce inspect IMAGE` lists the layers, and what made them",
	"image":      "`sconce images`, `sconce images rm`, `sconce inspect IMAGE`, `sconce pull`, `sconce push`",
	"import":     "`sconce pull FILE --name NAME:TAG` takes an image into the store; `sconce copy docker://IMAGE FILE.sqsh` makes what enroot imports",
	"instance":   "nothing runs in the background here: `sconce run IMAGE -- COMMAND`",
	"key":        "keys are those of openssl or cosign: `sconce push --sign FILE` signs with one, `sconce verify --key FILE` asks who has",
	"kill":       "nothing runs in the background here; `sconce cancel` ends a job on the cluster",
	"list":       "`sconce images` lists images, `sconce packages` what has to be compiled, `sconce jobs` jobs",
	"load":       "`sconce pull docker-archive:FILE --name NAME:TAG`",
	"ls":         "`sconce images` lists images, `sconce packages` what has to be compiled, `sconce jobs` jobs",
	"machine":    "there is no virtual machine and no daemon: `sconce info` tells what this machine can do",
	"manifest":   "`sconce inspect --json IMAGE`",
	"overlay":    "`sconce run` gives every command a writable layer of its own; --read-only takes it away",
	"pause":      "nothing runs in the background here; `sconce cancel` ends a job on the cluster",
	"pod":        "sconce runs one command in one image; services are for the cluster's own tools",
	"port":       "a command in an image has the host's network, so that its ports are reached as they are",
	"prune":      "`sconce cache prune` removes what has not been used for a while, with --all what no name needs",
	"ps":         "nothing runs in the background here; `sconce jobs` lists jobs on the cluster",
	"remote":     "`sconce login REGISTRY`",
	"rename":     "`sconce pull IMAGE --name NAME:TAG` gives an image of the store a second name, `sconce images rm NAME:TAG` takes the first one away",
	"rm":         "`sconce images rm NAME:TAG` removes an image's name; containers are gone when they end",
	"rmi":        "`sconce images rm NAME:TAG`",
	"save":       "`sconce copy IMAGE docker-archive:FILE.tar`, or oci-archive:FILE.tar",
	"search":     "registries differ in that: look at their web pages, then `sconce inspect docker://IMAGE`",
	"sign":       "`sconce push --sign FILE` signs what sconce knows of an image, `sconce test --sign FILE` that it was tested; `sconce verify` asks who has",
	"start":      "`sconce run IMAGE -- COMMAND`; on a cluster `sconce submit`",
	"stats":      "nothing runs in the background here; what `sconce run` runs is a process of yours: top, or of a job sstat",
	"stop":       "nothing runs in the background here; `sconce cancel` ends a job on the cluster",
	"system":     "`sconce info` is about this machine, `sconce cache info` about disk space, `sconce cache prune` frees it",
	"tag":        "`sconce pull IMAGE --name NAME:TAG` gives an image of the store a second name",
	"top":        "nothing runs in the background here; `sconce jobs` lists jobs on the cluster",
	"unpause":    "nothing runs in the background here; `sconce cancel` ends a job on the cluster",
	"uninstall":  "what sconce made is in its store: `sconce cache info` says where, and it can be removed as any directory",
	"volume":     "directories of the host are bound: `sconce run -B SRC:DST IMAGE`",
	"wait":       "`sconce run` ends with its command, and `sconce submit --wait` with the job",
	"network":    "a command in an image has the host's network; `sconce run --no-network` takes it away",
	"buildx":     "`sconce build`",
	"du":         "`sconce cache info`",
}

// foreignFlags are flags of their `run` and `exec`, without dashes.
var foreignFlags = map[string]string{
	"v":                `mounts are bound: -B SRC:DST[:ro]`,
	"volume":           `mounts are bound: -B SRC:DST[:ro]`,
	"mount":            `mounts are bound: -B SRC:DST[:ro]`,
	"container-mounts": `mounts are bound: -B SRC:DST[:ro]`,
	"gpus":             "--gpu, or --gpu=0,1",
	"nv":               "--gpu brings the driver's libraries and all GPUs",
	"nvccli":           "--gpu brings the driver's libraries and all GPUs",
	"rocm":             "AMD's GPUs are reached by their devices: -B /dev/kfd -B /dev/dri",
	"device":           "GPUs come with --gpu; other devices are bound: -B /dev/NAME",
	"p":                "the command has the host's network, so that its ports are reached as they are",
	"publish":          "the command has the host's network, so that its ports are reached as they are",
	"network":          "the command has the host's network; --no-network takes it away",
	"net":              "the command has the host's network; --no-network takes it away",
	"d":                "nothing runs in the background here; on a cluster `sconce submit`",
	"detach":           "nothing runs in the background here; on a cluster `sconce submit`",
	"name":             "a container has no name: it is gone when the command ends",
	"fakeroot":         "--user root, which outside of job steps is so anyway",
	"root":             "--user root, which outside of job steps is so anyway",
	"userns":           "--user self runs the command under your own name, --user root as root",
	"privileged":       "no command gets more rights than you have; devices are bound: -B /dev/NAME",
	"cap-add":          "no command gets more rights than you have",
	"security-opt":     "no command gets more rights than you have",
	"shm-size":         "/dev/shm may take half of the memory; tasks of a job share the host's",
	"ipc":              "tasks of a job share the host's /dev/shm and IPC by themselves: see --in-job",
	"pid":              "the command has processes of its own; tasks of a job share the host's: see --in-job",
	"pull":             "an image of the store is run as it is: `sconce pull docker://HOST/NAME` brings what the registry has by now",
	"label":            "a running command has no labels; those of an image are [image] labels in its recipe",
	"l":                "a running command has no labels; those of an image are [image] labels in its recipe",
	"add-host":         "names are resolved as on the host; a file with others is bound: -B FILE:/etc/hosts",
	"dns":              "names are resolved as on the host; a file with other servers is bound: -B FILE:/etc/resolv.conf",
	"ulimit":           "limits are those of your shell: `ulimit` before sconce",
	"memory":           "limits are those of your job: srun --mem",
	"m":                "limits are those of your job: srun --mem",
	"cpus":             "limits are those of your job: srun --cpus-per-task",
	"pwd":              "-w DIR",
	"cwd":              "-w DIR",
	"rw":               "the command may write anywhere; what it writes is gone when it ends",
	"writable":         "the command may write anywhere; what it writes is gone when it ends",
	"writable-tmpfs":   "the command may write anywhere; what it writes is gone when it ends",
	"containall":       "the command sees nothing of the host but what is bound",
	"contain":          "the command sees nothing of the host but what is bound",
	"cleanenv":         "of your environment the command sees only what --env names",
	"no-home":          "the command does not see your home: -B $HOME binds it",
	"home":             "-B DIR:/root binds a directory as the home of root, -B DIR:$HOME as your own",
	"tmpfs":            "the command may write anywhere; --read-only leaves it /tmp, in memory",
	"env-host":         "--env NAME passes a variable on",
	"restart":          "nothing runs in the background here",
	"init":             "sconce reaps processes that were left, and passes signals on",
}

// addSilentFlags takes flags that ask for what happens anyway: the terminal is the command's, and nothing is left of it.
func addSilentFlags(f *pflag.FlagSet) {
	var ignored bool
	f.BoolVarP(&ignored, "interactive", "i", false, "")
	f.BoolVarP(&ignored, "tty", "t", false, "")
	f.BoolVar(&ignored, "rm", false, "")
	for _, name := range []string{"interactive", "tty", "rm"} {
		if err := f.MarkHidden(name); err != nil {
			panic(err) // there is no such flag: a mistake in this function
		}
	}
}

// unknownFlag finds in pflag's words the flag that there is not.
var unknownFlag = lazyregexp.New(`^unknown (?:shorthand flag: '(.)'|flag: --([^=]+))`)

// badEntrypoint finds in pflag's words `--entrypoint=PROGRAM`, which is docker's.
var badEntrypoint = lazyregexp.New(`^invalid argument "(.*)" for "--entrypoint" flag`)

// flagError adds to an error about flags what helps. Behind a command that there is not, it is the command that is wrong: `exec -it`.
func flagError(cmd *cobra.Command, err error) error {
	if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
		return helpOrUnknown(cmd, words)
	}
	if m := badEntrypoint.FindStringSubmatch(err.Error()); m != nil {
		return entrypointTakesNone(m[1], "IMAGE")
	}
	hint := fmt.Sprintf("`%s --help` lists the flags", cmd.CommandPath())
	if m := unknownFlag.FindStringSubmatch(err.Error()); m != nil && (cmd.Name() == "run" || cmd.Name() == "shell") {
		if known, ok := foreignFlags[m[1]+m[2]]; ok {
			hint = known
		}
	}
	return fault.Usage(fault.Hint(err, hint))
}

// foreignMount notices `-v SRC:DST IMAGE`: -v is --verbose, so that the mount stands where the image belongs.
func foreignMount(verbose bool, image string) error {
	if !verbose || !strings.Contains(image, ":") || !strings.HasPrefix(image, "/") && !strings.HasPrefix(image, "./") && !strings.HasPrefix(image, "~") {
		return nil
	}
	return fault.Usage(fault.Hint(fmt.Errorf("%q stands where the image belongs: -v is --verbose", image), "mounts are bound: -B "+image))
}

// foreignEntrypoint notices `--entrypoint PROGRAM IMAGE` where there is no image to be run: the flag takes no value here.
func foreignEntrypoint(o engine.RunOptions, err error) error {
	if err == nil || !o.Entrypoint || len(o.Command) == 0 {
		return err
	}
	path := filepath.IsAbs(o.Image) && filepath.Ext(o.Image) == "" || strings.HasSuffix(o.Image, ".sh")
	if missing := new(engine.NotInStoreError); o.Image == "" || path || errors.As(err, &missing) {
		return entrypointTakesNone(o.Image, o.Command[0])
	}
	return err
}

// entrypointTakesNone answers who wants a program in place of an image's entrypoint.
func entrypointTakesNone(program, image string) error {
	if program == "" {
		program = "COMMAND"
	}
	return fault.Usage(fault.Hint(errors.New("--entrypoint takes no program: it puts the image's own entrypoint before COMMAND"),
		fmt.Sprintf("a command runs without the image's entrypoint anyway: `sconce run %s -- %s`", quote.Word(image), quote.Word(program))))
}
