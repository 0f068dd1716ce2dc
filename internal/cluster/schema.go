package cluster

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/tomltext"
)

// Key describes one key of a profile. The keys are the one schema of profiles: files are checked and written by it, profiles put
// over each other, and the keys of a recipe's [target], the JSON Schema and the tables of the documentation made of it.
type Key struct {
	Name    string // as files have it; the key of a table has that in front: "slurm.partition"
	Doc     string // what it says, in sentences
	Example string // a TOML value

	// What a string must look like: of the value itself, or of each element of a list. Every expression is anchored and means the
	// same in Go and in ECMA-262, which JSON Schema uses.
	Form     *lazyregexp.Regexp
	FormName string // what Form means, for one value: `a version of glibc, such as "2.31"`
	Enum     []string
	Min, Max int // of a number

	NameForm     *lazyregexp.Regexp // of the keys that the user chooses, in a table of those
	NameFormName string

	Flag string // what the flag of this name says, without the values of Enum; "" for a key that has no flag

	field func(p *Profile) any // where a profile has it: *string, *int, **bool, *[]string or *map[string]string
}

// HookMount is the way by which pyxis mounts a squashfs file besides the image: a user's own hook of enroot.
const HookMount = "hook"

// The values that keys of a fixed choice may have.
var (
	Platforms = []string{"linux/amd64", "linux/arm64"}
	Runtimes  = []Runtime{ContainerEngine, Pyxis, Enroot, Apptainer, Podman, Uenv}
	Fabrics   = []Fabric{Slingshot, InfiniBand, RoCE, EFA, Ethernet}
	MPIs      = []string{"mpich", "openmpi"}
	PMIs      = []string{"pmix", "pmi2", "cray"}
	// Starters are what jobs can be started with.
	Starters = []string{string(ContainerEngine), Sarus, string(Pyxis), string(Apptainer), PodmanHPC, string(Uenv), Sconce}
	// GPURequests are the ways to ask for GPUs: by --gpus-per-node, by --gres=gpu:N, or not at all, where whole nodes are given out.
	GPURequests = []string{"gpus-per-node", "gres", "none"}
	// SqshMounts are the ways to mount a squashfs file: a flag in an EDF, Apptainer's bind, uenv's list, a user's hook of enroot, or none.
	SqshMounts = []string{"edf", "bind", "uenv", HookMount, "none"}
)

// CPULevels is the number of x86-64 levels, of which 1 is what every processor has (psABI, "Micro-Architecture Levels").
const CPULevels = 4

// The expressions of a path in a profile.
const (
	pathVariable = `\$\{[A-Za-z_][A-Za-z0-9_]*\}`
	pathBegins   = `(/|` + pathVariable + `)`
	inPath       = `([A-Za-z0-9_@%+=,./~-]|[^\x00-\x7f]|` + pathVariable + `)*`
)

