package recipe

import (
	"cmp"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/hostconfig"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/job"
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

	NameForm     *regexp.Regexp // of the keys that the user chooses
	NameFormName string

	Lines bool // a string that may have many lines, and tabs

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
	formSource = regexp.MustCompile(`^(https?|file)://[^\s@\[\]]+ [a-z0-9][a-z0-9./-]*( [a-z][a-z0-9./-]*)+$`)
	// formDnf is a release, or the address of a repository.
	formDnf = regexp.MustCompile(`^([a-z][a-z0-9]*:[0-9][0-9.]*|(https?|file)://[^\s@\[\]]+)$`)
	// formBasePackage is a package of Debian or of a distribution of RPM packages; which of them, validateBootstrap knows.
	formBasePackage = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9+._-]+(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~^_-]+)?$`)
	formRPM         = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9+._-]+(=[A-Za-z0-9.+:~^_-]+)?$`)
	formBaseSource  = regexp.MustCompile(`^(https?|file)://[^\s@\[\]]+( [a-z0-9][a-z0-9./-]*( [a-z][a-z0-9./-]*)+)?$`)
	formRPMSource   = regexp.MustCompile(`^(https?|file)://[^\s@\[\]]+$`)
	formImage       = regexp.MustCompile(`^[^\s]([^\r\n\t]*[^\s])?$`)
	// formPackage is a Python project name; extras and dependency groups have the same form (PEP 508, PEP 735).
	formPackage    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	formOnlyBinary = regexp.MustCompile(`^(:all:|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)$`)
	formTorch      = regexp.MustCompile(`^(auto|target|cpu|xpu|cu[0-9]{2,3}|rocm[0-9]+\.[0-9]+(\.[0-9]+)?)$`)
	formEnvName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	formLabel      = regexp.MustCompile(`^[^\s=]+$`)
	formAbsPath    = regexp.MustCompile(`^/`)
	formUser       = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)
	// formSystem is a name as apt, dnf or zypper take it, with a version if they do. A dash at its end would make apt remove it.
	formSystem = regexp.MustCompile(`^[A-Za-z0-9@]([A-Za-z0-9+._:~@/=<>^-]*[A-Za-z0-9+])?$`)
	formSize   = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?\s?[kKMGT](i?B)?$`)
	formScript = regexp.MustCompile(`^[\s\S]*\S[\s\S]*$`)
	formRule   = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	formAny    = regexp.MustCompile(`^[\s\S]+$`)

	formJob     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	formTime    = regexp.MustCompile(`^([0-9]+(\.[0-9]+)?[smhd]|([0-9]+-)?[0-9]{1,4}:[0-9]{2}:[0-9]{2})$`)
	formJobPath = regexp.MustCompile(`^(/|\$\{[A-Za-z_][A-Za-z0-9_]*\})[^\s]*$`)
	formOneWord = regexp.MustCompile(`^[^\s'"\x60\\-][^\s'"\x60\\]*$`)
	formArray   = regexp.MustCompile(`^[0-9]+(-[0-9]+(:[0-9]+)?)?(,[0-9]+(-[0-9]+(:[0-9]+)?)?)*(%[0-9]+)?$`)
	formOption  = regexp.MustCompile(`^--?[A-Za-z][^\r\n\t]*$`)
	// formPrefix keeps shebangs below the 127 bytes that Linux reads, and placeholders of packages longer than what replaces them.
	formPrefix  = regexp.MustCompile(`^(/[A-Za-z0-9_][A-Za-z0-9_.+-]*){1,12}$`)
	formVariant = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?$`)
	formKey     = regexp.MustCompile(`^(env:[A-Za-z_][A-Za-z0-9_]*|file:[^\s]+)$`)
	formDays    = regexp.MustCompile(`^[0-9]{1,5}[dh]$`)
	formVirtual = regexp.MustCompile(`^__[a-z][a-z0-9_]*$`)

	formModule      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)
	formMeasurement = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._@/-]*$`)

	formComponentName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)
	formAddress       = regexp.MustCompile(`^[^\s-][^\s]*$`)
	formSHA256        = regexp.MustCompile(`^[0-9a-f]{64}$`)
	formCommit        = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./+-]*$`)
	formDebianSource  = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+:~-]+)?$`)
)

const formJobPathName = `an absolute path or one that begins with a variable, such as "${HOME}/my-app"`

