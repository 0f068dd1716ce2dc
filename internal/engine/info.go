package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/sandbox"
)

// Machine is what this machine offers.
type Machine struct {
	Sandbox SandboxState `json:"sandbox"`
	host.Report
	Scratch *ScratchState    `json:"scratch,omitempty"` // where it is not the store
	Quota   *host.Quota      `json:"quota,omitempty"`   // on the store's file system, where one is set
	Logins  []registry.Known `json:"logins"`            // where there are logins for, without them
	Network []Answer         `json:"network,omitempty"` // who answers, where that was asked
}

// SandboxState says whether commands can be run in images.
type SandboxState struct {
	Works bool   `json:"works"`
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
	FUSE  string `json:"fuseError,omitempty"` // why images have to be unpacked before they run

	Network string `json:"networkError,omitempty"` // why steps have this machine's network and none of their own

	Foreign *ForeignState `json:"foreign,omitempty"` // where there is a sandbox
}

// ForeignState says whether programs of images for the other architecture run.
type ForeignState struct {
	Platform string `json:"platform"`
	Emulator string `json:"emulator,omitempty"` // by which; none where one is registered with the machine's kernel
	Error    string `json:"error,omitempty"`    // why they do not run
	Hint     string `json:"hint,omitempty"`
}

func foreignState() *ForeignState {
	arch := "arm64"
	if runtime.GOARCH == arch {
		arch = "amd64"
	}
	f := &ForeignState{Platform: "linux/" + arch}
	if err := sandbox.CheckArchitecture(arch); err != nil {
		f.Error, f.Hint = err.Error(), fault.HintOf(err)
		return f
	}
	f.Emulator = sandbox.Emulator(arch)
	return f
}

// LookOptions say what counts on a machine.
type LookOptions struct {
	Network bool              // ask the servers that the user works with whether they answer
	Mirrors map[string]string // addresses of distributions' archives that site and user have named, by archive
	UV      *config.UV        // the release of uv that is asked for; nil: none

	Scratch, ScratchBy string // what [Options] have, and who says so
}

// LookAround finds out what this machine offers to a store in dir, which stays missing if it is.
func LookAround(ctx context.Context, dir string, o LookOptions, open Opener) (Machine, error) {
	m := Machine{Sandbox: SandboxState{Works: true}, Report: host.Collect(ctx, dir)}
	if err := ctx.Err(); err != nil {
		return m, err
	}
	m.Scratch = scratchOf(dir, o)
	findUV(ctx, dir, m.Tools, o.UV, open)
	m.Quota, m.Logins = host.QuotaOf(dir), registry.Logins()
	if o.Network {
		m.Network = askNetwork(ctx, m.Logins, o.Mirrors)
	}
	if err := sandbox.Check(); err != nil {
		m.Sandbox = SandboxState{Error: err.Error(), Hint: fault.HintOf(err)}
	} else {
		m.Sandbox.Foreign = foreignState()
	}
	if err := fuse.Check(); err != nil {
		m.Sandbox.FUSE = withRemedy(fault.Hint(err, "an administrator loads the kernel's module fuse, and lets all users open /dev/fuse"))
	}
	if err := sandbox.CheckNetwork(); err != nil && m.Sandbox.Works {
		m.Sandbox.Network = withRemedy(err)
	}
	if m.Refusals == nil {
		m.Refusals = []host.Refusal{} // [] rather than null
	}
	return m, nil
}

// withRemedy is an error with what can be done about it in one line.
func withRemedy(err error) string {
	if hint := fault.HintOf(err); hint != "" {
		return err.Error() + "; " + hint
	}
	return err.Error()
}

// ScratchState is where layers are unpacked and steps write. Without a directory it is the store.
type ScratchState struct {
	host.LocalPlace
	Why string `json:"why"`
}

func scratchOf(storeDir string, o LookOptions) *ScratchState {
	if dir := o.Scratch; dir != "" {
		return &ScratchState{host.LocalPlace{Dir: dir, Type: host.FileSystemOf(dir).Type, Room: host.FileSystemOf(dir).Free}, "as " + o.ScratchBy + " says"}
	}
	tmp := filepath.Join(storeDir, "tmp-v1")
	if _, err := os.Stat(tmp); err != nil { // no store yet, or one of a group
		tmp = storeDir
	}
	local := localOfJob()
	place, reason, err := host.PlaceInstead(tmp, local.dirs()...)
	if reason == nil || errors.Is(reason, fs.ErrNotExist) || errors.Is(reason, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return &ScratchState{host.LocalPlace{}, err.Error()}
	}
	return &ScratchState{place, "layers are unpacked, and steps write, there for the time of a command" + local.because(place.Dir) + ", as the store cannot hold them: " + reason.Error()}
}

// findUV says which uv is used, and why: the one that is asked for, else the one on PATH, else the one that comes by itself. A store
// that is not there yet stays so.
func findUV(ctx context.Context, dir string, tools []host.Tool, asked *config.UV, open Opener) {
	t := &tools[slices.IndexFunc(tools, func(t host.Tool) bool { return t.Name == "uv" })]
	switch {
	case asked != nil:
		t.Path, t.Version, t.Why = "", "", "as [uv] in "+asked.File+" says"
		t.Install = fmt.Sprintf("uv %s, %s, comes by itself, from your Python index, when it is needed first", asked.Version, t.Why)
	case t.Path != "":
		t.Why = "the one on PATH"
		return
	default:
		t.Why = "as there is none on PATH"
	}
	if _, err := os.Stat(dir); err != nil {
		return
	}
	s, err := open(ctx)
	if err != nil {
		return // what is wrong with the store is told by the commands that need it
	}
	if path, version, ok := s.StoredUV(); ok {
		t.Path, t.Version, t.Why = path, "uv "+version, "brought by sconce, "+t.Why
	}
}