var (
	formText    = lazyregexp.New(`^[^\r\n\t]+$`)
	formGPU     = lazyregexp.New(`^[0-9]{1,2}\.[0-9]$`) // as TORCH_CUDA_ARCH_LIST has it, without names and PTX
	formDriver  = lazyregexp.New(`^[0-9]{3,4}(\.[0-9]+){0,2}$`)
	formGlibc   = lazyregexp.New(`^2\.[0-9]{1,2}$`)
	formLibrary = lazyregexp.New(`^[^/]+$`)
	formDir     = lazyregexp.New(`^/`)
	// formPath is an absolute path, or one that begins with a variable. Of what a shell reads as its own it may hold variables in braces alone.
	formPath     = lazyregexp.New(`^` + pathBegins + inPath + `$`)
	formMount    = lazyregexp.New(`^` + pathBegins + inPath + `(:/` + inPath + `(:ro)?)?$`)
	formWord     = lazyregexp.New(`^[^\s'"\x60\\-][^\s'"\x60\\]*$`)
	formVersion  = lazyregexp.New(`^[0-9]{2}\.[0-9]{2}(\.[0-9]+)?$`)
	formDuration = lazyregexp.New(`^[0-9]+(\.[0-9]+)?(s|m|h|d|w|y)$`)
	formOption   = lazyregexp.New(`^--?[A-Za-z][^\r\n\t]*$`)
	formStripe   = lazyregexp.New(`^-[A-Za-z0-9 ._-]+$`)
	formVariable = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
	formSetting  = lazyregexp.New(`^[A-Za-z0-9_.-]+$`)
	formValue    = lazyregexp.New(`^[^\r\n]*$`)
	// formMeasured is what a test measures, formReference how a number is written: see package imagetest.
	formMeasured  = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]*(@[1-9][0-9]*)?\.[A-Za-z][A-Za-z0-9._@/-]*$`)
	formReference = lazyregexp.New(`^[0-9]+(\.[0-9]+)?(\s[^\s±%]+)?$`)
)

const formPathName = `an absolute path or one that begins with a variable, such as "${SCRATCH}/images"`

// envUenv is the one table within a table that the user's own keys stand in.
const envUenv = "env.uenv"

var keys = []Key{
	{
		Name: "name", Doc: "What the cluster is called.", Example: `"clariden"`,
		Form: formText, FormName: "a name in one line",
		field: func(p *Profile) any { return &p.Name },
	},
	{
		Name: "description", Doc: "What it is, in a line.", Example: `"Our cluster: 8 H100 a node"`,
		Form: formText, FormName: "a text in one line",
		field: func(p *Profile) any { return &p.Description },
	},
	{
		Name: "base", Doc: "The profile that this one starts from, by its name or file: what is not said here is as there, and tables are merged key by key.", Example: `"clariden"`,
		Form: formText, FormName: "the name or the file of a profile",
		field: func(p *Profile) any { return &p.Base },
	},
	{
		Name: "platform", Doc: "The operating system and processor.", Example: `"linux/arm64"`, Enum: Platforms,
		Flag:  "`OS/ARCH` of the machines, which is also chosen where there are several",
		field: func(p *Profile) any { return &p.Platform },
	},
	{
		Name: "cpu-level", Doc: "The x86-64 level of the oldest node's processor.", Example: `3`, Min: 1, Max: CPULevels,
		Flag:  "x86-64 level `N` of the oldest processor, 1 to 4",
		field: func(p *Profile) any { return &p.CPULevel },
	},
	{
		Name: "gpu", Doc: "CUDA compute capabilities of the GPUs.", Example: `["9.0"]`,
		Form: formGPU, FormName: `a compute capability, such as "8.0" or "9.0"`,
		Flag:  "compute `CAPABILITY` of the GPUs, such as 9.0 (repeatable)",
		field: func(p *Profile) any { return &p.GPU },
	},
	{
		Name: "driver", Doc: "The version of NVIDIA's driver, the oldest on any node.", Example: `"550.54.15"`,
		Form: formDriver, FormName: `a version of NVIDIA's driver, such as "550.54.15"`,
		Flag:  "`VERSION` of NVIDIA's driver, such as 550.54",
		field: func(p *Profile) any { return &p.Driver },
	},
	{
		Name: "glibc", Doc: "The version of the host's glibc, for which the libraries were built that the runtime mounts into containers.", Example: `"2.31"`,
		Form: formGlibc, FormName: `a version of glibc, such as "2.31"`,
		Flag:  "`VERSION` of the host's glibc, such as 2.31",
		field: func(p *Profile) any { return &p.Glibc },
	},
	{
		Name: "runtime",
		Doc: "What starts the container: `container-engine` is that of CSCS, `apptainer` stands for Singularity too, `podman` for podman-hpc " +
			"and Docker.",
		Example: `"apptainer"`, Enum: names(Runtimes),
		Flag:  "the `RUNTIME` that starts the container",
		field: func(p *Profile) any { return (*string)(&p.Runtime) },
	},
	{
		Name: "fabric", Doc: "The network between nodes.", Example: `"slingshot"`, Enum: names(Fabrics),
		Flag:  "the `FABRIC` between nodes",
		field: func(p *Profile) any { return (*string)(&p.Fabric) },
	},
	{
		Name: "mpi", Doc: "The family of the host's MPI, where the runtime puts it in place of the image's. Cray MPICH is `mpich`.", Example: `"mpich"`, Enum: MPIs,
		Flag:  "the `FAMILY` of the host's MPI",
		field: func(p *Profile) any { return &p.MPI },
	},
	{
		Name: "pmi", Doc: "What Slurm's `srun` speaks with the processes that it starts.", Example: `"pmix"`, Enum: PMIs,
		Flag:  "the `PROTOCOL` that srun speaks",
		field: func(p *Profile) any { return &p.PMI },
	},
	{
		Name: "injects", Doc: "Libraries of the host that the runtime mounts into containers.", Example: `["libcuda.so.1", "libnvidia-ml.so.1"]`,
		Form: formLibrary, FormName: `the name of a library, such as "libcuda.so.1"`,
		field: func(p *Profile) any { return &p.Injects },
	},
	{
		Name: "hides", Doc: "Directories of the image that the runtime covers, besides those that it always does.", Example: `["/scratch"]`,
		Form: formDir, FormName: "an absolute path",
		field: func(p *Profile) any { return &p.Hides },
	},
	{
		Name: "nccl-net", Doc: "The NCCL network plugin that the runtime brings, where it does.", Example: `"ofi"`,
		Form: formText, FormName: "the name of a plugin",
		field: func(p *Profile) any { return &p.NCCLNet },
	},
	{
		Name: "runtimes", Doc: "What jobs can be started with, the usual one first. `sarus` is the dialect of the Sarus Suite, `sconce` is `sconce run`.",
		Example: `["container-engine", "uenv"]`, Enum: Starters,
		field: func(p *Profile) any { return &p.Starts },
	},
	{
		Name: "slurm.version", Doc: "The version of Slurm.", Example: `"24.05"`, Form: formVersion, FormName: `a version of Slurm, such as "24.05"`,
		field: func(p *Profile) any { return &p.Slurm.Version },
	},
	{
		Name: "slurm.account", Doc: "The account that jobs are charged to.", Example: `"g123"`, Form: formWord, FormName: "one word",
		field: func(p *Profile) any { return &p.Slurm.Account },
	},
	{
		Name: "slurm.partition", Doc: "The partition that jobs go to.", Example: `"normal"`, Form: formWord, FormName: "one word",
		field: func(p *Profile) any { return &p.Slurm.Partition },
	},
	{
		Name: "slurm.qos", Doc: "The quality of service that jobs ask for.", Example: `"regular"`, Form: formWord, FormName: "one word",
		field: func(p *Profile) any { return &p.Slurm.QOS },
	},
	{
		Name: "slurm.constraint", Doc: "Features that the nodes must have, as `sbatch --constraint` takes them.", Example: `"gpu&hbm80g"`, Form: formWord, FormName: "one word",
		field: func(p *Profile) any { return &p.Slurm.Constraint },
	},
	{
		Name: "slurm.gpus-per-node", Doc: "How many GPUs a node has.", Example: `4`, Min: 1, Max: 64,
		field: func(p *Profile) any { return &p.Slurm.GPUsPerNode },
	},
	{
		Name: "slurm.cpus-per-node", Doc: "How many CPUs a node has, as Slurm counts them: hardware threads where it does.", Example: `288`, Min: 1, Max: 4096,
		field: func(p *Profile) any { return &p.Slurm.CPUsPerNode },
	},
	{
		Name: "slurm.gpu-request", Doc: "How a job asks for GPUs: by `--gpus-per-node`, by `--gres`, or not at all where nodes are given out whole.", Example: `"gres"`, Enum: GPURequests,
		field: func(p *Profile) any { return &p.Slurm.GPURequest },
	},
	{
		Name: "slurm.max-time", Doc: "The longest that a job may run.", Example: `"24h"`, Form: formDuration, FormName: `a time such as "90m", "24h" or "2d"`,
		field: func(p *Profile) any { return &p.Slurm.MaxTime },
	},
	{
		Name: "slurm.options", Doc: "Further options of `sbatch`. In a profile beside a recipe they ask for resources.", Example: `["--exclusive"]`, Form: formOption, FormName: `an option, such as "--exclusive"`,
		field: func(p *Profile) any { return &p.Slurm.Options },
	},
	{
		Name: "paths.scratch", Doc: "A directory for large files that all nodes see.", Example: `"${SCRATCH}"`, Form: formPath, FormName: formPathName,
		field: func(p *Profile) any { return &p.Paths.Scratch },
	},
	{
		Name: "paths.images", Doc: "A directory for images that all nodes read.", Example: `"${SCRATCH}/images"`, Form: formPath, FormName: formPathName,
		field: func(p *Profile) any { return &p.Paths.Images },
	},
	{
		Name: "paths.local", Doc: "A directory of each node, in memory or on a disk of its own: for copies of images, for builds with `--on`, and in jobs for what is unpacked where the store cannot hold it.", Example: `"/dev/shm"`, Form: formPath, FormName: formPathName,
		field: func(p *Profile) any { return &p.Paths.Local },
	},
	{
		Name: "paths.cache", Doc: "A directory that all nodes see, in containers too, for models and data sets that jobs download: scripts set `HF_HOME` and `TORCH_HOME` below it, unless they are set.",
		Example: `"${SCRATCH}/cache"`, Form: formPath, FormName: formPathName,
		field: func(p *Profile) any { return &p.Paths.Cache },
	},
	{
		Name: "paths.home-shared", Doc: "Whether all nodes see the homes of users.", Example: `true`,
		field: func(p *Profile) any { return &p.Paths.HomeShared },
	},
	{
		Name: "paths.stripe", Doc: "Options of `lfs setstripe` for the directory of images, on Lustre.", Example: `"-E 4M -c 1 -E 64M -c 4 -E -1 -c -1 -S 4M"`,
		Form: formStripe, FormName: "options of lfs setstripe",
		field: func(p *Profile) any { return &p.Paths.Stripe },
	},
	{
		Name: "container.mounts", Doc: "Files and directories of the host that every job sees, each `SRC[:DST[:ro]]`.", Example: `["/capstor", "/iopsstor"]`,
		Form: formMount, FormName: `SRC, SRC:DST or SRC:DST:ro, with variables as ${NAME}`,
		field: func(p *Profile) any { return &p.Container.Mounts },
	},
	{
		Name: "container.sqsh-mount", Doc: "How a squashfs file is mounted in a container besides the image: `edf` by a flag in the environment definition file, " +
			"`bind` by Apptainer, `uenv` as a further image, `hook` by what `sconce venv hook` installs for pyxis and enroot, or `none`.",
		Example: `"edf"`, Enum: SqshMounts,
		field: func(p *Profile) any { return &p.Container.SqshMount },
	},
	{
		Name: "container.slurm-inside", Doc: "Whether Slurm's commands work in containers of the first of `runtimes`, by a hook or by what `mounts` names. `sconce lint` goes by it, and environments for the Sarus Suite turn its hook on.", Example: `true`,
		field: func(p *Profile) any { return &p.Container.SlurmInside },
	},
	{
		Name: "container.annotations", Doc: "Annotations of environment definition files, which turn the hooks of the Container Engine on.",
		Example:  `{ "com.hooks.aws_ofi_nccl.enabled" = "true" }`,
		NameForm: formSetting, NameFormName: "letters, digits, dots, underscores and dashes", Form: formValue, FormName: "a text in one line",
		field: func(p *Profile) any { return &p.Container.Annotations },
	},
	{
		Name: "env", Doc: "Environment variables of every job: what no hook of the cluster sets. A table `[env.uenv]` has those that jobs in a uenv need besides, since no hook sets anything there.",
		Example:  `{ "MPICH_GPU_SUPPORT_ENABLED" = "0" }`,
		NameForm: formVariable, NameFormName: "a letter or underscore, then letters, digits and underscores", Form: formValue, FormName: "a text in one line",
		field: func(p *Profile) any { return &p.Env },
	},
	{
		Name: envUenv, Doc: "Environment variables of jobs in a uenv, besides those of `[env]`.", Example: `{ "NCCL_NET" = "AWS Libfabric" }`,
		NameForm: formVariable, NameFormName: "a letter or underscore, then letters, digits and underscores", Form: formValue, FormName: "a text in one line",
		field: func(p *Profile) any { return &p.EnvUenv },
	},
	{
		Name: "reliability.mtbf-node", Doc: "The mean time between failures of one node. How often a job of many nodes should save follows from it.", Example: `"5y"`,
		Form: formDuration, FormName: `a time such as "300d" or "5y"`,
		field: func(p *Profile) any { return &p.Reliability.MTBFNode },
	},
	{
		Name: "reference", Doc: "What tests of images measure where all is well, by `TEST.MEASUREMENT`, or `TEST@NODES.MEASUREMENT` for a number of nodes: an expectation such as `\">= 90%\"` is of that. TEST is a test's name, or what it uses.",
		Example:  `{ "all-reduce@2.busbw" = "150 GB/s" }`,
		NameForm: formMeasured, NameFormName: "TEST.MEASUREMENT or TEST@NODES.MEASUREMENT", Form: formReference, FormName: `a number with its unit, such as "150 GB/s"`,
		field: func(p *Profile) any { return &p.Reference },
	},
}

