package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/export"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/filelock"
	"sconce.dev/sconce/internal/fuse"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/venv"
)

// An environment on top of an image is a recipe that nobody wrote: its base is the image, and its packages are resolved against what the
// image has. What is made of it is the layers above the base's.

// NewVenv makes a directory that an environment on top of an image is kept in. mount is where containers will see it.
func (s *Session) NewVenv(ctx context.Context, on *Subject, dir, mount string) (*venv.Manifest, error) {
	if _, err := os.Lstat(filepath.Join(dir, venv.FileName)); err == nil {
		return nil, fault.Usage(fault.Hint(fmt.Errorf("%s has an environment already", dir), "choose another directory, or remove that one"))
	}
	ref, digest, err := source.Resolve(ctx, on.Ref, on.how)
	if err != nil {
		return nil, source.Explain(err, on.Name, on.Ref, s.Store)
	}
	if ref, err = absolute(ref); err != nil {
		return nil, err
	}
	im, err := source.Import(ctx, ref, on.how)
	if err != nil {
		return nil, err
	}
	found, err := lock.FindBase(ctx, s.Store, im)
	if err != nil {
		return nil, err
	}
	m := &venv.Manifest{Base: venv.Base{
		Image: ref.String(), Digest: digest, Platform: platformOf(im), Executable: found.Python.Executable, Python: found.Python.Version,
		Mount: cmp.Or(mount, venv.DefaultMount),
	}}
	also, err := s.Identities(ctx, on)
	if err != nil {
		return nil, err
	}
	m.Also = slices.DeleteFunc(also, func(d store.Digest) bool { return d == digest })
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return m, m.Save(dir)
}

func platformOf(im *image.Image) string {
	p := im.Platform()
	return p.OS + "/" + p.Architecture
}

// absolute makes a path in a reference absolute.
func absolute(ref source.Ref) (source.Ref, error) {
	if ref.Transport == source.Docker || ref.Transport == source.Store {
		return ref, nil
	}
	var err error
	ref.Value, err = filepath.Abs(ref.Value)
	return ref, err
}

// Identities are the digests that an image goes by: of its manifest, or what its file tells. A file that sconce has not written goes by
// its superblock, which says when and of how much it was made.
func (s *Session) Identities(ctx context.Context, on *Subject) ([]store.Digest, error) {
	if !on.IsClusterFile() {
		o, err := on.Outline(ctx)
		if err != nil {
			return nil, err
		}
		return []store.Digest{o.Image.Digest}, nil
	}
	c, err := on.ClusterFile()
	if err != nil {
		return nil, err
	}
	if d, err := clusterfile.Digest(c.FS); err == nil {
		return []store.Digest{d}, nil
	}
	const superblock = 96 // bytes; Linux, struct squashfs_super_block
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(c.Partition, 0, superblock)); err != nil {
		return nil, err
	}
	return []store.Digest{store.Digest("sha256:" + hex.EncodeToString(h.Sum(nil)))}, nil
}

// VenvRequest is what an environment shall have besides.
type VenvRequest struct {
	Packages     []string // PEP 508
	Requirements []string // files
	Project      string   // a directory with a pyproject.toml
	Shadow       []string // packages of the base that may come in a version of its own
	Remove       []string // names of packages that were asked for
	Upgrade      bool     // take the newest of everything
}

// VenvChange is what became of an environment.
type VenvChange struct {
	Added, Removed []venv.Package
	Shadows        []venv.Shadow
	Packages       int // that it has now
}

