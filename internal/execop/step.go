// Package execop runs one command of a build in the sandbox, on the layers of an image, and makes a layer of what it changed.
//
//	step.go     what callers use               run.go       from the command to its layer
//	attach.go   mounts                         copytree.go  what a cache begins with
//	user.go     who the command runs as        agent.go     connections to an SSH agent
//	output.go   what it prints, and its log    failure.go   why it failed
//	network.go  which network it has
package execop

import (
	"context"
	"sync"

	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/hostconfig"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
)

// MaxLayers is how many layers a command can stand on: all that can be stacked but one, which holds the mount points.
const MaxLayers = sandbox.MaxLayers - 1

// Command is what a step runs. It is plain data: its JSON, together with what it runs on, decides the result, and so goes
// into a step's key.
type Command struct {
	Args      []string // the first is looked up along the PATH of Env
	Env       []string // the whole environment, as KEY=VALUE; PATH, HOME and SOURCE_DATE_EPOCH are filled in when missing
	WorkDir   string   // absolute, made when missing; "" is /
	User      string   // USER[:GROUP], by name in the image or by number; "" is root
	Mounts    []Mount
	NoNetwork bool
	Files     []File

	// Arch is the architecture of the image's programs, by Go's name; "" is this machine's. How they run changes nothing of what they do.
	Arch string `json:"-"`

	// Answer is an exit code by which the command answers instead of doing what it is for: a [Failure] to the caller, and none to who
	// watches. 0 is none.
	Answer int
}

// File is a small file that the command sees, read-only, and that no layer keeps.
type File struct {
	Target  string // absolute
	Mode    uint32 // 0 is 0644
	Content []byte
}

// Kind says where the files of a [Mount] come from.
type Kind string

// The kinds of mount.
const (
	Cache  Kind = "cache"  // a directory of the store that lasts from build to build
	Bind   Kind = "bind"   // files of another image or of the host
	Tmpfs  Kind = "tmpfs"  // an empty directory in memory
	Secret Kind = "secret" // a file that is only ever in memory
	SSH    Kind = "ssh"    // the socket of an SSH agent
)

// Sharing says what happens when two commands want one cache at once.
type Sharing string

// The ways to share a cache.
const (
	Shared  Sharing = "shared"  // both use it
	Private Sharing = "private" // the second gets one of its own
	Locked  Sharing = "locked"  // the second waits
)

// Mount makes something visible that is not part of the image while the command runs.
type Mount struct {
	Kind     Kind
	Target   string             // absolute; "" of a secret is /run/secrets/ID, of an agent a place of its own
	ID       string             // of a cache ("" is Target), secret or agent ("" is "default")
	Sharing  Sharing            // of a cache; "" is Shared
	Layers   []layer.Descriptor `json:"-"` // lowest first. Bind: files of an image. Cache: what it begins with
	Dir      string             `json:"-"` // Bind: instead of Layers, an absolute path of the host
	Tree     fuse.Node          `json:"-"` // Bind: instead of both, files that this process serves, read-only
	Source   string             // path within Layers or Dir
	From     string             // what Layers or Dir are, for the key
	ReadOnly bool               // without it, what is written over Layers is forgotten and what is written to Dir reaches the host
	Size     int64              // Tmpfs: bytes, 0 for no limit
	Mode     uint32             // permissions; 0 is 0755 of a cache, 0400 of a secret, 0600 of an agent, 1777 of a tmpfs
	UID, GID int                // owner of a cache, a tmpfs, a secret or an agent's socket
	Required bool               // Secret, SSH: it is an error when there is none
	Env      string             // Secret: the variable that has it too; without a Target it is only there
}

// Runner runs steps. Its methods may be called from many goroutines. It is not copied once it has run one.
type Runner struct {
	Store   *store.Store
	Layer   layer.Options
	Secrets map[string]func() ([]byte, error) // by ID
	SSH     map[string]string                 // by ID: path of an agent's socket
	Pass    []string                          // KEY=VALUE given to commands that have no such name, and in no key: proxies
	Host    *hostconfig.Config                // what commands see of this machine's configuration, in no key and no layer; nil: nothing

	// HostNetwork gives commands this machine's network. Otherwise they have one of their own from which what others offer can be
	// reached, and what this machine offers to itself cannot, where there can be such a network.
	HostNetwork bool

	MaxProcesses int // that a command may have at once, 0 for sandbox.DefaultProcesses

	// OnFailure, unless nil, is called when a command has failed, with what runs another one where it stood: in the same file
	// system, with the same mounts. Its changes are in no layer. It is called for one failure at a time.
	OnFailure func(ctx context.Context, f *Failure, o sandbox.Options)

	shell  sync.Mutex // held while OnFailure is called
	warned sync.Once  // of the network that commands have

	tryNetwork func() error // for tests: instead of sandbox.CheckNetwork
}

// Run runs a command on layers, lowest first, and returns the layer of what it changed. title names it in progress, log and
// errors. A command that ended with another exit code than 0 is a [*Failure].
func (r *Runner) Run(ctx context.Context, title string, on []layer.Descriptor, c Command) (layer.Descriptor, error) {
	return r.run(ctx, title, on, c)
}
