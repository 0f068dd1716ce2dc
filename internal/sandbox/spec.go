package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/users"
)

// initName is the argv[0] by which the second process knows what it is.
const initName = "sconce-sandbox-init"

// The file descriptors that init is started with, after its standard streams. From firstPipeFD on come the pipes of a
// group: standard input and output of each process in turn. Last come the sockets of spec.socketFD and spec.networkFD, where they are needed.
const (
	controlFD   = 3
	statusFD    = 4
	firstPipeFD = 5
)

// spec is what the caller tells init.
type spec struct {
	Layers   []string          `json:"layers"`
	Trees    []int             `json:"trees"`   // what the caller serves: see ofImage
	Scratch  string            `json:"scratch"` // holds upper and work; "" for memory
	Keep     bool              `json:"keep"`    // what the command changes is kept
	Count    int               `json:"count"`   // processes to start
	Piped    bool              `json:"piped"`   // each process has pipes of its own
	Args     []string          `json:"args"`
	Env      []string          `json:"env"`
	WorkDir  string            `json:"workDir"`
	UID      int               `json:"uid"`
	GID      int               `json:"gid"`
	Groups   []int             `json:"groups"`
	Self     *users.Account    `json:"self"`
	Binds    []Bind            `json:"binds"`
	Tmpfs    []string          `json:"tmpfs"`
	Mounts   []Mount           `json:"mounts"`
	Hostname string            `json:"hostname"`
	ReadOnly bool              `json:"readOnly"`
	Loopback bool              `json:"loopback"` // the network is private: bring its loopback device up
	Outside  bool              `json:"outside"`  // the private network has a way out: make its device
	IPv6     bool              `json:"ipv6"`     // the way out leads to hosts of IPv6 too
	UserNS   bool              `json:"userNS"`   // root only within a user namespace
	AllIDs   bool              `json:"allIDs"`   // of the host's root, who has all users there, see setForeign
	Foreign  *foreign          `json:"foreign"`  // nil where the image is for this machine
	Resolv   []byte            `json:"resolv"`   // content of /etc/resolv.conf, nil for none
	Hosts    []byte            `json:"hosts"`    // content of /etc/hosts, nil for none
	Emulate  bool              `json:"emulate"`  // root's calls, see package rootemu
	Known    [][]rootemu.Entry `json:"known"`    // by mount: what was asked for its files before
	NoMounts bool              `json:"noMounts"`
	Limit    int               `json:"limit"`  // processes and threads, 0 for any number
	Probe    bool              `json:"probe"`  // only try whether it can be done
	Shared   bool              `json:"shared"` // see Options.Shared; nothing is started

	Period time.Duration `json:"period"` // see waitingPeriod
}

// socketFD is the file descriptor of the socket over which a caller who serves the image's files gets the device.
func (s *spec) socketFD() int {
	if s.Piped {
		return firstPipeFD + 2*s.Count
	}
	return firstPipeFD
}

// networkFD is the file descriptor of the socket over which the caller gets the device of the sandbox's network.
func (s *spec) networkFD() int {
	if len(s.Trees) > 0 {
		return s.socketFD() + 1
	}
	return s.socketFD()
}

// message is one thing that init tells the caller, a line of JSON each. An empty one says that it runs.
type message struct {
	Warning string `json:"warning,omitempty"`
	Waiting string `json:"waiting,omitempty"` // who waits, for what and since when
	Failure *Error `json:"failure,omitempty"`
	Started bool   `json:"started,omitempty"`
	Exit    *exit  `json:"exit,omitempty"`

	Owners []rootemu.Entry `json:"owners,omitempty"`
	Mount  int             `json:"mount,omitempty"` // whose owners they are, counted from 1; 0 for those of the image
}

// exit is the end of one process.
type exit struct {
	Index int `json:"index"`
	Code  int `json:"code"`
}

func newSpec(o Options, count int) (*spec, error) {
	s := &spec{
		Count: count, Args: o.Args, Env: o.Env, Binds: o.Binds, Tmpfs: o.Tmpfs, Mounts: o.Mounts, Limit: o.MaxProcesses, NoMounts: o.NoMounts,
		WorkDir: path.Join("/", o.WorkDir), UID: o.UID, GID: o.GID, Groups: o.Groups, Self: o.Self, Hostname: o.Hostname, ReadOnly: o.ReadOnly, Loopback: o.NoNetwork || o.OwnNetwork, Outside: o.OwnNetwork && !o.NoNetwork, Shared: o.Shared,
		Resolv: hostFile("/etc/resolv.conf"), Hosts: hostFile("/etc/hosts"),
	}
	var served []fuse.Node
	s.Layers, served = imageLayers(o)
	_, s.Trees = treesOf(o)
	switch {
	case len(s.Trees) > maxTrees:
		return nil, fmt.Errorf("more than %d trees of files", maxTrees)
	case o.Tree != nil && len(o.Layers) > 0:
		return nil, errors.New("the image is given twice, as layers and as a tree")
	case len(served) != servedAmong(s.Layers):
		return nil, errors.New("there must be a tree for each layer that is served")
	case len(s.Layers) == 0:
		return nil, &Error{What: "the image has no layers, so there is nothing to run", Code: codeNotMade}
	case len(s.Layers) > MaxLayers:
		return nil, &Error{What: fmt.Sprintf("the image has %d layers; the kernel can stack %d", len(s.Layers), MaxLayers), Code: codeNotMade}
	case len(o.Args) == 0 || o.Args[0] == "":
		return nil, fault.Usage(fmt.Errorf("no command to run: the image names none, so one must be given"))
	}
	if o.Hostname != "" && s.Hosts != nil {
		s.Hosts = fmt.Appendf(s.Hosts, "\n127.0.1.1\t%s\n", o.Hostname)
	}
	if err := checkUpper(o); err != nil {
		return nil, err
	}
	if err := checkMounts(o.Mounts); err != nil {
		return nil, err
	}
	return s, checkBinds(o.Binds)
}

func checkBinds(binds []Bind) error {
	for _, b := range binds {
		if !filepath.IsAbs(b.Source) || !path.IsAbs(b.Target) || path.Clean(b.Target) == "/" {
			return fault.Usage(fmt.Errorf("bind %s to %s: both must be absolute paths, and the second not /", b.Source, b.Target))
		}
		if _, err := os.Stat(b.Source); err != nil {
			return fault.Usage(fmt.Errorf("bind to %s: %w", b.Target, err))
		}
	}
	return nil
}

// withoutRepeats drops every layer that comes again higher up, which the kernel refuses: whatever the lower of two equal
// layers adds or hides, the upper one adds or hides as well.
func withoutRepeats(layers []string) []string {
	var kept []string
	for i, l := range layers {
		if l == ServedLayer || !slices.Contains(layers[i+1:], l) {
			kept = append(kept, l)
		}
	}
	return kept
}

// servedAmong counts the layers that are served.
func servedAmong(layers []string) (n int) {
	for _, l := range layers {
		if l == ServedLayer {
			n++
		}
	}
	return n
}

// maxHostFile bounds the files of /etc that are given to the image.
const maxHostFile = 1 << 20

// hostFile returns the content of a file of the host, nil if it cannot be read. The sandbox gets a copy, so that a
// command running as root cannot change the host's.
func hostFile(name string) []byte {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxHostFile))
	if err != nil {
		return nil
	}
	return append([]byte{}, b...)
}
