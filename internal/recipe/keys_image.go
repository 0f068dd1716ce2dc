package recipe

// imageKeys are those of the finished image: its configuration, what is taken out of it, how it starts and is judged.
var imageKeys = map[string]key{
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
}
