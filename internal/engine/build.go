package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/build"
	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/export"
	"sconce.dev/sconce/internal/hostconfig"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/slim"
	"sconce.dev/sconce/internal/store"
)

// BuildOptions say how a plan is built and where the image goes.
type BuildOptions struct {
	Names   []string // that the image gets in the store besides the plan's, NAME:TAG
	Again   bool     // run all steps again, whatever was made before
	Outputs []string // destinations that the image is written to
	Write   Writing
	Push    []string // references in registries that it is pushed to
	Wheels  string   // directory that the wheels of compiled packages are copied to; "" is none

	// What commands may use of this machine.
	Secrets     map[string]func() ([]byte, error)
	SSH         map[string]string // sockets of agents, by id
	Pass        []string          // variables of the environment
	Host        HostFunc          // its configuration of pip, npm, …; nil: nothing
	HostNetwork bool              // its network, also what it offers to itself alone
	OnFailure   func(ctx context.Context, failed error, look Look)
}

// Look runs a command in the file system of a step that has failed, over what the step has left. What it changes is forgotten.
type Look func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error

// onFailure lets somebody look around where a step has failed, if anybody wants to.
func (o BuildOptions) onFailure() func(context.Context, *execop.Failure, sandbox.Options) {
	if o.OnFailure == nil {
		return nil
	}
	return func(ctx context.Context, f *execop.Failure, run sandbox.Options) {
		o.OnFailure(ctx, f, func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
			run.Args, run.Stdin, run.Stdout, run.Stderr = args, stdin, stdout, stderr
			_, err := sandbox.Run(ctx, run)
			return err
		})
	}
}

// HostFunc reads what commands may see of this machine's configuration. asked are the kinds that a recipe asks for, withheld those of them
// that this machine has and that the user has not asked for.
type HostFunc func(asked []string) (shown *hostconfig.Config, withheld []string, err error)

// host is what the commands of a plan see of this machine's configuration.
func (o BuildOptions) host(ctx context.Context, p *Plan) (*hostconfig.Config, error) {
	if o.Host == nil {
		return nil, nil
	}
	var asked []string
	if p.Recipe != nil {
		asked = p.Recipe.Recipe.HostConfig
	}
	shown, withheld, err := o.Host(asked)
	if len(withheld) > 0 {
		progress.Warn(ctx, fmt.Sprintf("the recipe's host-config asks for this machine's configuration of %s, which may hold logins: steps do not see it", strings.Join(withheld, ", ")),
			"if you trust the recipe, add --host-config "+strings.Join(slices.Concat(shown.Kinds, withheld), ","))
	}
	return shown, err
}

// Built is what a build has made, and how far the image came.
type Built struct {
	Name     string // in the store
	Platform string // "linux/amd64"
	Image    *image.Image
	Size     int64        // of the image in the store, in bytes: its layers as they are stored, the configuration and the manifest
	Fresh    bool         // nothing had to be made
	Slimmed  *slim.Report // what slimming took out, if there was anything to slim now
	Wheels   []string     // files of wheels; nil when nobody asked for them
	Check    *audit.Count // what the check for the recipe's target found; nil: nobody looked
	Target   string       // what was checked for, in words
	Outputs  []string     // that were written
	Pushed   []string     // references that were pushed to
}

// Build builds what is planned, names it, checks it for its recipe's target, and brings it where it shall go. After an error, one
// that the check has found included, the result says how far it came; without an image it is nil.
func (s *Session) Build(ctx context.Context, p *Plan, o BuildOptions) (*Built, error) {
	if made, err := s.Made(ctx, p); err != nil || made == nil { // else the outputs may hold that very image, under another name
		if err = errors.Join(err, checkOutputs(o.Outputs, p.Name, o.Write.Force)); err == nil {
			err = s.checkOutputRoom(p, o.Outputs)
		}
		if err != nil {
			return nil, err
		}
	}
	result, err := s.run(ctx, p, o)
	if err != nil {
		return nil, err
	}
	b := &Built{Name: p.Name, Platform: p.Platform.String(), Image: result.Image, Fresh: result.Fresh, Slimmed: result.Slimmed}
	if o.Wheels != "" {
		if b.Wheels, err = s.copyWheels(o.Wheels, result.Built); err != nil {
			return b, err
		}
	}
	for _, name := range append([]string{p.Name}, o.Names...) {
		named, err := s.Name(b.Image, name)
		if err != nil {
			return b, err
		}
		b.Size = named.Size
	}
	if p.Recipe != nil && p.Recipe.Recipe.Target.Named() && !p.unchecked {
		b.Target = p.Recipe.Target.Title()
		if b.Check, err = s.checkBuilt(ctx, p.Recipe, b.Image); err != nil {
			return b, err
		}
	}
	return b, s.deliver(ctx, b, o)
}

