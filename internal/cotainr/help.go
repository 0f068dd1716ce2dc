package cotainr

import "strings"

// command is what the user is told of one.
type command struct {
	name  string
	usage string // lines
	about string
}

func (c *command) help() string { return c.usage + "\n" + strings.TrimLeft(c.about, "\n") }

var mainCommand = command{
	name:  "cotainr",
	usage: "usage: cotainr [-h] [--version] {build,info} ...\n",
	about: `
Build containers for clusters, as cotainr does, by sconce.

options:
  -h, --help    print this text
  --version     print which cotainr this is like, and the version of sconce

subcommands:
  {build,info}
    build       Build a container from a base image.
    info        Say what is needed here to build, and which systems are known.

"cotainr build --help" says more. Environment: SCONCE_COTAINR_SYSTEMS is the
file of the systems, SCONCE_STORE the directory of what was built and
downloaded before.
`,
}

var infoCommand = command{
	name:  "cotainr info",
	usage: "usage: cotainr info [-h]\n",
	about: `
Say what is needed here to build, and which systems are known.

options:
  -h, --help  print this text
`,
}
