package recipe

import (
	"reflect"
	"regexp"
	"strings"
	"sync"
)

// key describes one key of the recipe: for messages, for the schema and for docs/recipe.md. Its type is that of the Go
// field.
type key struct {
	Doc     string // what it does, in sentences
	Default string // in words; "" when it must be given or is simply empty
	Example string // a TOML value

	// What a string must look like: of the value itself, of each element of a list, of each value of a string table.
	Form     *regexp.Regexp
	FormName string // what Form means: "base.bootstrap.suite must be " + FormName
	Enum     []string

	NameForm     *regexp.Regexp // of the keys of a string table
	NameFormName string

	Min, Max int // of a number
}

// Forms that several keys share. Every expression is anchored and means the same in Go and in ECMA-262, which JSON
// Schema uses.
var (
	// formComponent is one path component of an OCI repository name (distribution-spec, "Pulling manifests").
	formComponent = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*$`)
	// formTag is an OCI tag (distribution-spec, "Pulling manifests").
	formTag = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	// formRepository is a registry host with an optional port, then at least one path component.
	formRepository = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+$`)
	formPlatform   = regexp.MustCompile(`^(linux/)?(amd64|x86_64|arm64|aarch64|arm64/v8)$`)
	formSuite      = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
	// formDebian is a package name (Debian Policy 5.6.7), with an architecture and a version as apt takes them.
	formDebian = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~-]+)?$`)
	formArea   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	formMirror = regexp.MustCompile(`^(https?|file)://[^\s]+$`)
	formImage  = regexp.MustCompile(`^[^\s]([^\r\n\t]*[^\s])?$`)
	// formPackage is a Python project name; extras and dependency groups have the same form (PEP 508, PEP 735).
	formPackage = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	formTorch   = regexp.MustCompile(`^(auto|cpu|xpu|cu[0-9]{2,3}|rocm[0-9]+\.[0-9]+(\.[0-9]+)?)$`)
	formEnvName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	formLabel   = regexp.MustCompile(`^[^\s=]+$`)
	formAbsPath = regexp.MustCompile(`^/`)
	formUser    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)
	// formGPU is a CUDA compute capability as TORCH_CUDA_ARCH_LIST has it, without names and PTX.
	formGPU    = regexp.MustCompile(`^[0-9]{1,2}\.[0-9]$`)
	formDriver = regexp.MustCompile(`^[0-9]{3,4}(\.[0-9]+){0,2}$`)
	formGlibc  = regexp.MustCompile(`^2\.[0-9]{1,2}$`)
	formRule   = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	formAny    = regexp.MustCompile(`^[\s\S]+$`)
)