// keys holds every key by its dotted path, tables included. TestKeys checks it against the Go types. What a cluster's profile has comes
// from its own table.
var keys = withProfile(map[string]key{
	"name": {
		Doc: "The image's name. It is also its name among the local images.", Example: `"llm-train"`,
		Form: formComponent, FormName: "lower-case letters and digits, with single dots, underscores or dashes between them",
	},
	"version": {
		Doc: "The image's version, used as its tag.", Default: DefaultVersion, Example: `"25.11"`,
		Form: formTag, FormName: "a tag: up to 128 letters, digits, underscores, dots and dashes, not starting with a dot or dash",
	},
	"host-config": {
		Doc: "What steps see of the configuration of the machine that builds: of `pip`, `ca`, `npm`, `apt`, `conda` those that it has. None of it is in the " +
			"image or decides what it is. `--host-config` goes before it, and `--host-config=` shows nothing.",
		Example: `["ca", "pip"]`, Enum: hostconfig.Kinds,
	},

	"base": {Doc: "What the image stands on: `image`, `bootstrap` or `recipe`, exactly one of them."},
	"base.image": {
		Doc: "An existing image: a registry reference (`debian:12`, `docker://nvcr.io/nvidia/cuda:12.8.1-base-ubuntu24.04`), " +
			"`oci:DIR[:TAG]`, `oci-archive:FILE[:TAG]`, `docker-archive:FILE[:TAG]`, `tar:FILE` (a root file system, compressed or not), `sqsh:FILE`, `sif:FILE` " +
			"or `dir:DIR`. Relative paths start at the recipe's directory.",
		Example: `"debian:12-slim"`,
		Form:    formImage, FormName: "an image reference without spaces around it",
	},
	"base.bootstrap": {
		Doc: "A root file system made from the distribution's own signed packages: Debian's or Ubuntu's with `suite`, RPM's with `dnf`, exactly one of them. No registry is needed, and no program of this machine.",
	},
	"base.bootstrap.suite": {
		Doc: "The release of Debian or Ubuntu by its code name.", Example: `"bookworm"`,
		Form: formSuite, FormName: `the code name of a release, such as "bookworm" or "noble"`,
	},
	"base.bootstrap.dnf": {
		Doc: "The release of a distribution of RPM packages: `rocky:9`, `rocky:10`, `alma:9`, `alma:10`, `fedora:41` to `fedora:44`, `opensuse:15.6`. " +
			"Or the address of any repository, the directory in which `repodata` is, with `keys`.",
		Example: `"rocky:9"`,
		Form:    formDnf, FormName: `a release, such as "rocky:9", or the address of a repository: http://…, https://… or file://…`,
	},
	"base.bootstrap.packages": {
		Doc:     "Packages to install besides those of the variant. The image's Python is one of them. `NAME=VERSION` asks for a version.",
		Example: `["python3", "ca-certificates"]`,
		Form:    formBasePackage, FormName: `names of packages, such as "python3" or "libibverbs1=44.0-2"`,
	},
	"base.bootstrap.mirror": {
		Doc:     "Where the packages come from: an address that starts with `http://`, `https://` or `file://`. The date in that of a snapshot is when its index has to be good.",
		Default: "the configuration's, or this machine's own, with updates and security updates; for RPM packages the distribution's own servers",
		Example: `"https://mirror.example.org/debian"`,
		Form:    formMirror, FormName: "the address of a mirror: http://…, https://… or file://…",
	},
	"base.bootstrap.components": {
		Doc: "The archive areas of Debian or Ubuntu to use.", Default: `["main"]`, Example: `["main", "contrib", "non-free-firmware"]`,
		Form: formArea, FormName: `names of archive areas, such as "main" or "universe"`,
	},
	"base.bootstrap.sources": {
		Doc:     "Further archives, each as a line of sources.list has it behind `deb`: address, suite, components. With `dnf`, addresses of further repositories.",
		Example: `["https://mirror.example.org/debian bookworm-backports main"]`,
		Form:    formBaseSource, FormName: "an address, a suite and components, with blanks between them; with dnf an address alone",
	},
	"base.bootstrap.keys": {
		Doc:     "Files with the OpenPGP keys (`.gpg`, `.asc`) of which one must have signed each index, or with `dnf` each package, relative to the recipe's directory. No other key counts then.",
		Default: "those of Debian and Ubuntu, and those that this machine's apt trusts; with `dnf` those of the release", Example: `["archive.asc"]`,
		Form: formAny, FormName: "paths of files",
	},
	"base.bootstrap.trusted": {
		Doc: "Whether indices and packages are believed without a signature. Whoever is on the way to the mirror can then change the packages.", Default: "false", Example: "true",
	},
	"base.bootstrap.variant": {
		Doc: "How much is installed before `packages`: the essential packages (`apt`, `essential`), those that are required too (`minbase`, `required`), or of a higher priority. apt is among all of them. With `dnf`: `essential` has rpm and a shell, `minbase` the distribution's package manager and certificates too.", Default: DefaultVariant, Example: `"apt"`,
		Enum: []string{"essential", "apt", "minbase", "required", "buildd", "important", "standard"},
	},

	"base.recipe": {
		Doc: "Another recipe, `PATH` or `PATH:VARIANT`, whose image this one stands on: its directory or file, relative to this recipe's directory. " +
			"Its image is built first unless it is there. It has a lock of its own.",
		Example: `"../pytorch:26.02-py3"`,
		Form:    formImage, FormName: "the path of a recipe, with a variant behind a colon if it has any",
	},
	"base.remove": {
		Doc: "Patterns of files of the base that are not there for anything that is built on it, and take no room in the image either, " +
			"as `[slim] remove` has them.",
		Example: `["/opt/hpcx/**", "libnccl*"]`,
		Form:    formAny, FormName: "patterns of files",
	},

	"variant": {
		Doc:      "Variants of the recipe by name: what each has in place of the recipe's own keys, or besides them.",
		NameForm: formVariant, NameFormName: "letters and digits, with dots, underscores or dashes between them",
	},
	"variant.NAME": {Doc: "A variant: any keys of the recipe but `name`, `variant` and `matrix`."},
	"matrix": {
		Doc: "Variants as a product: lists of names under `[variant]`, each list an axis. Every combination is a variant, named by its words with dashes between. " +
			"`exclude` lists combinations that are not wanted.",
		Example: `{ cuda = ["cu128", "cu130"], arch = ["amd64", "arm64"], exclude = ["cu128-arm64"] }`,
		Form:    formVariant, FormName: "names of variants",
		NameForm: formVariant, NameFormName: "that of an axis, or \"exclude\"",
	},

	"pipeline": {Doc: "The images of a team."},
	"pipeline.recipes": {
		Doc:     "The recipes: patterns of directories with a `sconce.toml`, or of files, relative to this file's directory. Each variant of each is an image.",
		Example: `["images/*", "apps/*"]`, Form: formImage, FormName: "patterns of paths",
	},
	"pipeline.staging": {
		Doc: "Where images are kept while they are built and tested: below it, each image has a repository of its name.", Example: `"registry.example.org/team/ci"`,
		Form: formRepository, FormName: "a repository of a registry, HOST/PATH, without a tag",
	},
	"pipeline.stable": {
		Doc:     "Where users take images from: below each of these, each image has a repository of its name. A recipe's own `[publish] repository` goes before.",
		Example: `["registry.example.org/team/images"]`, Form: formRepository, FormName: "repositories of registries, HOST/PATH, without a tag",
	},
	"pipeline.mutable": {
		Doc: "Patterns of versions whose stable tags are written again. All others are written once.", Example: `["*-dev"]`,
		Form: formImage, FormName: "patterns of versions",
	},
	"pipeline.clusters": {
		Doc: "Clusters on which images are tested whose tests say nothing else.", Example: `["clariden"]`, Form: formImage, FormName: "names of clusters",
	},
	"pipeline.branch": {
		Doc: "The branch from which images are promoted. From others, it is only said what would be done.", Default: DefaultBranch, Example: `"main"`,
		Form: formImage, FormName: "the name of a branch",
	},
	"pipeline.sign": {
		Doc: "The private key, in PEM, that evidence is signed with: `env:VARIABLE` that holds it, or `file:PATH`. Without it nothing is signed.", Example: `"env:SCONCE_KEY"`,
		Form: formKey, FormName: `"env:" and the name of a variable, or "file:" and a path`,
	},
	"pipeline.keep": {Doc: "What stays in `staging` when it is cleaned up."},
	"pipeline.keep.canonical": {
		Doc: "How long images stay that nothing refers to any more.", Default: "for ever", Example: `"30d"`, Form: formDays, FormName: `a number of days or hours, such as "30d"`,
	},
	"pipeline.keep.newest": {Doc: "How many of the newest images of each variant stay in any case.", Default: "0", Example: "3", Max: 1000},
	"pipeline.ci":          {Doc: "What jobs look like at a site."},
	"pipeline.ci.gitlab":   {Doc: "Parts of GitLab's jobs, copied as they are: their keys are GitLab's."},
	"pipeline.ci.gitlab.include": {
		Doc: "Files with the site's own job templates.", Example: `[{ remote = "https://ci.example.org/runners.yml" }]`,
	},
	"pipeline.ci.gitlab.default":   {Doc: "GitLab's `default` of all jobs.", Example: `{ interruptible = true }`},
	"pipeline.ci.gitlab.variables": {Doc: "Variables of all jobs.", Example: `{ SCONCE_STORE = "/dev/shm/sconce" }`},
	"pipeline.ci.gitlab.build":     {Doc: "What is added to jobs that build.", Example: `{ extends = ".builder" }`},
	"pipeline.ci.gitlab.test":      {Doc: "By cluster, what is added to jobs that test on it.", Example: `{ clariden = { extends = ".baremetal-runner" } }`},
	"pipeline.ci.gitlab.light":     {Doc: "What is added to jobs that only talk to registries.", Example: `{ extends = ".lightweight" }`},
	"pipeline.ci.github":           {Doc: "Parts of jobs of GitHub's actions, copied as they are: their keys are GitHub's."},
	"pipeline.ci.github.build":     {Doc: "What is added to jobs that build.", Example: `{ runs-on = ["self-hosted", "gh200"] }`},
	"pipeline.ci.github.test":      {Doc: "By cluster, what is added to jobs that test on it.", Example: `{ clariden = { runs-on = ["self-hosted", "login"] } }`},
	"pipeline.ci.github.light":     {Doc: "What is added to jobs that only talk to registries.", Example: `{ runs-on = "ubuntu-24.04" }`},

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
	"system": {Doc: "What the base's own package manager (apt, dnf 4 or zypper) installs. `sconce lock` pins the versions."},
	"system.packages": {
		Doc:     "Packages as that package manager takes them, with what they depend on.",
		Example: `["git", "libibverbs1"]`,
		Form:    formSystem, FormName: `names of packages, each a string of its own, such as "git" or "libibverbs1=44.0-2"`,
	},

	"conda": {
		Doc: "A conda environment, on any base: it brings its own Python. Without any of `environment`, `packages` and `lock` there is none. " +
			"With one, `[python]` means this environment and not one of its own.",
	},
	"conda.environment": {
		Doc: "Environment files, relative to the recipe's directory, the packages of each on top of those before. What they list under `pip` is resolved together with `[python]`.", Example: `["environment.yml"]`,
		Form: formAny, FormName: "paths of files",
	},
	"conda.packages": {
		Doc: "What is wanted besides, as conda takes it.", Example: `["python=3.12", "pytorch-gpu>=2.5"]`,
		Form: formAny, FormName: "conda requirements",
	},
	"conda.channels": {
		Doc: "Where packages come from, the most trusted first: names or addresses. Those of the environment files come before them.", Default: `["conda-forge"]`,
		Example: `["conda-forge", "bioconda"]`,
		Form:    formImage, FormName: "names or addresses of channels",
	},
	"conda.channel-priority": {
		Doc:     "Whether a package that one channel has may come from a later one: `strict` never, `flexible` where there is no solution else, `disabled` always.",
		Default: "that of `.condarc`, else `" + DefaultPriority + "`", Example: `"flexible"`,
		Enum: []string{"strict", "flexible", "disabled"},
	},
	"conda.prefix": {
		Doc: "Where the environment lies in the image. Images with the same prefix share the layers of packages.", Default: DefaultPrefix, Example: `"/opt/conda"`,
		Form: formPrefix, FormName: "an absolute path of plain directory names, of at most 100 letters",
	},
	"conda.lock": {
		Doc: "Your own lock, relative to the recipe's directory: `conda-lock.yml`, `pixi.lock` or a list that begins with `@EXPLICIT`. It is used as it is, " +
			"so `environment`, `packages` and `channels` cannot be given beside it.",
		Example: `"conda-lock.yml"`,
		Form:    formAny, FormName: "the path of a file",
	},
	"conda.lock-categories": {
		Doc: "Which packages of your own `conda-lock.yml` are taken besides those of the category `main`.", Example: `["dev"]`,
		Form: formAny, FormName: "names of categories",
	},
	"conda.lock-environment": {
		Doc: "Which environment of your own `pixi.lock` is taken.", Default: "default", Example: `"gpu"`,
		Form: formAny, FormName: "the name of an environment",
	},
	"conda.virtual": {
		Doc:      "Virtual packages that the target has, in place of those that follow from the base and `[target]`: `__cuda`, `__glibc`, `__archspec`, `__linux`. With empty text the target has none of that name.",
		Example:  `{ __cuda = "12.9" }`,
		NameForm: formVirtual, NameFormName: `that of a virtual package, such as "__cuda"`,
	},
	"conda.link-scripts": {
		Doc:     "Packages whose link scripts are run, in the image, when it is built. `[]` runs none.",
		Default: "all that have one", Example: `["gdk-pixbuf"]`,
		Form: formPackage, FormName: `names of conda packages, such as "gdk-pixbuf"`,
	},
	"conda.client": {
		Doc: "Whether `conda` and `mamba` are added to the environment. An image does not need them to run.", Default: "false", Example: `true`,
	},
	"conda.accept-licenses": {
		Doc:     "Whether packages may come from `defaults`, the channels of Anaconda, whose terms ask larger organisations for a licence.",
		Default: "false", Example: `true`,
	},

	"python": {Doc: "What the virtual environment `/opt/venv` holds, or what the conda environment or the base's own virtual environment holds besides. Without any of `packages`, `requirements`, `project` and `lock` there is none."},
	"python.packages": {
		Doc: "What is wanted, each as a requirement string (PEP 508). Behind an `@`, a path that starts with `./` or `../` starts at the recipe's directory.", Example: `["numpy"]`,
		Form: formAny, FormName: "requirements",
	},
	"python.requirements": {
		Doc: "Files of requirements as pip reads them, hashes included, relative to the recipe's directory.", Example: `["requirements.txt"]`,
		Form: formAny, FormName: "paths of files",
	},
	"python.project": {
		Doc: "A directory with a `pyproject.toml`, relative to the recipe's directory. Its dependencies are installed.", Example: `"."`,
		Form: formAny, FormName: "the path of a directory",
	},
	"python.install-project": {
		Doc: "Whether `project` is installed itself, as a wheel built from its directory, and not only what it depends on. Any change of a file there builds it again.", Default: "false", Example: `true`,
	},
	"python.lock": {
		Doc: "Your own lock file (PEP 751), relative to the recipe's directory. It is used as it is, " +
			"so `packages`, `requirements` and `project` cannot be given beside it.",
		Example: `"pylock.toml"`,
		Form:    formAny, FormName: "the path of a file",
	},
	"python.torch-backend": {
		Doc: "Which build of PyTorch to take, as `uv` names them: `cpu`, `cu128`, `rocm6.3`, `xpu`, or `auto` for this machine's. " +
			"`target` takes the newest CUDA that the target's driver runs.",
		Default: "the build that the package index offers by default", Example: `"cu128"`,
		Form: formTorch, FormName: `"target", "auto", "cpu", "xpu", "cu" with a CUDA version such as "cu128", or "rocm" with a ROCm version such as "rocm6.3"`,
	},
	"python.protect": {
		Doc:     "Python packages of the base that nothing may replace. `[]` allows everything.",
		Default: "torch and what comes with it, when the base has it", Example: `["torch", "triton"]`,
		Form: formPackage, FormName: `names of Python packages, such as "torch"`,
	},
	"python.prefer": {
		Doc: "Packages whose files stay where another package has a file of the same name, the first above all. " +
			"Without it, two different files in one place are an error.",
		Example: `["opencv-python-headless"]`,
		Form:    formPackage, FormName: `names of Python packages, such as "opencv-python-headless"`,
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
	"python.only-binary": {
		Doc:     "Packages that never come as their source: an older version with a wheel goes before a newer one without. `:all:` is every package.",
		Example: `["vllm"]`,
		Form:    formOnlyBinary, FormName: `names of Python packages, such as "vllm", or ":all:"`,
	},

	"python.compile": {
		Doc:      "How packages without a wheel for the target are built, by the package's name.",
		NameForm: formPackage, NameFormName: "that of a Python package",
	},
	"python.compile.NAME": {Doc: "How the package of this name is built into a wheel."},
	"python.compile.NAME.isolation": {
		Doc: "Whether it is built in an environment of its own. `false` builds it on top of what it depends on, such as `torch`, " +
			"as `pip install --no-build-isolation` does; its build requirements are there only while it is built.",
		Default: "what is known of the package (`sconce packages`), else true", Example: `false`,
	},
	"python.compile.NAME.cuda": {
		Doc: "Whether it has code for GPUs that goes with torch's: nvcc must then be of the CUDA that torch was built with. Where the base has no nvcc, " +
			"it comes from the package index (CUDA 13 and newer), for the time of the build.",
		Default: "what is known of the package (`sconce packages`), else false", Example: `true`,
	},
	"python.compile.NAME.network": {
		Doc:     "Whether it may download while it is built, as Rust and Go do with crates and modules that are not in its source. What they take is checked by the `Cargo.lock` or `go.sum` in the source, which the lock names; where there is none, locking warns.",
		Default: "what is known of the package (`sconce packages`), else false", Example: `true`,
	},
	"python.compile.NAME.requires": {
		Doc: "Requirements (PEP 508) that must be there while it is built, besides those that it names itself.", Example: `["ninja", "packaging"]`,
		Form: formAny, FormName: "requirements",
	},
	"python.compile.NAME.env": {
		Doc:      "Environment variables of its build. They are part of what the wheel is kept under.",
		Example:  `{ FLASH_ATTENTION_FORCE_BUILD = "TRUE" }`,
		NameForm: formEnvName, NameFormName: "a letter or underscore, then letters, digits and underscores",
	},
	"python.compile.NAME.memory-per-job": {
		Doc:     "How much memory one compiler needs. `MAX_JOBS` follows from it, the cores and the memory that is really there.",
		Default: "what is known of the package", Example: `"5GiB"`,
		Form: formSize, FormName: `a size such as "5GiB" or "500MB"`,
	},
	"python.compile.NAME.jobs": {
		Doc: "The most compilers that run at once.", Default: "from the cores and the memory", Example: `8`,
		Min: 1, Max: 1024,
	},
	"python.compile.NAME.base": {
		Doc:     "An image to build it in, named as `base.image` names one: the compilers stay there, and only the wheel reaches this image. Both need the same Python version.",
		Default: "the image itself", Example: `"nvcr.io/nvidia/cuda:12.8.1-devel-ubuntu24.04"`,
		Form: formImage, FormName: "an image reference without spaces around it",
	},
	"python.compile.NAME.needs": {
		Doc:     "Components that it is built against. They are there while it is built, and what they come to is part of what the wheel is kept under.",
		Example: `["openmpi"]`,
		Form:    formComponentName, FormName: "names of components",
	},
	"python.compile.NAME.depends": {
		Doc:     "What it requires once installed (PEP 508), for a package whose metadata cannot be had without building it. It is believed.",
		Example: `["torch", "einops"]`,
		Form:    formAny, FormName: "requirements",
	},

	"source": {
		Doc:      "What components are built from, by name. The lock pins each to its bytes.",
		NameForm: formComponentName, NameFormName: "letters, digits, dots, underscores, dashes and pluses, the first a letter or digit",
	},
	"source.NAME": {Doc: "Where one source comes from: `url`, `git` or `debian`, exactly one of them."},
	"source.NAME.url": {
		Doc: "An archive: `tar`, plain or compressed by gzip, bzip2, xz or zstd, or `zip`. A single directory at its top is taken off. " +
			"A path without `://` starts at the recipe's directory.",
		Example: `"https://example.org/libfabric-2.1.0.tar.bz2"`,
		Form:    formAddress, FormName: "an address without spaces",
	},
	"source.NAME.sha256": {
		Doc: "The archive's SHA-256. Without it the lock takes what the address gives, and pins that.", Example: `"9b5f0ef0a4bb8c0f3b4ac48c8ee3f9a6bd3e1ae0f5ab2e1fc0a4a42e6c5a3d10"`,
		Form: formSHA256, FormName: "64 hexadecimal digits",
	},
	"source.NAME.git": {
		Doc: "A repository, as git names one. Submodules come along.", Example: `"https://example.org/nccl.git"`,
		Form: formAddress, FormName: "an address without spaces",
	},
	"source.NAME.commit": {
		Doc: "Which commit of `git`. A tag or branch is looked up by `sconce lock`, which pins the commit.", Example: `"v2.27.3-1"`,
		Form: formCommit, FormName: "the hash of a commit, a tag or a branch",
	},
	"source.NAME.debian": {
		Doc: "A source package of the base's distribution, with its patches, by the package sources that the base has: `NAME`, or `NAME=VERSION`.", Example: `"libfabric=2.1.0-1.1"`,
		Form: formDebianSource, FormName: `the name of a source package, such as "libfabric" or "libfabric=2.1.0-1.1"`,
	},
	"source.NAME.patch": {
		Doc:     "Patches to apply, in this order, as `git diff` and `diff -u` write them. Names in them lose their first part (`patch -p1`). Paths start at the recipe's directory.",
		Example: `["patches/fi_writemsg.patch"]`,
		Form:    formAny, FormName: "files",
	},

	"component": {
		Doc: "What is built from sources, by name, each in a stage of its own: on the base, with `packages` and what it `needs`. " +
			"Only its prefix reaches the image, as a layer, in the order of the file. Those that do not need each other are built side by side.",
		NameForm: formComponentName, NameFormName: "letters, digits, dots, underscores, dashes and pluses, the first a letter or digit",
	},
	"component.NAME": {Doc: "How one component is built."},
	"component.NAME.sources": {
		Doc:     "The sources that it is built from, each in a directory of its name below `/build`.",
		Default: "the one of the component's name", Example: `["libfabric", "libfabric-headers"]`,
		Form: formComponentName, FormName: "names of sources",
	},
	"component.NAME.packages": {
		Doc:     "Packages of the base's package manager that are there while it is built, and not in the image. `sconce lock` pins the versions.",
		Example: `["build-essential", "libnl-3-dev"]`,
		Form:    formSystem, FormName: `names of packages, each a string of its own, such as "build-essential"`,
	},
	"component.NAME.needs": {
		Doc:     "Other components, whose prefixes are there while it is built, with those that they need.",
		Example: `["libfabric", "ucx"]`,
		Form:    formComponentName, FormName: "names of components",
	},
	"component.NAME.run": {
		Doc: "The script that builds and installs it, by `/bin/sh -ec`. `PREFIX` is where to, and `JOBS` how many compilers may run.", Example: `"./configure --prefix=$PREFIX && make -j$JOBS install"`,
		Form: formScript, FormName: "a script", Lines: true,
	},
	"component.NAME.prefix": {
		Doc: "Where it is installed. What the script writes elsewhere is forgotten.", Default: "/opt/NAME", Example: `"/opt/mpi"`,
		Form: formPrefix, FormName: "an absolute path without special characters",
	},
	"component.NAME.env": {
		Doc: "Environment variables of the script. `TORCH_CUDA_ARCH_LIST` has the GPUs of the target unless it is given here.", Example: `{ CFLAGS = "-O3" }`,
		NameForm: formEnvName, NameFormName: "a letter or underscore, then letters, digits and underscores",
	},
	"component.NAME.workdir": {
		Doc: "The directory that the script starts in, below that of the first source, or absolute.", Default: "the first source's", Example: `"src"`,
		Form: formAny, FormName: "a directory",
	},
	"component.NAME.memory-per-job": {
		Doc: "How much memory one compiler needs. `JOBS` follows from it, the cores and the memory that is really there.", Default: "2GiB", Example: `"4GiB"`,
		Form: formSize, FormName: `a size such as "5GiB" or "500MB"`,
	},
	"component.NAME.network": {
		Doc: "Whether the script reaches the network. What it brings is pinned by nothing.", Default: "false", Example: `true`,
	},

	"step": {
		Doc: "Changes of the image, in the order of the file. Each is made once and kept under a key of all that goes into it.",
	},
	"step.name": {
		Doc: "What progress and messages call the step.", Default: "what it does", Example: `"NCCL tests"`,
		Form: formAny, FormName: "a name",
	},
	"step.run": {
		Doc: "A script that runs in the image. The step fails with the first command that does.", Example: `"make -C /opt/src install"`,
		Form: formScript, FormName: "a script", Lines: true,
	},
	"step.copy": {
		Doc: "Files and directories to copy into the image, each `SRC:DEST`. `SRC` is a file, a directory, whose content is meant, or a pattern such as `src/**/*.c`, " +
			"and starts at the recipe's directory. `DEST` is the new name, or a directory when it ends in `/`; a relative one starts at `workdir`, and without it `workdir` is meant.",
		Example: `["src:/opt/src", "etc/*.conf:/etc/app/"]`,
		Form:    formAny, FormName: `"SRC:DEST"`,
	},
	"step.patch": {
		Doc:     "Patches to apply, as `git diff` and `diff -u` write them, each `FILE[:DIR]`. `FILE` starts at the recipe's directory; names in it lose their first part (`patch -p1`) and start at `DIR`, else at `workdir`.",
		Example: `["fix-build.patch:/opt/src"]`,
		Form:    formAny, FormName: `"FILE:DIR"`,
	},
	"step.link": {
		Doc: "Symlinks to make, each `TARGET:NAME`. `TARGET` is what the link says, from the root or from the link's directory; there need be no such file. " +
			"`NAME` is the link's, or a directory when it ends in `/`; a relative one starts at `workdir`. What has the name is replaced, unless it is a directory.",
		Example: `["/opt/app/bin/app:/usr/local/bin/"]`,
		Form:    formAny, FormName: `"TARGET:NAME"`,
	},
	"step.env": {
		Doc: "Environment variables of the script alone, besides those of the base. Those of the finished image are under `[image]`. `TORCH_CUDA_ARCH_LIST` has the GPUs of the target unless it is given here.", Example: `{ CC = "gcc-12" }`,
		NameForm: formEnvName, NameFormName: "a letter or underscore, then letters, digits and underscores",
	},
	"step.workdir": {
		Doc: "The directory that the script starts in. It is made when it is not there.", Default: "/", Example: `"/opt/src"`,
		Form: formAbsPath, FormName: "an absolute path",
	},
	"step.user": {
		Doc: "The user that the script runs as and that what is copied belongs to: a name or number, optionally with a group after a colon.", Default: "root", Example: `"1000:1000"`,
		Form: formUser, FormName: `a user, such as "nobody", "1000" or "1000:100"`,
	},
	"step.shell": {
		Doc: "The program that `run` is given to as the last argument, with the arguments before it.", Default: "`[\"/bin/sh\", \"-ec\"]`", Example: `["/bin/bash", "-euo", "pipefail", "-c"]`,
		Form: formAny, FormName: "a program and its arguments",
	},
	"step.mounts": {
		Doc: "What the script sees while it runs and no layer holds: caches, files beside the recipe, memory, secrets and an ssh agent.", Example: `["cache:ccache", "bind:src:/src", "secret:token"]`,
		Form: formAny, FormName: "mounts",
	},
	"step.network": {
		Doc: "Whether the script reaches the network.", Default: "true", Example: `false`,
	},

	"image": {Doc: "What the finished image says about itself."},
	"image.env": {
		Doc: "Environment variables of every process in the image. `PATH` starts with the virtual environment in any case.", Example: `{ NCCL_DEBUG = "INFO" }`,
		NameForm: formEnvName, NameFormName: "a letter or underscore, then letters, digits and underscores",
	},
	"image.unset": {
		Doc: "Variables of the base that the finished image does not have.", Example: `["NCCL_NET_PLUGIN"]`,
		Form: formEnvName, FormName: "names of variables",
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

	"slim": {Doc: "What is taken out of the image."},
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

	"slim.strip": {
		Doc:     "Whether symbols that only debuggers and linkers need are taken out of programs and libraries, the base's included. Libraries that wheels bring along (`*.libs`) are left as they are.",
		Default: "false", Example: `true`,
	},
	"slim.remove": {
		Doc:     "Files and directories that are left out, the base's included. A pattern without a slash is a name anywhere; any other starts at the root, with a slash in front or not. `**` stands for any number of directories.",
		Example: `["*.a", "/usr/share/doc/**", "**/tests/**"]`,
		Form:    formAny, FormName: "patterns",
	},
	"slim.package-caches": {
		Doc: "Whether what package managers download and list for themselves is left out, the base's included (apt, dnf, apk, pip, uv, conda).", Default: "false", Example: `true`,
	},

	"start": {Doc: "What a user of the image begins with. It changes no layer, but the order of what is in a `.sqsh` or `.sif` file."},
	"start.run": {
		Doc:     "Commands for the image's shell, each run once without network and GPU when `sconce build -o` writes such a file. What they read is written together, so that a start needs fewer reads of a slow disk.",
		Example: `["python -c 'import torch'"]`,
		Form:    formAny, FormName: "commands",
	},

	"check": {Doc: "How the finished image is judged: see `sconce check`."},
	"check.allow": {
		Doc:      "Rules whose findings are no errors for this image, each with the reason. `sconce check --list-rules` lists them.",
		Example:  `{ "python-requirement-unmet" = "we never import it" }`,
		NameForm: formRule, NameFormName: "the id of a rule",
		Form: formAny, FormName: "a reason",
	},

	"cache": {Doc: "Where what the build made is kept for other machines."},
	"cache.registry": {
		Doc:     "A repository, without a tag, from which layers of steps and compiled wheels are taken that another machine has made, and to which new ones are sent.",
		Example: `"registry.example.org/team/cache"`,
		Form:    formRepository, FormName: `a registry and a path, such as "registry.example.org/team/cache", without a tag`,
	},
	"cache.push": {
		Doc: "Whether new ones are sent there. `false` only reads.", Default: "true", Example: `false`,
	},

	"publish": {Doc: "Where the image goes."},
	"publish.repository": {
		Doc: "The repository that `sconce build --push` and `sconce push` send it to, without a tag.", Example: `"registry.example.org/team/llm-train"`,
		Form: formRepository, FormName: `a registry and a path, such as "registry.example.org/team/llm-train", without a tag`,
	},

	"publish.index": {
		Doc: "In a [pipeline](guide/pipeline.md#one-image-for-several-platforms), this variant, whose name ends in the architecture of its platform, is published as one " +
			"image with those of the same name for others: `small-amd64` and `small-arm64` as `small`.",
		Default: "false", Example: "true",
	},

	"job": {
		Doc:      "What the image is run as on a cluster, by a name: `sconce export sbatch --job NAME` writes the files.",
		NameForm: formJob, NameFormName: "letters, digits, dots, underscores and dashes, the first a letter or digit",
	},
	"job.NAME": {Doc: "The job of this name. What it leaves out is the cluster's, or Slurm's own."},
	"job.NAME.nodes": {
		Doc: "How many nodes it runs on.", Default: "1", Example: `4`, Min: 1, Max: 100000,
	},
	"job.NAME.time": {
		Doc: "How long it may run.", Default: "Slurm's own", Example: `"12h"`, Form: formTime, FormName: `a time such as "90m", "12h" or "1-12:00:00"`,
	},
	"job.NAME.launcher": {
		Doc:     "Who starts the processes: `srun` one for each GPU, with `RANK`, `LOCAL_RANK` and `WORLD_SIZE`; `torchrun` one launcher on each node, which starts those of its GPUs.",
		Default: job.Srun, Example: `"torchrun"`, Enum: job.Launchers,
	},
	"job.NAME.command": {
		Doc:     "What every process runs, as the shell reads it. Arguments after the script of the job go behind a single command. With `launcher = \"torchrun\"` it begins with `python`.",
		Example: `"python train.py --epochs 3"`, Form: formScript, FormName: "a command", Lines: true,
	},
	"job.NAME.workdir": {
		Doc:     "The directory that the command starts in.",
		Default: "the image's, where it has one, else the one that the job is submitted from", Example: `"${HOME}/my-app"`, Form: formJobPath, FormName: formJobPathName,
	},
	"job.NAME.mounts": {
		Doc:     "Files and directories of the host that the container sees, each `SRC[:DST[:ro]]`, besides those of the cluster's profile and the directory that the job is submitted from.",
		Example: `["${HOME}/my-app", "/datasets:/data:ro"]`, Form: formAny, FormName: "mounts",
	},
	"job.NAME.env": {
		Doc: "Environment variables, besides those of the cluster's profile. `${NAME}` is a variable of the host.", Example: `{ NCCL_DEBUG = "INFO" }`,
		NameForm: formEnvName, NameFormName: "a letter or underscore, then letters, digits and underscores",
	},
	"job.NAME.venv": {
		Doc:     "A virtual environment on top of the image's Python: its directory, or a squashfs file `FILE.sqsh[:DIR]` that is mounted at `DIR`, by default `/venv`. The command runs in it.",
		Example: `"${SCRATCH}/venvs/exp.sqsh"`, Form: formJobPath, FormName: formJobPathName,
	},
	"job.NAME.uenv": {
		Doc: "The uenv that the job runs in with the runtime `uenv`, as `--uenv` takes it, instead of the image's own Python environment.", Example: `"pytorch/v2.6.0:v1"`, Form: formOneWord, FormName: "one word",
	},
	"job.NAME.view": {
		Doc: "The view of the uenv; of one that sconce writes, `default` without this.", Example: `"default"`, Form: formOneWord, FormName: "one word",
	},
	"job.NAME.checkpoint": {Doc: "What saving the state of a training costs."},
	"job.NAME.checkpoint.takes": {
		Doc: "How long it takes. With the cluster's `reliability.mtbf-node`, the script says how often to save.", Example: `"90s"`, Form: formTime, FormName: `a time such as "90s"`,
	},
	"job.NAME.continue": {
		Doc:     "What follows when the time is up and the command, warned, has ended well: with `chain` a new job is submitted, with `requeue` the same one is queued again, which pyxis does not bear.",
		Default: job.No, Example: `"chain"`, Enum: job.Continues,
	},
	"job.NAME.warn-before": {
		Doc: "How long before its end the command gets SIGUSR1, to save.", Default: "no warning", Example: `"5m"`, Form: formTime, FormName: `a time such as "5m"`,
	},
	"job.NAME.array": {
		Doc: "Run it once for each of these numbers, as `sbatch --array` takes them.", Example: `"0-9%2"`, Form: formArray, FormName: `numbers and ranges, such as "0-9%2"`,
	},
	"job.NAME.dependency": {
		Doc: "When it may start, as `sbatch --dependency` takes it.", Example: `"singleton"`, Form: formOneWord, FormName: "one word",
	},
	"job.NAME.runtime": {
		Doc: "What starts it.", Default: "the first of the cluster's `runtimes`", Example: `"apptainer"`, Enum: cluster.Starters,
	},
	"job.NAME.tasks-per-node": {
		Doc: "How many processes a node has.", Default: "one for each GPU, else 1", Example: `4`, Min: 1, Max: 4096,
	},
	"job.NAME.cpus-per-task": {
		Doc: "How many CPUs each task of `srun` has.", Default: "its share of the node", Example: `72`, Min: 1, Max: 4096,
	},
	"job.NAME.gpus-per-node": {
		Doc: "How many GPUs of each node it has.", Default: "all", Example: `4`, Min: 0, Max: 64,
	},
	"job.NAME.account":     {Doc: "The account that it is charged to.", Default: "the profile's", Example: `"g123"`, Form: formOneWord, FormName: "one word"},
	"job.NAME.partition":   {Doc: "The partition that it goes to.", Default: "the profile's", Example: `"debug"`, Form: formOneWord, FormName: "one word"},
	"job.NAME.qos":         {Doc: "The quality of service that it asks for.", Default: "the profile's", Example: `"regular"`, Form: formOneWord, FormName: "one word"},
	"job.NAME.constraint":  {Doc: "Features that its nodes must have.", Default: "the profile's", Example: `"gpu&hbm80g"`, Form: formOneWord, FormName: "one word"},
	"job.NAME.reservation": {Doc: "The reservation that it runs in.", Example: `"course"`, Form: formOneWord, FormName: "one word"},
	"job.NAME.logs": {
		Doc: "The directory of its log, which starts where the job is submitted. `sconce submit` expands variables in it; sbatch itself expands none.", Default: "that directory itself", Example: `"logs"`, Form: formOneWord, FormName: "a path without blanks",
	},
	"job.NAME.options": {
		Doc: "Further options of `sbatch`.", Example: `["--exclusive"]`, Form: formOption, FormName: `options, such as "--exclusive"`,
	},

	"test": {Doc: "Tests of the image, which `sconce test` runs on a cluster or here. Nothing of them is in the image or in its key."},
	"test.name": {
		Doc: "What it is called.", Default: "what it uses", Example: `"bench"`, Form: formJob, FormName: "letters, digits, dots, underscores and dashes, the first a letter or digit",
	},
	"test.use": {
		Doc: "A test of the kit, which the image's Python runs: `env` (all ranks see the same versions, and their GPUs), `import`, `gpu` (it computes, and how fast), " +
			"`all-reduce`, `all-to-all` and `sendrecv` (through torch.distributed, with NCCL or, without GPUs, Gloo) and `mpi-pingpong` (mpi4py's).",
		Example: `"all-reduce"`, Enum: imagetest.Kit,
	},
	"test.run": {
		Doc:     "A command of one's own, instead of `use`, as the shell reads it. Every task runs it, with `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`.",
		Example: `"python tests/bench.py"`, Form: formScript, FormName: "a command", Lines: true,
	},
	"test.files": {
		Doc:     "Files and directories beside the recipe that the command finds under the same names where it starts. They are mounted, and never become part of the image.",
		Example: `["tests"]`, Form: formAny, FormName: "paths",
	},
	"test.modules": {
		Doc: "What `use = \"import\"` imports.", Default: `["torch"]`, Example: `["torch", "flash_attn"]`, Form: formModule, FormName: `names of modules, such as "torch" or "flash_attn"`,
	},
	"test.nodes":          {Doc: "How many nodes it runs on.", Default: "1", Example: `2`, Min: 1, Max: 100000},
	"test.tasks-per-node": {Doc: "How many tasks run on a node.", Default: "one for each GPU, else 1", Example: `4`, Min: 1, Max: 1024},
	"test.clusters": {
		Doc: "The clusters it runs on, by the names of their profiles.", Default: "all", Example: `["clariden"]`, Form: formOneWord, FormName: "names of clusters",
	},
	"test.time": {
		Doc: "How long one run may take. One that takes longer has failed.", Default: "10m", Example: `"5m"`, Form: formTime, FormName: `a time such as "90s", "10m" or "00:10:00"`,
	},
	"test.env": {
		Doc: "Environment variables, besides those of the cluster's profile.", Example: `{ NCCL_DEBUG = "INFO" }`,
		NameForm: formEnvName, NameFormName: "a letter or underscore, then letters, digits and underscores", Form: formAny, FormName: "a text",
	},
	"test.expect": {
		Doc: "What numbers must be that it prints, by their names: at least or at most another (`\">= 135 GB/s\"`), around it (`\"24 GB/s ± 5%\"`), or a part of the " +
			"cluster's reference (`\">= 90%\"`). GB are 10^9 bytes, GiB 2^30.",
		Example: `{ busbw = ">= 90%" }`, NameForm: formMeasurement, NameFormName: `the name of a measurement, such as "busbw" or "bandwidth@4194304"`,
		Form: formAny, FormName: `what a number is expected to be, such as ">= 135 GB/s"`,
	},
	"test.log": {
		Doc: "Regular expressions that must match lines of what it prints.", Example: `["Selected provider is cxi"]`, Form: formAny, FormName: "regular expressions",
	},
	"test.not-log": {
		Doc: "Regular expressions that must match nothing of it.", Example: `["NET/Socket"]`, Form: formAny, FormName: "regular expressions",
	},
	"test.reader": {
		Doc: "How its numbers are read: `lines` are `NAME = VALUE UNIT` or JSON objects with name, value and unit, `json` is the file of nccl-tests, " +
			"`table` what nccl-tests, OSU's benchmarks and mpi4py print.",
		Default: imagetest.Lines, Example: `"table"`, Enum: imagetest.Readers,
	},
	"test.repeat": {Doc: "How often it runs in a job. The median of each number counts, and every run must be good otherwise.", Default: "1", Example: `3`, Min: 1, Max: 99},
	"test.skip":   {Doc: "Why it does not run for now. It is reported as left out, which is not passed.", Example: `"waits for driver 570"`, Form: formImage, FormName: "a reason in a line"},
})

// withProfile adds the keys of profiles: those of a profile itself, below "profile", and below "target" all that may differ. How jobs are
// run is the profile's alone.
func withProfile(keys map[string]key) map[string]key {
	keys[profilePath] = key{Doc: "What a cluster is."}
	for table, doc := range map[string]string{
		"slurm": "What jobs ask of Slurm, and what its nodes have.", "paths": "Directories of the cluster. They may begin with a variable: `${SCRATCH}/images`.",
		"container": "What the runtime does with containers.", "reliability": "How often the cluster breaks.",
	} {
		keys[profilePath+"."+table] = key{Doc: doc}
	}
	for _, k := range cluster.Keys() {
		of := key{
			Doc: k.Doc, Example: k.Example, Form: k.Form, FormName: k.FormName, Enum: k.Enum, Min: k.Min, Max: k.Max,
			NameForm: k.NameForm, NameFormName: k.NameFormName,
		}
		if k.Name != envUenv {
			keys[profilePath+"."+k.Name] = of
		}
		if _, own := keys["target."+k.Name]; !own && k.Describes() && !k.OfJobs() {
			keys["target."+k.Name] = of
		}
	}
	return keys
}

// envUenv is a table in a table of the user's own keys, of which the schema is told by itself.
const envUenv = "env.uenv"

// profilePath is where the keys of a profile are that a file of its own has.
const profilePath = "profile"

// profile is the shape of a cluster's profile.
var profile = sync.OnceValue(func() *shape { return shapeOf(reflect.TypeFor[cluster.Profile](), "", profilePath) })

// shape is the type of a key: what the Go field makes of it.
type shape struct {
	name   string // last part of the path; "" for the root
	label  string // in place of path, in messages and documentation; "" is path
	path   string // dotted; in a shape for one table among several, how messages name the key
	header string // of a table: how the recipe writes it, "[python]" or "[[step]]"; "" for the root
	home   string // the header of the table that has the key
	key    key

	kind    kind     // kindTable, kindTables, kindString, kindBool, kindInteger or kindList (of strings)
	free    bool     // a table whose keys the user chooses, all strings
	lists   bool     // of a free table: all lists of strings
	overlay bool     // a table with the keys of the recipe that a variant can have
	element *shape   // of a table whose keys the user chooses, all tables: what each of them is
	names   []string // of a table with fixed keys, in the order of the Go fields
	fields  map[string]*shape
}

// chosen stands in paths for a key that the user chooses.
const chosen = "NAME"

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
		s.kind = kindTable
		s.addChosen(t.Elem())
	case reflect.Slice:
		s.kind = kindList
		if t.Elem().Kind() == reflect.Struct {
			s.kind = kindTables
			s.addFields(t.Elem())
		}
	case reflect.Bool:
		s.kind = kindBool
	case reflect.Int:
		s.kind = kindInteger
	case reflect.Interface:
		s.kind = kindAny
	default:
		s.kind = kindString
	}
	return s
}