// ChangeVenv changes what an environment is made of. The old one stays until all of the new one is there.
func (s *Session) ChangeVenv(ctx context.Context, dir string, r VenvRequest) (*VenvChange, error) {
	l, err := filelock.Acquire(ctx, filepath.Join(dir, venv.FileName), "changes the environment "+dir, progress.Waiting(ctx))
	if err != nil {
		return nil, err
	}
	defer l.Release()
	m, err := venv.Load(dir)
	if err != nil {
		return nil, err
	}
	if err := m.Clean(dir); err != nil {
		return nil, err
	}
	before, err := s.openVenv(ctx, dir, m)
	if err != nil {
		return nil, err
	}
	next := *m
	if err := errors.Join(r.apply(dir, &next), s.rememberVenvFiles(dir, r)); err != nil {
		return nil, err
	}
	if next.Lock, err = m.NextLock(dir); err != nil {
		return nil, err
	}
	after, err := s.makeVenv(ctx, dir, &next, r.Upgrade)
	if err == nil {
		err = next.Save(dir)
	}
	if err != nil {
		_ = m.Clean(dir) // what the change has left
		return nil, err
	}
	c := &VenvChange{Shadows: after.Record.Shadows, Packages: len(after.Record.Packages)}
	c.Added, c.Removed = without(after.Record.Packages, before.Record.Packages), without(before.Record.Packages, after.Record.Packages)
	return c, next.Clean(dir)
}

func without(all, others []venv.Package) []venv.Package {
	return slices.DeleteFunc(slices.Clone(all), func(p venv.Package) bool { return slices.Contains(others, p) })
}

// apply writes down what is asked for.
func (r VenvRequest) apply(dir string, m *venv.Manifest) error {
	m.Packages = slices.Clone(m.Packages)
	for _, text := range r.Packages {
		asked, err := python.ParseRequirement(text)
		if err != nil {
			return fault.Usage(err)
		}
		m.Packages = append(withoutPackage(m.Packages, asked.Name), text)
	}
	for _, name := range r.Remove {
		left := withoutPackage(m.Packages, name)
		if len(left) == len(m.Packages) {
			return fault.Usage(fault.Hint(fmt.Errorf("%s was not asked for, so it cannot be taken back", name), "what was asked for is in "+filepath.Join(dir, venv.FileName)))
		}
		m.Packages = left
	}
	for _, file := range r.Requirements {
		rel, err := relative(dir, file)
		if err != nil {
			return err
		}
		if !slices.Contains(m.Requirements, rel) {
			m.Requirements = append(slices.Clone(m.Requirements), rel)
		}
	}
	if r.Project != "" {
		var err error
		if m.Project, err = relative(dir, r.Project); err != nil {
			return err
		}
	}
	for _, name := range r.Shadow {
		if name = python.NormalizeName(name); !slices.Contains(m.Shadow, name) {
			m.Shadow = append(slices.Clone(m.Shadow), name)
		}
	}
	return nil
}

func withoutPackage(packages []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(packages), func(text string) bool {
		p, err := python.ParseRequirement(text)
		return err == nil && python.NormalizeName(p.Name) == python.NormalizeName(name)
	})
}

// relative is the path of a file as seen from a directory.
func relative(dir, file string) (string, error) {
	from, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(to); err != nil {
		return "", fault.Usage(err)
	}
	return filepath.Rel(from, to)
}

// Venv is an environment on top of an image: of a directory, or packed.
type Venv struct {
	Name   string // as it was given
	Record venv.Record

	session *Session
	layers  []layer.Descriptor  // of one in a directory; none: it has no packages
	file    *source.ClusterFile // a packed one
}

// OpenVenv opens the environment of a directory, or a packed one. Only a packed one holds a file open.
func (s *Session) OpenVenv(ctx context.Context, name string) (*Venv, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, fault.Usage(fmt.Errorf("environment: %w", err))
	}
	if st.IsDir() {
		m, err := venv.Load(name)
		if err != nil {
			return nil, err
		}
		return s.openVenv(ctx, name, m)
	}
	c, err := source.OpenClusterFile(name)
	if err != nil {
		return nil, err
	}
	if c.SIF != nil {
		c.Close()
		return nil, fault.Usage(fmt.Errorf("%s is a SIF file, and a packed environment is a squashfs", name))
	}
	rec, err := venv.ReadRecord(c.FS)
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Venv{Name: name, Record: *rec, session: s, file: c}, nil
}