// Keys returns the keys of a profile in the order in which files have them.
func Keys() []Key { return slices.Clone(keys) }

// KeyOf returns a key by its name. There must be one.
func KeyOf(name string) Key {
	i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name })
	return keys[i]
}

// Field is where a profile has what the key says: a *string, *int, *[]string or *map[string]string.
func (k Key) Field(p *Profile) any { return k.field(p) }

func names[T ~string](values []T) []string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = string(v)
	}
	return list
}

// IsKnown reports whether a profile says anything under the key.
func (k Key) IsKnown(p Profile) bool { return isSet(k.field(&p)) }

func isSet(field any) bool {
	switch v := field.(type) {
	case *string:
		return *v != ""
	case *int:
		return *v != 0
	case **bool:
		return *v != nil
	case *[]string:
		return len(*v) > 0
	case *map[string]string:
		return len(*v) > 0
	}
	return false
}

// put puts what one field says in place of what another does. Tables of the user's own keys are merged.
func put(to, from any) {
	switch to := to.(type) {
	case *string:
		*to = *from.(*string)
	case *int:
		*to = *from.(*int)
	case **bool:
		*to = *from.(**bool)
	case *[]string:
		*to = slices.Clone(*from.(*[]string))
	case *map[string]string:
		merged := maps.Clone(*to)
		if merged == nil {
			merged = map[string]string{}
		}
		maps.Copy(merged, *from.(*map[string]string))
		*to = merged
	}
}

