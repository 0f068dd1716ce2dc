package recipe

// condaKeys are those of the conda environment.
var condaKeys = map[string]key{
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
}
