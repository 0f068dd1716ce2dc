// Package host says what the machine that sconce runs on can do: its kernel, whether user namespaces are allowed, how many
// cores and how much memory this process may really use, which external programs are there, and what lies under the store.
//
// Everything is read from /proc, /sys and the environment, nothing is changed. What cannot be read counts as no limit.
package host

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Report is everything there is to know about a host.
type Report struct {
	Kernel   string     `json:"kernel"`   // release, as uname -r prints it
	Platform string     `json:"platform"` // linux/amd64 or linux/arm64
	UserID   int        `json:"userID"`   // effective
	Refusals []Refusal  `json:"refusals"` // settings that keep ordinary users from running a sandbox
	Cores    Cores      `json:"cores"`
	Memory   Memory     `json:"memory"`
	Store    StorePlace `json:"store"`
	Tools    []Tool     `json:"tools"`
}

// StorePlace is where the store is.
type StorePlace struct {
	Dir     string `json:"dir"`
	Refused string `json:"writeError,omitempty"` // why this user cannot write there, nor make it
	FileSystem
}

// Collect looks at this host; storeDir need not exist yet. It takes as long as the external programs need to print their
// versions.
func Collect(ctx context.Context, storeDir string) Report {
	return Report{
		Kernel:   KernelRelease(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
		UserID:   os.Geteuid(),
		Refusals: Refusals(),
		Cores:    AvailableCores(),
		Memory:   AvailableMemory(),
		Store:    storePlace(storeDir),
		Tools:    FindTools(ctx),
	}
}

func storePlace(dir string) StorePlace {
	at := existing(dir)
	p := StorePlace{Dir: dir, FileSystem: FileSystemOf(at)}
	if err := unix.Access(at, unix.W_OK); err != nil {
		p.Refused = fmt.Sprintf("%s: %v", at, err)
	}
	return p
}

// UntrustedFix is what to do where a server shows a certificate that nobody whom this machine trusts has signed.
const UntrustedFix = "nobody that this machine trusts has signed the server's certificate: SSL_CERT_FILE names a file with your site's authority"