// Close closes the file of a packed environment.
func (v *Venv) Close() error {
	if v.file == nil {
		return nil
	}
	return v.file.Close()
}

// Empty reports whether it has no packages.
func (v *Venv) Empty() bool { return v.file == nil && len(v.layers) == 0 }

// Check says why the environment does not fit an image, and reads all of a packed one when whole is asked for.
func (v *Venv) Check(ctx context.Context, on *Subject, whole bool) error {
	if whole && v.file != nil {
		if err := v.file.FS.CheckData(ctx); err != nil {
			return fmt.Errorf("%s: %w", v.Name, err)
		}
	}
	if on == nil {
		return nil
	}
	digests, err := v.session.Identities(ctx, on)
	if err != nil {
		return err
	}
	return v.Record.Base.CheckBase(v.Name, on.Name, digests)
}

// openVenv makes the environment of a directory as its lock says.
func (s *Session) openVenv(ctx context.Context, dir string, m *venv.Manifest) (*Venv, error) {
	if m.Lock == "" {
		return &Venv{Name: dir, Record: venv.Record{Base: m.Base}, session: s}, nil
	}
	r, err := s.venvRecipe(dir, m)
	if err != nil {
		return nil, err
	}
	state, err := r.ReadLock()
	if err == nil {
		err = state.Err
	}
	if err == nil && !state.Fits() {
		err = fault.Hint(fmt.Errorf("%s has changed since it was locked:\n  %s", dir, strings.Join(state.Drift, "\n  ")), "`sconce venv add "+quote.Word(quote.Operand(dir))+"` brings it up to date")
	}
	if err != nil {
		return nil, err
	}
	return s.buildVenv(ctx, dir, m, r)
}

// makeVenv decides and makes.
func (s *Session) makeVenv(ctx context.Context, dir string, m *venv.Manifest, upgrade bool) (*Venv, error) {
	r, err := s.venvRecipe(dir, m)
	if err != nil {
		return nil, err
	}
	if upgrade {
		if _, err := s.Lock(ctx, r, LockOptions{Upgrade: true}); err != nil {
			return nil, err
		}
	}
	return s.buildVenv(ctx, dir, m, r)
}

func (s *Session) venvRecipe(dir string, m *venv.Manifest) (*Recipe, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	bounds, err := s.venvBounds(abs, m)
	if err != nil {
		return nil, err
	}
	r := recipe.Recipe{
		Path: filepath.Join(dir, venv.FileName), Dir: abs, Reach: bounds, LockFile: filepath.Join(abs, m.Lock, "sconce.lock"),
		Name: recipe.ImageName("venv-" + filepath.Base(abs)),
		Base: recipe.Base{Image: m.Image, Anywhere: true}, // buildVenv compares its digest
		Python: recipe.Python{
			Packages: m.Packages, Requirements: m.Requirements, Project: m.Project,
			OnTop: &recipe.OnTop{Root: m.Mount, Shadow: m.Shadow},
		},
	}
	r.Target.Platform = m.Platform
	return NewRecipe(r)
}

// venvBounds are what the environment of an absolute directory, which may be a stranger's, may name: besides its own directory what this user
// has named for it on the command line, as the store remembers.
func (s *Session) venvBounds(dir string, m *venv.Manifest) (reach.Bounds, error) {
	bounds := reach.InRepository("the environment", dir)
	for _, file := range append(slices.Clone(m.Requirements), m.Project) {
		if file == "" {
			continue
		}
		path := filepath.Join(dir, file)
		var ignored any
		named, err := s.Store.GetRecord(store.KindVenvFile, venvFileKey(dir, path), &ignored)
		if err != nil {
			return bounds, err
		}
		if named {
			bounds = bounds.With(path)
		}
	}
	return bounds, nil
}