// keys holds every key by its dotted path, tables included. TestKeys checks it against the Go types.
var keys = map[string]key{
	"name": {
		Doc: "The image's name. It is also its name among the local images.", Example: `"llm-train"`,
		Form: formComponent, FormName: "lower-case letters and digits, with single dots, underscores or dashes between them",
	},
	"version": {
		Doc: "The image's version, used as its tag.", Default: DefaultVersion, Example: `"25.11"`,
		Form: formTag, FormName: "a tag: up to 128 letters, digits, underscores, dots and dashes, not starting with a dot or dash",
	},

	"base": {Doc: "What the image stands on: `image` or `bootstrap`, exactly one of them."},
	"base.image": {
		Doc: "An existing image: a registry reference (`debian:12`, `docker://nvcr.io/nvidia/cuda:12.8.1-base-ubuntu24.04`), " +
			"`oci:DIR[:TAG]`, `oci-archive:FILE[:TAG]`, `docker-archive:FILE[:TAG]`, `tar:FILE` (a root file system, compressed or not), `sqsh:FILE`, `sif:FILE` " +
			"or `dir:DIR`. Relative paths start at the recipe's directory.",
		Example: `"debian:12-slim"`,
		Form:    formImage, FormName: "an image reference without spaces around it",
	},
	"base.bootstrap": {
		Doc: "A Debian or Ubuntu root file system made from the distribution's packages by `mmdebstrap`: no registry is needed.",
	},
	"base.bootstrap.suite": {
		Doc: "The release by its code name.", Example: `"bookworm"`,
		Form: formSuite, FormName: `the code name of a release, such as "bookworm" or "noble"`,
	},
	"base.bootstrap.packages": {
		Doc:     "Packages to install besides those of the variant. The image's Python is one of them. `NAME=VERSION` asks for a version.",
		Example: `["python3", "ca-certificates"]`,
		Form:    formDebian, FormName: `names of Debian packages, such as "python3" or "libibverbs1=44.0-2"`,
	},
	"base.bootstrap.mirror": {
		Doc: "Where the packages come from: an address that starts with `http://`, `https://` or `file://`.", Default: "the distribution's own",
		Example: `"https://mirror.example.org/debian"`,
		Form:    formMirror, FormName: "the address of a mirror: http://…, https://… or file://…",
	},
	"base.bootstrap.components": {
		Doc: "The archive areas to use.", Default: `["main"]`, Example: `["main", "contrib", "non-free-firmware"]`,
		Form: formArea, FormName: `names of archive areas, such as "main" or "universe"`,
	},
	"base.bootstrap.variant": {
		Doc: "How much is installed before `packages`, as `mmdebstrap --variant` names it.", Default: DefaultVariant, Example: `"apt"`,
		Enum: []string{"essential", "apt", "minbase", "required", "buildd", "important", "standard"},
	},

	"target": {Doc: "What the image runs on. With any key but `platform`, `sconce build` checks that the image will run there."},
	"target.cluster": {
		Doc: "The cluster's profile: a name that `sconce clusters` lists, or a file, relative to the recipe's directory, whose path has a slash in it or ends in `.toml`. " +
			"The other keys of this table override it. A file `clusters/NAME.toml` beside the recipe goes before any other of the name.",
		Example: `"clariden"`,
		Form:    formImage, FormName: "the name or the file of a cluster profile",
	},
	"target.platform": {
		Doc: "The operating system and processor. An image for the other processor is assembled without running any of it. " +
			"`amd64`, `x86_64`, `arm64` and `aarch64` alone are understood.",
		Default: "the cluster's, else this machine's", Example: `"linux/arm64"`,
		Form: formPlatform, FormName: "linux/amd64 or linux/arm64",
	},
	"target.gpu": {
		Doc: "CUDA compute capabilities of the GPUs.", Example: `["9.0"]`,
		Form: formGPU, FormName: `compute capabilities, such as "8.0" or "9.0"`,
	},
	"target.driver": {
		Doc: "The version of NVIDIA's driver, the oldest on any node.", Example: `"550.54.15"`,
		Form: formDriver, FormName: `a version of NVIDIA's driver, such as "550.54.15"`,
	},
	"target.glibc": {
		Doc: "The version of the host's glibc, for which the libraries were built that the runtime mounts into containers.", Example: `"2.31"`,
		Form: formGlibc, FormName: `a version of glibc, such as "2.31"`,
	},
	"target.runtime": {
		Doc: "What starts the container: `container-engine` is that of CSCS, `apptainer` stands for Singularity too, `podman` for podman-hpc and Docker.", Example: `"apptainer"`,
		Enum: []string{"container-engine", "pyxis", "enroot", "apptainer", "podman", "uenv"},
	},
	"target.fabric": {
		Doc: "The network between nodes.", Example: `"slingshot"`,
		Enum: []string{"slingshot", "infiniband", "roce", "efa", "ethernet"},
	},
	"target.mpi": {
		Doc: "The family of the host's MPI, where the runtime puts it in place of the image's. Cray MPICH is `mpich`.", Example: `"mpich"`,
		Enum: []string{"mpich", "openmpi"},
	},
	"target.pmi": {
		Doc: "What Slurm's `srun` speaks with the processes that it starts.", Example: `"pmix"`,
		Enum: []string{"pmix", "pmi2", "cray"},
	},

	"python": {Doc: "What the virtual environment `/opt/venv` holds. Without any of `packages`, `requirements`, `project` and `lock` there is none."},
	"python.packages": {
		Doc: "What is wanted, each as a requirement string (PEP 508).", Example: `["numpy"]`,
		Form: formAny, FormName: "requirements",
	},
	"python.requirements": {
		Doc: "Files of requirements as pip reads them, relative to the recipe's directory.", Example: `["requirements.txt"]`,
		Form: formAny, FormName: "paths of files",
	},
	"python.project": {
		Doc: "A directory with a `pyproject.toml`, relative to the recipe's directory. Its dependencies are installed.", Example: `"."`,
		Form: formAny, FormName: "the path of a directory",
	},
	"python.lock": {
		Doc: "Your own lock file (PEP 751), relative to the recipe's directory. It is used as it is, " +
			"so `packages`, `requirements` and `project` cannot be given beside it.",
		Example: `"pylock.toml"`,
		Form:    formAny, FormName: "the path of a file",
	},
	"python.torch-backend": {
		Doc:     "Which build of PyTorch to take, as `uv` names them: `cpu`, `cu128`, `rocm6.3`, `xpu`, or `auto` for this machine's.",
		Default: "the build that the package index offers by default", Example: `"cu128"`,
		Form: formTorch, FormName: `"auto", "cpu", "xpu", "cu" with a CUDA version such as "cu128", or "rocm" with a ROCm version such as "rocm6.3"`,
	},
	"python.protect": {
		Doc:     "Python packages of the base that nothing may replace. `[]` allows everything.",
		Default: "torch and what comes with it, when the base has it", Example: `["torch", "triton"]`,
		Form: formPackage, FormName: `names of Python packages, such as "torch"`,
	},
	"python.bytecode": {
		Doc: "Whether modules are compiled when the image is built, so that a read-only image starts fast.", Default: "true", Example: `false`,
	},
	"python.extras": {
		Doc: "Extras of `project` or of `lock` to include.", Example: `["train"]`,
		Form: formPackage, FormName: `names of extras, such as "train"`,
	},
	"python.groups": {
		Doc: "Dependency groups (PEP 735) of `project` or of `lock` to include.", Example: `["dev"]`,
		Form: formPackage, FormName: `names of dependency groups, such as "dev"`,
	},

	"image": {Doc: "What the finished image says about itself."},
	"image.env": {
		Doc: "Environment variables of every process in the image. `PATH` starts with the virtual environment in any case.", Example: `{ NCCL_DEBUG = "INFO" }`,
		NameForm: formEnvName, NameFormName: "a letter or underscore, then letters, digits and underscores",
	},
	"image.entrypoint": {
		Doc: "The program that starts, with its first arguments.", Default: "the base's", Example: `["/opt/venv/bin/python"]`,
	},
	"image.cmd": {
		Doc: "Arguments used when none are given; without an entrypoint, the program too.", Default: "the base's", Example: `["train.py"]`,
	},
	"image.workdir": {
		Doc: "The directory a process starts in.", Default: "the base's", Example: `"/workspace"`,
		Form: formAbsPath, FormName: "an absolute path",
	},
	"image.labels": {
		Doc: "Labels. Those that start with `org.opencontainers.image.` and that sconce knows are set in any case.", Example: `{ "org.example.team" = "vision" }`,
		NameForm: formLabel, NameFormName: "a word without spaces",
	},
	"image.volumes": {
		Doc: "Directories whose content does not belong to the image.", Example: `["/scratch"]`,
		Form: formAbsPath, FormName: "absolute paths",
	},
	"image.user": {
		Doc: "The user that processes run as: a name or number, optionally with a group after a colon.", Default: "the base's", Example: `"1000:1000"`,
		Form: formUser, FormName: `a user, such as "nobody", "1000" or "1000:100"`,
	},
	"image.compression": {
		Doc: "How the layers are compressed. Every runtime reads `gzip`, and it builds fastest: what wheels have compressed is taken over as it is. `zstd` makes images smaller and faster to unpack.", Default: DefaultCompression, Example: `"zstd"`,
		Enum: []string{"gzip", "zstd"},
	},
	"image.max-layers": {
		Doc: "The most layers the image may have, the base's included. Packages share layers to stay below it.", Default: "60", Example: `40`,
		Min: 2, Max: 120,
	},

	"slim": {Doc: "What is taken out of the finished image."},
	"slim.gpu": {
		Doc: "Whether device code is taken out that the GPUs of `[target]` cannot run, base included. PyTorch for one GPU is about half as large.", Default: "false", Example: `true`,
	},
	"slim.ptx": {
		Doc:     "What happens to PTX, from which the driver compiles for GPUs to come: with `drop-where-native` it goes where there is code for every GPU of the target.",
		Default: DefaultPTX, Example: `"drop-where-native"`,
		Enum: []string{"keep", "drop-where-native"},
	},
	"slim.relfatbin": {
		Doc: "What happens to device code that is only there to be linked with more.", Default: DefaultRelfatbin, Example: `"drop"`,
		Enum: []string{"keep", "drop"},
	},

	"check": {Doc: "How the finished image is judged: see `sconce check`."},
	"check.allow": {
		Doc:      "Rules whose findings are no errors for this image, each with the reason. `sconce check --list-rules` lists them.",
		Example:  `{ "python-requirement-unmet" = "we never import it" }`,
		NameForm: formRule, NameFormName: "the id of a rule",
		Form: formAny, FormName: "a reason",
	},

	"publish": {Doc: "Where the image goes."},
	"publish.repository": {
		Doc: "The repository that `sconce build --push` and `sconce push` send it to, without a tag.", Example: `"registry.example.org/team/llm-train"`,
		Form: formRepository, FormName: `a registry and a path, such as "registry.example.org/team/llm-train", without a tag`,
	},
}

