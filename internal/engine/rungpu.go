package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/device"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
)

// libraryPath is where the loader looks before all other places.
const libraryPath = "LD_LIBRARY_PATH"

// gpus is what the environment of a command needs to use GPUs. It is plain data; nil is for none.
type gpus struct {
	Env         []string `json:"env"`
	LibraryDirs []string `json:"libraryDirs"`
}

// environment returns env with it. The driver's libraries go before all others: a second copy in the image, of another version, could
// not talk to the kernel.
func (g *gpus) environment(env []string) []string {
	if g == nil {
		return env
	}
	return merged(env, append(slices.Clone(g.Env), libraryPath+"="+searchPath(g.LibraryDirs, env)))
}

// addGPUs gives a sandbox the GPUs of this machine.
func addGPUs(ctx context.Context, run *sandbox.Options, config v1.Config, request string) (*gpus, error) {
	found, err := device.Host{}.Find(request)
	if err != nil {
		return nil, fmt.Errorf("--gpu: %w", err)
	}
	binds := make([]sandbox.Bind, 0, len(found.Binds)+len(run.Binds))
	for _, b := range found.Binds {
		binds = append(binds, sandbox.Bind{Source: b.Source, Target: b.Target, ReadOnly: b.ReadOnly})
	}
	run.Binds = append(binds, run.Binds...) // the user's own may cover some of them
	warnSlimmed(ctx, config, device.Capabilities(ctx))
	return &gpus{found.Env, found.LibraryDirs}, nil
}

// searchPath puts directories before those of the command's environment.
func searchPath(dirs, env []string) string {
	for _, kv := range env {
		if have, ok := strings.CutPrefix(kv, libraryPath+"="); ok && have != "" {
			dirs = append(slices.Clone(dirs), have)
		}
	}
	return strings.Join(dirs, ":")
}

// warnSlimmed says so when the image has lost the code for a GPU of this machine.
func warnSlimmed(ctx context.Context, config v1.Config, capabilities []string) {
	kept := strings.Fields(config.Labels[image.LabelSlim])
	for _, c := range capabilities {
		if len(kept) > 0 && !slices.ContainsFunc(kept, func(k string) bool { return runsOn(k, c) }) {
			progress.Warn(ctx,
				fmt.Sprintf("the image was slimmed to GPUs of compute capability %s, and this machine has one of %s", strings.Join(kept, ", "), c),
				"its kernels may be missing: use the image that was not slimmed, or slim that for "+c+" as well")
		}
	}
}

// runsOn is whether machine code for a compute capability runs on a GPU of another one, both as "9.0".
func runsOn(code, gpu string) bool {
	arch := func(capability string) fatbin.Arch { return fatbin.ParseArch(strings.ReplaceAll(capability, ".", "")) }
	return arch(code).RunsOn(arch(gpu).SM)
}
