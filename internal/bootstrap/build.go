package bootstrap

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/child"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tempdir"
)

// Version is the version of the code below: it enters the key of every bootstrapped base.
const Version = 2

// Build makes the layer that p pins. What a base lacks of the packages is downloaded first, in parallel.
func Build(ctx context.Context, st *store.Store, fetcher *fetch.Client, p *Pinned, o layer.Options) (layer.Descriptor, error) {
	if err := download(ctx, fetcher, p); err != nil {
		return layer.Descriptor{}, err
	}
	task := progress.Begin(ctx, "bootstrap", p.Suite, 0)
	d, err := build(ctx, task, st, p, o)
	return d, task.End(err)
}

func download(ctx context.Context, fetcher *fetch.Client, p *Pinned) error {
	var requests []fetch.Request
	for _, pkg := range p.Packages {
		requests = append(requests, fetch.Request{URL: pkg.URL, Digest: pkg.SHA256, Size: pkg.Size, Name: pkg.Name + " " + pkg.Version})
	}
	return fetcher.Blobs(ctx, requests)
}

func build(ctx context.Context, task *progress.Task, st *store.Store, p *Pinned, o layer.Options) (layer.Descriptor, error) {
	var none layer.Descriptor
	dir, remove, err := tempdir.Make("bootstrap") // not in the store: apt reads the packages as a user of its own
	if err != nil {
		return none, err
	}
	defer remove()
	if err := os.Chmod(dir, 0o755); err != nil {
		return none, err
	}
	if err := makeMirror(ctx, st, dir, p.Packages); err != nil {
		return none, fmt.Errorf("prepare the packages of %s: %w", p.Suite, err)
	}
	root := filepath.Join(dir, "root.tar")
	if err := run(ctx, task, dir, "", p.Epoch, buildArgs(dir, root, p)); err != nil {
		return none, fmt.Errorf("bootstrap %s: %w", p.Suite, err)
	}
	f, err := os.Open(root)
	if err != nil {
		return none, err
	}
	defer f.Close()
	o.ModTime = p.Epoch
	return layer.FromTar(ctx, st, withoutDevices(f), o)
}

// makeMirror offers the packages as a flat repository: the files and a Packages index, deb822(5) stanzas made of each
// package's own control fields.
func makeMirror(ctx context.Context, st *store.Store, dir string, packages []Package) error {
	var index bytes.Buffer
	for i, pkg := range packages {
		// The file name must not carry an epoch's colon; the number keeps names apart.
		name := fmt.Sprintf("%04d_%s.deb", i, pkg.Name)
		if err := st.CopyBlob(pkg.SHA256, filepath.Join(dir, name)); err != nil {
			return err
		}
		control, err := child.Output(exec.CommandContext(ctx, "dpkg-deb", "--field", filepath.Join(dir, name)))
		if err != nil {
			return fmt.Errorf("read the control fields of %s: %w", pkg.Name, err)
		}
		fmt.Fprintf(&index, "%s\nFilename: ./%s\nSize: %d\nSHA256: %s\n\n", bytes.TrimSpace(control), name, pkg.Size, pkg.SHA256.Hex())
	}
	return os.WriteFile(filepath.Join(dir, "Packages"), index.Bytes(), 0o644)
}

// buildArgs asks for all pinned packages from the one mirror that has nothing else, and puts the real sources back.
func buildArgs(dir, root string, p *Pinned) []string {
	names := make([]string, len(p.Packages))
	for i, pkg := range p.Packages {
		names[i] = pkg.Name
	}
	setSources := fmt.Sprintf(`printf %%s %s > "$1/etc/apt/sources.list"; rm -f "$1"/etc/apt/sources.list.d/*`, quote(p.Sources))
	return []string{
		"--variant=apt", "--format=tar", "--architectures=" + p.Architecture,
		"--hook-dir=" + mergedUsrHooks,
		"--include=" + strings.Join(names, ","),
		"--customize-hook=" + setSources,
		p.Suite, root,
		"deb [trusted=yes] copy:" + (&url.URL{Path: dir}).EscapedPath() + " ./",
	}
}