// Describes reports whether the key says what the machine is, and not what the profile is called or made from.
func (k Key) Describes() bool { return k.Name != "name" && k.Name != "description" && k.Name != "base" }

// OfJobs reports whether the key says how jobs are run, rather than what an image has to fit.
func (k Key) OfJobs() bool {
	return strings.Contains(k.Name, ".") || k.Name == "runtimes" || k.Name == "env" || k.Name == "reference"
}

// Override returns p with what o knows in place of what p does, key by key. Name and description stay p's.
func (p Profile) Override(o Profile) Profile {
	for _, k := range keys {
		if k.Describes() && k.IsKnown(o) {
			put(k.field(&p), k.field(&o))
		}
	}
	return p
}

// Empty reports whether nothing is known of the machine, whatever it is called.
func (p Profile) Empty() bool {
	return !slices.ContainsFunc(keys, func(k Key) bool { return k.Describes() && k.IsKnown(p) })
}

// Unknown names the keys under which a profile says nothing although a flag could, as far as they mean something for its processor.
func (p Profile) Unknown() []string {
	missing := []string{}
	for _, k := range keys {
		if k.Flag != "" && !k.IsKnown(p) && (k.Name != "cpu-level" || p.Platform != "linux/arm64") {
			missing = append(missing, k.Name)
		}
	}
	return missing
}