// rememberVenvFiles notes that the user has named these files for the environment of a directory.
func (s *Session) rememberVenvFiles(dir string, r VenvRequest) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for _, file := range append(slices.Clone(r.Requirements), r.Project) {
		if file == "" {
			continue
		}
		path, err := filepath.Abs(file)
		if err == nil {
			err = s.Store.PutRecord(store.KindVenvFile, venvFileKey(dir, path), nil, true)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func venvFileKey(dir, path string) string { return store.DigestOf([]byte(dir + "\x00" + path)).Hex() }

// buildVenv makes the layers of an environment.
func (s *Session) buildVenv(ctx context.Context, dir string, m *venv.Manifest, r *Recipe) (*Venv, error) {
	if len(m.Packages)+len(m.Requirements) == 0 && m.Project == "" {
		return nil, fault.Usage(errors.New("no packages are left in the environment; remove the directory, or name others"))
	}
	p, err := s.Plan(ctx, r, PlanOptions{NoCheck: true})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	result, err := s.run(ctx, p, BuildOptions{})
	if err != nil {
		return nil, err
	}
	state, err := r.ReadLock()
	if err != nil {
		return nil, err
	}
	l := state.Lock
	if l.Base.Digest != m.Digest {
		return nil, fmt.Errorf("%s: %s is %s now, and was %s when the environment was made", dir, m.Image, l.Base.Digest.Short(), m.Digest.Short())
	}
	locked, err := l.Locked(r.pinned)
	if err != nil {
		return nil, err
	}
	v := &Venv{Name: dir, session: s, Record: venv.Record{Base: m.Base}, layers: result.Image.Layers[l.Base.Layers:]}
	for _, w := range locked.Wheels {
		v.Record.Packages = append(v.Record.Packages, venv.Package{Name: python.NormalizeName(w.Name), Version: w.Version})
	}
	for _, c := range locked.Compiles {
		v.Record.Packages = append(v.Record.Packages, venv.Package{Name: c.Name, Version: c.Version})
	}
	slices.SortFunc(v.Record.Packages, func(a, b venv.Package) int { return strings.Compare(a.Name, b.Name) })
	return v, v.findShadows(ctx, m)
}

// findShadows notes which packages of the base are covered.
func (v *Venv) findShadows(ctx context.Context, m *venv.Manifest) error {
	if len(m.Shadow) == 0 {
		return nil
	}
	im, err := v.session.venvBase(ctx, m.Base)
	if err != nil {
		return err
	}
	found, err := lock.FindBase(ctx, v.session.Store, im)
	if err != nil {
		return err
	}
	for _, p := range v.Record.Packages {
		if there, ok := found.Python.Package(p.Name); ok {
			v.Record.Shadows = append(v.Record.Shadows, venv.Shadow{Name: p.Name, Own: p.Version, Base: there.Version})
		}
	}
	return nil
}

// venvBase is the image that an environment is based on.
func (s *Session) venvBase(ctx context.Context, b venv.Base) (*image.Image, error) {
	platform, err := v1.ParsePlatform(b.Platform)
	if err != nil {
		return nil, err
	}
	ref, err := source.ParseIn(b.Image, s.Store)
	if err != nil {
		return nil, err
	}
	return source.Import(ctx, ref, source.Options{Store: s.Store, Fetch: s.Fetch, Offline: s.Offline, Platform: *platform})
}

var errEmptyVenv = errors.New("the environment has no packages yet")

func (v *Venv) notEmpty() error {
	if v.Empty() {
		return fault.Usage(fault.Hint(fmt.Errorf("%s: %w", v.Name, errEmptyVenv), "`sconce venv add "+quote.Word(v.Name)+" PACKAGE` adds some"))
	}
	return nil
}

// Mount makes the environment visible at a place of a sandbox, "" for that which it was made for. A packed one is read where it lies; a host
// that serves no files has it unpacked into the store.
func (v *Venv) Mount(ctx context.Context, at string) (sandbox.Mount, error) {
	m := sandbox.Mount{Target: cmp.Or(at, v.Record.Base.Mount), ReadOnly: true}
	if err := errors.Join(v.notEmpty(), venv.CheckMount(m.Target)); err != nil {
		return m, err
	}
	layers := v.layers
	if v.file != nil {
		err := fuse.Check()
		if err == nil {
			m.Tree, err = sandbox.Squashfs(v.file.FS)
			return m, err
		}
		progress.Warn(ctx, fmt.Sprintf("%s is unpacked first: %v", v.Name, err), "ask for /dev/fuse to be opened to users")
		d, err := v.layer(ctx)
		if err != nil {
			return m, err
		}
		layers = []layer.Descriptor{d}
	}
	var err error
	m.Layers, err = sandbox.Layers(ctx, v.session.Store, layers)
	m.Source = v.Record.Base.Mount
	return m, err
}

// PackVenv writes an environment as one squashfs file.
func (s *Session) PackVenv(ctx context.Context, v *Venv, to string, w Writing) error {
	if err := v.notEmpty(); err != nil {
		return err
	}
	if v.file != nil {
		return fault.Usage(fmt.Errorf("%s is packed already", v.Name))
	}
	text, err := v.Record.Encode()
	if err != nil {
		return err
	}
	root := strings.TrimPrefix(v.Record.Base.Mount, "/")
	in := clusterfile.Input{
		Name: filepath.Base(v.Name), Plain: true, Root: root, Files: map[string][]byte{root + "/" + venv.RecordFile: text},
	}
	made := image.Image{Layers: v.layers}
	in.Layers = clusterfile.FromImage(s.Store, &made).Layers
	var digests []string
	for _, l := range v.layers {
		digests = append(digests, string(l.Digest))
	}
	in.Digest = store.DigestOf(fmt.Appendf(nil, "%s %s", strings.Join(digests, " "), text))
	return export.WriteClusterFile(ctx, in, export.Target{Transport: export.Plain, Path: to}, s.writing(w))
}

// MergeVenv makes an image of the environment's base with the environment as its uppermost layers.
func (s *Session) MergeVenv(ctx context.Context, v *Venv, on *Subject) (*image.Image, error) {
	if err := v.notEmpty(); err != nil {
		return nil, err
	}
	base, err := on.Import(ctx)
	if err != nil {
		return nil, err
	}
	mount := v.Record.Base.Mount
	additions := make([]image.Addition, 0, len(v.layers)+1)
	for _, d := range v.layers {
		additions = append(additions, image.Addition{Layer: d, CreatedBy: "python environment in " + mount})
	}
	if v.file != nil {
		d, err := v.layer(ctx)
		if err != nil {
			return nil, err
		}
		additions = append(additions, image.Addition{Layer: d, CreatedBy: "python environment in " + mount})
	}
	return image.Assemble(ctx, s.Store, image.Spec{Base: base, Additions: additions, Edit: func(c *v1.Config) { c.Env = enterVenv(c.Env, mount) }})
}

// layer makes a layer of a packed environment.
func (v *Venv) layer(ctx context.Context) (layer.Descriptor, error) {
	task := progress.Begin(ctx, "layer", v.Name, 0)
	d, err := v.file.Layer(ctx, v.session.Store, strings.TrimPrefix(v.Record.Base.Mount, "/"))
	return d, task.End(err)
}

// Enter returns a command's variables with the environment at a place active.
func (v *Venv) Enter(env []string, at string) []string {
	return enterVenv(env, cmp.Or(at, v.Record.Base.Mount))
}

// enterVenv makes an environment the active one.
func enterVenv(env []string, dir string) []string {
	out := []string{"VIRTUAL_ENV=" + dir}
	path := searchpath.Default
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		switch name {
		case "VIRTUAL_ENV", "PYTHONHOME":
		case "PATH":
			path = value
		default:
			out = append(out, kv)
		}
	}
	return append(out, "PATH="+dir+"/bin:"+path)
}

// WriteImage writes an image of the store to a destination on disk.
func (s *Session) WriteImage(ctx context.Context, im *image.Image, to, name string, w Writing) error {
	how := s.writing(w)
	how.Name = name
	return writeTo(ctx, im, to, how)
}
