package recipe

import "sconce.dev/sconce/internal/hostconfig"

// baseKeys are those of what an image is called, and what it is based on: base, target, system packages.
var baseKeys = map[string]key{
	"name": {
		Doc: "The image's name. It is also its name among the local images.", Example: `"llm-train"`,
		Form: formComponent, FormName: "lower-case letters and digits, with single dots, underscores or dashes between them",
	},
	"version": {
		Doc: "The image's version, used as its tag.", Default: DefaultVersion, Example: `"25.11"`,
		Form: formTag, FormName: "a tag: up to 128 letters, digits, underscores, dots and dashes, not starting with a dot or dash",
	},
	"host-config": {
		Doc: "What steps want to see of the configuration of the machine that builds: `pip`, `ca`, `npm`, `apt`, `conda`. None of it is in the " +
			"image or decides what it is. The recipe alone gets `ca`; the others may hold logins, and whoever builds shows them by `--host-config`.",
		Example: `["ca", "pip"]`, Enum: hostconfig.Kinds,
	},

	"base": {Doc: "What the image is based on: `image`, `bootstrap` or `recipe`, exactly one of them."},
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
		Doc: "Another recipe, `PATH` or `PATH:VARIANT`, whose image this one is based on: its directory or file, relative to this recipe's directory. " +
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

	"target": {Doc: "What the image runs on. With any key but `platform`, `sconce build` checks that the image will run there."},
	"target.cluster": {
		Doc: "The cluster's profile: a name that `sconce clusters` lists, or a file, relative to the recipe's directory, whose path has a slash in it or ends in `.toml`. " +
			"The other keys of this table override it. A file `clusters/NAME.toml` beside the recipe goes before any other of the name.",
		Example: `"clariden"`,
		Form:    formImage, FormName: "the name or the file of a cluster profile",
	},
	"target.platform": {
		Doc: "The operating system and processor. For the other processor, Python packages on an image are laid down without running any of it; steps and packages of the distribution take an emulator. " +
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
}
