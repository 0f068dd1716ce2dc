package ospackages

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Install says what is installed, on what and with what.
type Install struct {
	Runner *execop.Runner
	Fetch  *fetch.Client
	Shared *store.Shared // where other machines keep what they installed; nil: nowhere

	Key      string             // made by [LayerKey], under which the layer is remembered; "": it is not
	On       []layer.Descriptor // the base, lowest first
	Arch     string             // of the base, by Go's name
	Packages *Pinned            // not empty
}

// Layer makes the layer of the packages, once. What the store lacks of them is downloaded first, in parallel.
//
// Services are not started. Keys that a package's script makes for the machine it is installed on (those of sshd, the certificate of
// ssl-cert) are not in the layer: every container would have the same. Who wants them makes them when the container starts
// (ssh-keygen -A).
func Layer(ctx context.Context, in Install) (layer.Descriptor, error) {
	st := in.Runner.Store
	once := store.Once[layer.Descriptor]{
		Kind: store.KindSystem, Key: in.Key, Shared: in.Shared, Refs: layer.Descriptor.Refs, Does: "installs the same system packages",
		Confirm: func(ctx context.Context, d layer.Descriptor) error { return d.Confirm(ctx, st) },
	}
	if in.Key == "" {
		return in.install(ctx)
	}
	d, _, err := once.Do(ctx, st, in.install)
	return d, err
}

func (in Install) install(ctx context.Context) (layer.Descriptor, error) {
	var none layer.Descriptor
	r, p := in.Runner, in.Packages
	var command func(dir string, p *Pinned) execop.Command
	switch p.Manager {
	case aptName:
		command = aptInstall
	case dnfName, zypperName:
		command = rpmInstall
	default:
		return none, fault.Hint(fmt.Errorf("this sconce cannot install packages with %q, which the lock names", p.Manager), "`sconce lock` writes it anew")
	}
	if err := bring(ctx, r.Store, in.Fetch, in.On, p.Packages); err != nil {
		return none, err
	}
	dir, err := r.Store.TempDir("packages-*")
	if err != nil {
		return none, err
	}
	defer store.RemoveAll(dir)
	if err := lay(r.Store, dir, p); err != nil {
		return none, fmt.Errorf("prepare the system packages: %w", err)
	}
	c := command(dir, p)
	c.Arch = in.Arch
	d, err := r.Run(ctx, "install system packages", in.On, c)
	if err != nil {
		return none, fault.Hint(err, installHint(err))
	}
	return d, nil
}

// installHint says what may help when packages cannot be installed.
func installHint(err error) string {
	text := "packages are installed without a network, and no services run; what a package cannot do that way may be done in a [[step]]"
	if hint := fault.HintOf(err); hint != "" {
		text += "; " + hint
	}
	return text
}

// bring puts the package files into the store: from the network, and those that a base offers itself from there.
func bring(ctx context.Context, st *store.Store, f *fetch.Client, on []layer.Descriptor, packages []Package) error {
	var requests []fetch.Request
	var inside []Package
	for _, pkg := range packages {
		u, err := url.Parse(pkg.URL)
		if err != nil {
			return fmt.Errorf("package %s: %w", pkg.Name, err)
		}
		switch u.Scheme {
		case "http", "https":
			requests = append(requests, fetch.Request{URL: pkg.URL, Digest: pkg.SHA256, Size: pkg.Size, Name: pkg.Name + " " + pkg.Version})
		case "file", "copy":
			if !st.HasBlob(pkg.SHA256) {
				inside = append(inside, pkg)
			}
		default:
			return fault.Hint(fmt.Errorf("package %s cannot be downloaded from %s", pkg.Name, fetch.Redact(pkg.URL)),
				"the base's package sources must be at http, https or file addresses")
		}
	}
	if len(inside) > 0 {
		if err := bringInside(ctx, st, on, inside); err != nil {
			return err
		}
	}
	return gone(f.Blobs(ctx, requests))
}

// gone adds what to do when a distribution has replaced a package: mirrors keep only the newest.
func gone(err error) error {
	var status *fetch.StatusError
	if errors.As(err, &status) && (status.Code == http.StatusNotFound || status.Code == http.StatusGone) {
		return fault.Hint(err, "mirrors drop a package when there is a newer one: `sconce lock --upgrade` takes that; a base whose sources name a snapshot keeps all")
	}
	return err
}

