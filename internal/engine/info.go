package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
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

// Answer is what came of asking a server.
type Answer struct {
	Address string `json:"address"`
	For     string `json:"for"` // what it is asked for
	Error   string `json:"error,omitempty"`
	Hint    string `json:"hint,omitempty"`
	Err     error  `json:"-"` // that is the Error
}

// answerTime is how long a server may take to answer.
const answerTime = 5 * time.Second

// askNetwork asks the servers that the user works with, all at once: registries, package indexes, and mirrors of distributions, which are
// those that were named and those of this machine's own packages, where bases from packages come from.
func askNetwork(ctx context.Context, logins []registry.Known, mirrors map[string]string) []Answer {
	var all []Answer
	add := func(address, what string) { all = append(all, Answer{Address: address, For: what}) }
	for _, k := range logins {
		name, _, _ := strings.Cut(k.Name, "/")
		servers, err := registry.Servers(name)
		if err != nil {
			all = append(all, Answer{Address: name, For: "images", Error: err.Error()})
		}
		for _, server := range servers {
			add("https://"+server+"/v2/", "images of "+name)
		}
	}
	for _, index := range Indexes() {
		add(index, "Python packages")
	}
	known := debian.OwnMirrors(debian.AptDir)
	maps.Copy(known, mirrors)
	for _, archive := range slices.Sorted(maps.Keys(known)) {
		add(known[archive], "packages of "+archive)
	}
	var wg sync.WaitGroup
	for i := range all {
		if all[i].Error == "" {
			wg.Go(func() { all[i].ask(ctx) })
		}
	}
	wg.Wait()
	return all
}

// ask asks once. Whatever the server says to somebody without a login, it is there; unless it is in trouble.
func (an *Answer) ask(ctx context.Context) {
	address := an.Address
	an.Address = fetch.Redact(address)
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err := head(ctx, address)
	switch {
	case err == nil || errors.Is(err, http.ErrSchemeMismatch): // that without encryption is asked again where it is used
	case errors.Is(err, context.DeadlineExceeded):
		an.Error, an.Hint = fmt.Sprintf("no answer within %s", answerTime), "a node without a way out? try a login node; a proxy is taken from HTTPS_PROXY"
	default:
		an.Error, an.Err = err.Error(), err
	}
}

func head(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, address, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: fetch.DefaultTransport(), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	var about *url.Error
	if errors.As(err, &about) {
		return about.Err // the address is told anyway, and may have a login in it
	}
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode >= http.StatusInternalServerError && resp.StatusCode != http.StatusNotImplemented { // of HEAD
		return errors.New(resp.Status)
	}
	return nil
}