func (s *shape) addFields(t reflect.Type) {
	s.fields = map[string]*shape{}
	s.header = s.writtenAs()
	s.addFieldsOf(t)
}

func (s *shape) addFieldsOf(t reflect.Type) {
	for f := range t.Fields() {
		name := f.Tag.Get("toml")
		path := strings.TrimPrefix(s.path+"."+name, ".")
		switch _, known := keys[path]; {
		case f.Anonymous:
			s.addFieldsOf(f.Type)
		case name == "-", t == reflect.TypeFor[cluster.Profile]() && !known: // its name is no key of [target]
		default:
			s.names = append(s.names, name)
			s.fields[name] = shapeOf(f.Type, name, path)
			s.fields[name].home = s.header
		}
	}
}

func (s *shape) addChosen(value reflect.Type) {
	s.header = s.writtenAs()
	s.lists = value.Kind() == reflect.Slice
	if s.free = value.Kind() == reflect.String || s.lists; s.free {
		return
	}
	if value.Kind() == reflect.Interface {
		path := s.path + "." + chosen
		s.element = &shape{name: chosen, path: path, header: "[" + path + "]", home: s.header, kind: kindTable, key: keys[path], overlay: true}
		return
	}
	s.element = shapeOf(value, chosen, s.path+"."+chosen)
	s.element.home = s.header
}

