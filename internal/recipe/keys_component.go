package recipe

// componentKeys are those of what is built from sources.
var componentKeys = map[string]key{
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
}
