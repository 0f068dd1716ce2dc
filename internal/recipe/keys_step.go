package recipe

// stepKeys are those of the user's own steps.
var stepKeys = map[string]key{
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
}