// run makes the image with what this machine has.
func (s *Session) run(ctx context.Context, p *Plan, o BuildOptions) (*build.Result, error) {
	if err := p.checkAnywhere(); err != nil {
		return nil, err
	}
	if err := s.tellUntold(ctx, p); err != nil {
		return nil, err
	}
	if err := s.bringBelow(ctx, p, o); err != nil {
		return nil, err
	}
	host, err := o.host(ctx, p)
	if err != nil {
		return nil, err
	}
	how := p.means
	how.Store, how.Fetch, how.Offline = s.Store, s.Fetch, s.Offline
	how.Again, how.WantBuilt = o.Again, o.Wheels != ""
	how.Cores, how.Memory = s.Cores, s.memory()
	how.Secrets, how.SSH, how.Host, how.HostNetwork, how.OnFailure = o.Secrets, o.SSH, host, o.HostNetwork, o.onFailure()
	how.Pass = append(how.Pass[:len(how.Pass):len(how.Pass)], o.Pass...)
	return build.Run(ctx, p.Plan, how)
}

// tellUntold warns of what the lock comes to, unless the image is there.
func (s *Session) tellUntold(ctx context.Context, p *Plan) error {
	if len(p.untold) == 0 { // nothing to look for the image for
		return nil
	}
	made, err := s.Made(ctx, p)
	if err == nil && made == nil {
		tellWarnings(ctx, p.untold)
		p.untold = nil
	}
	return err
}

// bringBelow has what p is based on in the store, unless p itself is there.
func (s *Session) bringBelow(ctx context.Context, p *Plan, o BuildOptions) error {
	if p.Below == nil {
		return nil
	}
	if im, err := s.Made(ctx, p); err != nil || im != nil && !o.Again && o.Wheels == "" {
		return err
	}
	_, err := s.Bring(ctx, p.Below, o)
	return err
}

// deliver writes the outputs and pushes.
func (s *Session) deliver(ctx context.Context, b *Built, o BuildOptions) error {
	how := s.writing(o.Write)
	how.Name = b.Name
	for _, out := range o.Outputs {
		t, err := export.ParseTarget(out)
		if err == nil {
			err = s.write(ctx, b.Image, t, how, o.Write.Start)
		}
		if err != nil {
			return err
		}
		b.Outputs = append(b.Outputs, out)
	}
	for _, ref := range o.Push {
		if _, err := s.Push(ctx, b.Image, ref); err != nil {
			return err
		}
		b.Pushed = append(b.Pushed, ref)
	}
	return nil
}

// copyWheels copies wheels of the store to dir, which is made when missing, and returns the files. A file of the name that is
// there already is replaced.
func (s *Session) copyWheels(dir string, wheels []python.Item) ([]string, error) {
	files := []string{}
	if len(wheels) == 0 {
		return files, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, w := range wheels {
		file := filepath.Join(dir, filepath.Base(w.File))
		if err := copyBlob(s.Store, w.Digest, file); err != nil {
			return files, fmt.Errorf("copy the wheel of %s: %w", w.Name, err)
		}
		files = append(files, file)
	}
	return files, nil
}

// copyBlob writes a blob to a file, whole or not at all.
func copyBlob(st *store.Store, d store.Digest, file string) error {
	dir, err := os.MkdirTemp(filepath.Dir(file), ".wheel-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	whole := filepath.Join(dir, filepath.Base(file))
	if err := st.CopyBlob(d, whole); err != nil {
		return err
	}
	if err := os.Chmod(whole, 0o644); err != nil {
		return err
	}
	return os.Rename(whole, file)
}