// bringInside takes packages out of the base, which has a source of packages in itself.
func bringInside(ctx context.Context, st *store.Store, on []layer.Descriptor, packages []Package) error {
	tree, err := image.NewTree(ctx, st, on)
	if err != nil {
		return err
	}
	for _, pkg := range packages {
		if err := takeFrom(tree, st, pkg); err != nil {
			return fmt.Errorf("package %s, which the base has at %s: %w", pkg.Name, pkg.URL, err)
		}
	}
	return nil
}

func takeFrom(tree *image.Tree, st *store.Store, pkg Package) error {
	u, err := url.Parse(pkg.URL)
	if err != nil {
		return err
	}
	node, err := tree.Lookup(strings.TrimPrefix(u.Path, "/"))
	if err != nil {
		return err
	}
	if node.Type != layer.Regular {
		return errors.New("it is not a file")
	}
	in, err := tree.Open(node)
	if err != nil {
		return err
	}
	defer in.Close()
	w, err := st.NewBlob()
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := io.Copy(w, in); err != nil {
		return err
	}
	_, err = w.Commit(pkg.SHA256)
	return err
}

// lay puts the package files in dir, under names by which the manager knows them.
func lay(st *store.Store, dir string, p *Pinned) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for i := range p.Packages {
		from, err := st.BlobPath(p.Packages[i].SHA256)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, p.fileName(i))
		if os.Link(from, to) == nil {
			continue
		}
		if err := st.CopyBlob(p.Packages[i].SHA256, to); err != nil { // a shared store's, perhaps on another file system
			return err
		}
	}
	return nil
}

// fileName is what the file of the i-th package is called: the number keeps names apart, and no version's colon is in it.
func (p *Pinned) fileName(i int) string {
	ending := "rpm"
	if p.Manager == aptName {
		ending = "deb"
	}
	return fmt.Sprintf("%04d_%s_%s.%s", i, p.Packages[i].Name, p.Packages[i].Architecture, ending)
}

//go:embed apt-install.sh
var aptInstallScript string

//go:embed rpm-install.sh
var rpmInstallScript string

// Where the installing scripts find what they need.
const (
	packagesDir = "/run/sconce-packages"
	scratchDir  = "/run/sconce-scratch"
	policyFile  = "/usr/sbin/policy-rc.d"
	planFile    = "/run/sconce-plan"
)

// policy tells invoke-rc.d(8) that no service may be started: 101 is "action forbidden by policy".
const policy = "#!/bin/sh\nexit 101\n"

// aptInstall is the command that installs the packages in dir.
func aptInstall(dir string, p *Pinned) execop.Command {
	c := installCommand(dir, aptInstallScript, p)
	c.Files = append(c.Files, execop.File{Target: policyFile, Mode: 0o755, Content: []byte(policy)})
	return c
}

func installCommand(dir, script string, p *Pinned) execop.Command {
	return execop.Command{
		Args:      []string{"/bin/sh", "-c", script, "sh"},
		Env:       environment(),
		NoNetwork: true,
		Mounts: []execop.Mount{
			{Kind: execop.Bind, Target: packagesDir, Dir: dir, ReadOnly: true},
			{Kind: execop.Tmpfs, Target: scratchDir},
		},
		Files: []execop.File{{Target: planFile, Content: installPlan(p)}},
	}
}

// installPlan writes lines for the script: what to install, what to remove, and what must be there in the end, as the manager itself says it.
func installPlan(p *Pinned) []byte {
	var text bytes.Buffer
	for i, pkg := range p.Packages {
		state := "auto"
		if slices.Contains(p.Asked, pkg.Name) || slices.Contains(p.Asked, pkg.Name+":"+pkg.Architecture) {
			state = "manual"
		}
		version := pkg.Version
		if p.Manager == aptName {
			version = debian.WrittenVersion(version)
		}
		fmt.Fprintln(&text, "install", p.fileName(i), pkg.Name, pkg.Architecture, version, state)
	}
	for _, name := range p.Remove {
		fmt.Fprintln(&text, "remove", name)
	}
	return text.Bytes()
}
