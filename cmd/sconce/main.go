// Command sconce builds container images that hold PyTorch.
package main

import (
	"os"

	"sconce.dev/sconce/internal/cli"
	"sconce.dev/sconce/internal/sandbox"
)

func main() {
	sandbox.Init() // does not return in a process that is to become a sandbox
	os.Exit(cli.Main())
}
