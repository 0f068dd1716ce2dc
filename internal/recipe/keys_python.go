package recipe

// pythonKeys are those of Python packages, and how they are compiled.
var pythonKeys = map[string]key{
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
		Doc: "Whether modules are compiled when the image is built, so that a read-only image starts fast. Tests that wheels bring are not " +
			"(`test_*.py` below a directory `tests`): programs do not import them, and pytest compiles them itself.",
		Default: "true", Example: `false`,
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
}
