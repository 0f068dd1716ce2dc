package host

import (
	"context"
	"os/exec"
	"strings"
	"sync"
	"time"

	"sconce.dev/sconce/internal/child"
)

// Tool is an external program that sconce uses for something.
type Tool struct {
	Name    string `json:"name"`
	Purpose string `json:"purpose"`
	Path    string `json:"path,omitempty"`    // "" when it is not on PATH
	Version string `json:"version,omitempty"` // first line of what it prints when asked
	Why     string `json:"why,omitempty"`     // why it is this one, where another may be meant
	Install string `json:"install"`           // a command that installs it
}

// tools are the programs that sconce may call, and how each is asked for its version. It runs images, and reads and writes
// registries and all archive formats itself, so none is needed for those.
var tools = []struct {
	Tool
	versionFlag string // "" for a program that has none
}{
	{Tool{Name: "uv", Purpose: "resolves Python packages (sconce lock, the first sconce build)", Install: "it comes by itself, from the Python index that pip or uv is told, when it is needed first"}, "--version"},
	{Tool{Name: "git", Purpose: "fetches Python packages that a recipe names by a git URL", Install: "apt-get install git, or dnf install git"}, "--version"},
}

// versionTimeout bounds how long a program may take to print its version: on a network file system the first start is slow.
const versionTimeout = 5 * time.Second

// FindTools looks up on PATH every external program that sconce may call, in a fixed order.
func FindTools(ctx context.Context) []Tool {
	found := make([]Tool, len(tools))
	var wg sync.WaitGroup
	for i, t := range tools {
		found[i] = t.Tool
		path, err := exec.LookPath(t.Name)
		if err != nil {
			continue
		}
		found[i].Path = path
		if t.versionFlag != "" {
			wg.Go(func() { found[i].Version = versionOf(ctx, path, t.versionFlag) })
		}
	}
	wg.Wait()
	return found
}

// versionOf returns the first line that a program prints when asked for its version, "" when it does not tell.
func versionOf(ctx context.Context, path, flag string) string {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, flag)
	cmd.WaitDelay = time.Second
	out, err := child.Output(cmd)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}