// variantShape is the shape of a variant: that of the recipe without what a variant cannot have.
var variantShape = sync.OnceValue(func() *shape {
	c := shape{name: chosen, path: "variant." + chosen, kind: kindTable, overlay: true, fields: map[string]*shape{}}
	for _, name := range root().names {
		if !slices.Contains(notOfVariants, name) {
			c.names = append(c.names, name)
			c.fields[name] = root().fields[name]
		}
	}
	return &c
})

// elementShape is the shape of the tables in a table whose keys the user chooses.
func (s *shape) elementShape() *shape {
	if s.element.overlay {
		return variantShape()
	}
	return s.element
}

// child is the shape of the table name in one of shape s, or nil where s has no such table.
func (s *shape) child(name string) *shape {
	if s.element != nil {
		return s.elementShape()
	}
	return s.fields[name]
}

// freeKind is what the values of a free table are.
func (s *shape) freeKind() kind {
	if s.lists {
		return kindList
	}
	return kindString
}

func (s *shape) writtenAs() string {
	switch {
	case s.path == "":
		return ""
	case s.kind == kindTables:
		return "[[" + s.path + "]]"
	default:
		return "[" + s.path + "]"
	}
}

// one returns the shape of one table among several of shape s, which messages call header and whose keys they name with
// the prefix.
func (s *shape) one(header, prefix string) *shape {
	c := *s
	c.header, c.fields = header, map[string]*shape{}
	for name, field := range s.fields {
		f := *field
		f.path = prefix + name
		c.fields[name] = &f
	}
	return &c
}

// said is how messages name the key.
func (s *shape) said() string { return cmp.Or(s.label, s.path) }

// isTable reports whether the key is a table of its own, rather than a value in one.
func (s *shape) isTable() bool { return (s.kind == kindTable || s.kind == kindTables) && !s.free }

// walk calls f for the shape and everything below it, parents first.
func (s *shape) walk(f func(*shape)) {
	f(s)
	for _, n := range s.names {
		s.fields[n].walk(f)
	}
	if s.element != nil {
		s.element.walk(f)
	}
}

// expected says which type the key takes, for messages.
func (s *shape) expected() string {
	switch {
	case s.lists:
		return "a table of lists of strings"
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