// check says what is wrong with what a profile says under the key.
func (k Key) check(p *Profile) error {
	switch v := k.field(p).(type) {
	case *string:
		if *v != "" {
			return k.checkText(*v)
		}
	case *int:
		if *v != 0 && (*v < k.Min || *v > k.Max) {
			return fmt.Errorf("%s: %d is not between %d and %d", k.Name, *v, k.Min, k.Max)
		}
	case *[]string:
		var all []error
		for _, text := range *v {
			all = append(all, k.checkText(text))
		}
		return errors.Join(all...)
	case *map[string]string:
		return k.checkTable(*v)
	}
	return nil
}

// checkTable checks a table whose keys the user chooses.
func (k Key) checkTable(table map[string]string) error {
	var all []error
	for _, name := range slices.Sorted(maps.Keys(table)) {
		if !k.NameForm.MatchString(name) {
			all = append(all, fmt.Errorf("%s: the name %q must be %s", k.Name, name, k.NameFormName))
		}
		all = append(all, k.checkText(table[name]))
	}
	return errors.Join(all...)
}

func (k Key) checkText(text string) error {
	if strings.ContainsFunc(text, quote.Harmful) {
		return fmt.Errorf("%s: %q holds a control character", k.Name, text)
	}
	if k.Enum != nil && !slices.Contains(k.Enum, text) {
		known := make([]string, len(k.Enum))
		for i, name := range k.Enum {
			known[i] = strconv.Quote(name)
		}
		return fmt.Errorf("%s: %q is not one of %s", k.Name, text, strings.Join(known, ", "))
	}
	if k.Form != nil && !k.Form.MatchString(text) {
		return fmt.Errorf("%s: %q is not %s", k.Name, text, k.FormName)
	}
	return nil
}

