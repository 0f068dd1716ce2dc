package bootstrap

import (
	"archive/tar"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/mirrortest"
	"sconce.dev/sconce/internal/tooltest"
)

// Files in which ours and mmdebstrap's system differ, and why they may.
var differ = map[string]string{
	"etc/hostname":                   "this machine's, which an image should not have",
	"etc/resolv.conf":                "likewise",
	"etc/group-":                     "a backup",
	"etc/passwd-":                    "a backup",
	"etc/shadow-":                    "a backup",
	"etc/gshadow-":                   "a backup",
	"etc/subuid-":                    "a backup",
	"etc/subgid-":                    "a backup",
	"var/cache/debconf/config.dat":   "in ours debconf does not note that it has shown questions that it shows to nobody",
	"var/cache/apt/archives/lock":    "of the apt that runs outside of the system",
	"var/lib/apt/lists/lock":         "likewise",
	"var/lib/apt/extended_states":    "likewise, and empty",
	"var/cache/apt/archives/partial": "likewise: its owner",
	"var/lib/apt/lists/partial":      "likewise",
}

// ignored reports whether two systems may differ in a path.
func ignored(path string) bool {
	return differ[path] != "" || strings.HasPrefix(path, "dev/") || path == "." || strings.HasSuffix(path, "-old")
}

// mmdebstrap is the judge: from the same packages it makes the same files, of the same owners, permissions and times. The times of
// directories tell in which order packages were unpacked, and are left out.
func TestAsMmdebstrap(t *testing.T) {
	if testing.Short() {
		t.Skip("bootstraps twice")
	}
	if os.Geteuid() != 0 {
		t.Skip("mmdebstrap as root needs root")
	}
	tooltest.Path(t, "mmdebstrap")
	tooltest.Path(t, "apt-get")
	p := resolved(t, Request{Suite: "bookworm", Architecture: runtime.GOARCH})
	theirs := filepath.Join(t.TempDir(), "root.tar")
	out, err := mirrortest.Run(func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
			"--include=apt,usr-is-merged", "bookworm", theirs, "-")
		cmd.Stdin = strings.NewReader(p.Sources)
		cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", p.Epoch.Unix()), "DPKG_FORCE="+dpkgForce, "LC_ALL=C.UTF-8")
		return cmd
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	st, _ := openStore(t)
	d, err := Build(t.Context(), st, fetch.New(st, fetch.Options{}), p, layer.Options{Compression: layer.None})
	if err != nil {
		t.Fatal(err)
	}
	ours, err := st.BlobPath(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	want, got := listing(t, theirs), listing(t, ours)
	if len(want) < 5000 {
		t.Errorf("mmdebstrap made %d files", len(want))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("not as mmdebstrap makes it (-its +ours):\n%s", diff)
	}
}

// listing says of every file of a tar what it is.
func listing(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string]string{}
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		path := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
		if path == "" || ignored(path) {
			continue
		}
		text := fmt.Sprintf("%c %o %d:%d %s", h.Typeflag, h.Mode, h.Uid, h.Gid, strings.TrimPrefix(h.Linkname, "./"))
		if h.Typeflag != tar.TypeDir {
			sum := sha256.New()
			if _, err := io.Copy(sum, r); err != nil {
				t.Fatal(err)
			}
			text += fmt.Sprintf(" %d %x", h.ModTime.Unix(), sum.Sum(nil))
		}
		all[path] = text
	}
}