// shape is the type of a key: what the Go field makes of it.
type shape struct {
	name   string // last part of the path; "" for the root
	path   string // dotted
	key    key
	kind   kind     // kindTable, kindString, kindBool, kindInteger or kindList (of strings)
	free   bool     // a table whose keys the user chooses, all strings
	names  []string // of a table with fixed keys, in the order of the Go fields
	fields map[string]*shape
}

// root is the shape of a whole recipe.
var root = sync.OnceValue(func() *shape { return shapeOf(reflect.TypeFor[Recipe](), "", "") })

func shapeOf(t reflect.Type, name, path string) *shape {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	s := &shape{name: name, path: path, key: keys[path]}
	switch t.Kind() {
	case reflect.Struct:
		s.kind = kindTable
		s.addFields(t)
	case reflect.Map:
		s.kind, s.free = kindTable, true
	case reflect.Slice:
		s.kind = kindList
	case reflect.Bool:
		s.kind = kindBool
	case reflect.Int:
		s.kind = kindInteger
	default:
		s.kind = kindString
	}
	return s
}

func (s *shape) addFields(t reflect.Type) {
	s.fields = map[string]*shape{}
	for f := range t.Fields() {
		name := f.Tag.Get("toml")
		if name == "-" {
			continue
		}
		s.names = append(s.names, name)
		s.fields[name] = shapeOf(f.Type, name, strings.TrimPrefix(s.path+"."+name, "."))
	}
}

// walk calls f for the shape and everything below it, parents first.
func (s *shape) walk(f func(*shape)) {
	f(s)
	for _, n := range s.names {
		s.fields[n].walk(f)
	}
}

// expected says which type the key takes, for messages.
func (s *shape) expected() string {
	switch {
	case s.free:
		return "a table of strings"
	case s.kind == kindList:
		return "a list of strings"
	case s.kind == kindInteger:
		return "a whole number"
	default:
		return string(s.kind)
	}
}