// TOML writes a profile as a file has it. What is not known is left out.
func (p Profile) TOML() string { return writeTOML(keys, p) }

func writeTOML(keys []Key, p Profile) string {
	var b strings.Builder
	table := ""
	for _, k := range keys {
		if !k.IsKnown(p) {
			continue
		}
		in, name := "", k.Name
		if i := strings.LastIndex(name, "."); i >= 0 {
			in, name = name[:i], name[i+1:]
		}
		if chosen, ok := k.field(&p).(*map[string]string); ok && (in == "" || k.Name == envUenv) {
			table = k.Name // a value of the top would belong to the table above it
			writeTable(&b, table, *chosen)
			continue
		}
		if in != table {
			table = in
			fmt.Fprintf(&b, "\n[%s]\n", table)
		}
		fmt.Fprintf(&b, "%s = %s\n", name, tomlValue(k.field(&p)))
	}
	return b.String()
}

// writeTable writes a table whose keys the user chooses, a line each.
func writeTable(b *strings.Builder, table string, chosen map[string]string) {
	fmt.Fprintf(b, "\n[%s]\n", table)
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		fmt.Fprintf(b, "%s = %s\n", tomlKey(name), tomltext.String(chosen[name]))
	}
}

// bareKey is a key that TOML takes without quotes (TOML 1.0, "Keys").
var bareKey = lazyregexp.New(`^[A-Za-z0-9_-]+$`)

func tomlKey(name string) string {
	if bareKey.MatchString(name) {
		return name
	}
	return tomltext.String(name)
}

func tomlValue(field any) string {
	switch v := field.(type) {
	case *int:
		return strconv.Itoa(*v)
	case **bool:
		return strconv.FormatBool(**v)
	case *[]string:
		items := make([]string, len(*v))
		for i, text := range *v {
			items[i] = tomltext.String(text)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case *map[string]string:
		var items []string
		for _, name := range slices.Sorted(maps.Keys(*v)) {
			items = append(items, tomltext.String(name)+" = "+tomltext.String((*v)[name]))
		}
		return "{ " + strings.Join(items, ", ") + " }"
	case *string:
		return tomltext.String(*v)
	}
	return ""
}
