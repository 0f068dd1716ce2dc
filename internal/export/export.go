// Package export writes images out of the store: as OCI layouts and archives, docker archives, root file systems, and
// to registries.
//
// A destination is written beside its final name and moved there when it is whole. One that holds the image already is
// left alone; one that holds an older export is replaced; anything else is replaced only when the user insists.
package export

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/clusterfile"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// Options say how an image is written.
type Options struct {
	Store    *store.Store
	Force    bool             // replace what is there, whatever it is
	Name     string           // NAME or NAME:TAG of the image, which archives, layouts and cluster files carry; may be empty
	Squashfs squashfs.Options // of squashfs and SIF files; zero: squashfs.DefaultOptions
	NoReuse  bool             // of those: compress everything anew
	Public   bool             // of those: everybody may read the file, whatever the umask
	Uenv     UenvOptions
	Start    []string // of those: the image's files that stand first in the file, see clusterfile.Input

	// Layer, unless nil, returns a layer of the image, 0 being the lowest, that may not be in the store before it has been walked.
	// Without it all are. It is asked for squashfs and SIF files other than uenvs only.
	Layer func(number int) layer.Source
}

// Plain is the kind of output that is a squashfs of the tree and nothing else: no runtime's files are added. It is read as any squashfs.
const Plain source.Transport = "plain"

// Uenv is the kind that uenv mounts: a directory of the image, with a description of what it does to the environment.
const Uenv source.Transport = "uenv"

// Target is a destination on disk.
type Target struct {
	Transport source.Transport // oci, oci-archive, docker-archive, dir, tar, sqsh, sif, plain or uenv
	Path      string
	Tag       string // in the layout or archive; may be empty
}

// String returns the target with its transport.
func (t Target) String() string {
	s := string(t.Transport) + ":" + t.Path
	if t.Tag != "" {
		s += ":" + t.Tag
	}
	return s
}

// ParseTarget reads "oci:DIR[:TAG]", "oci-archive:F[:TAG]", "docker-archive:F[:TAG]", "dir:D", "tar:F", "sqsh:F",
// "sif:F", "plain:F" and "uenv:F". Without a transport the name says what it is: .tar an OCI archive, .sqsh, .squashfs and .sqfs a squashfs, .sif a
// SIF, and a path with a slash, or of what exists, an OCI layout. Any other word is an error: it may have been meant for each of these, or for a name.
func ParseTarget(s string) (Target, error) {
	t, err := parseTarget(s)
	if err != nil {
		return Target{}, fault.Usage(fmt.Errorf("output %q: %w", s, err))
	}
	return t, nil
}

func parseTarget(s string) (Target, error) {
	prefix, rest, ok := strings.Cut(s, ":")
	t := Target{Transport: source.Transport(prefix), Path: rest}
	switch t.Transport {
	case source.OCI, source.OCIArchive, source.DockerArchive:
		t.Path, t.Tag = source.CutTag(rest)
	case source.Dir, source.Tar, source.Squashfs, source.SIF, Plain, Uenv:
	case source.Docker, "podman", "docker-daemon", "containers-storage", "http", "https":
		if ok {
			return Target{}, fault.Hint(errors.New("it is not a file or directory"), "an image is sent to a registry with `sconce push` or `sconce build --push`")
		}
		fallthrough
	default:
		return bareTarget(s)
	}
	if t.Path == "" {
		return Target{}, errors.New("the path is missing")
	}
	return t, nil
}

func bareTarget(s string) (Target, error) {
	if s == "" {
		return Target{}, errors.New("the path is missing")
	}
	t := Target{Transport: source.OCI, Path: s}
	switch strings.ToLower(filepath.Ext(s)) {
	case ".tar":
		t.Transport = source.OCIArchive
	case ".sqsh", ".squashfs", ".sqfs":
		t.Transport = source.Squashfs
	case ".sif":
		t.Transport = source.SIF
	case ".gz", ".tgz", ".zst", ".tzst", ".xz", ".bz2", ".zip", ".img", ".simg", ".iso":
		return Target{}, fault.Hint(errors.New("there are no images of this kind"),
			".tar is an OCI archive, whose layers are compressed already, .sqsh a squashfs, .sif a SIF; oci:"+s+" is a directory of that name")
	}
	if t.Transport == source.OCI {
		return t, refuseWord(s)
	}
	return t, nil
}

// refuseWord is an error for a word that says neither by an ending nor by a slash what is to be written, unless it names what exists.
func refuseWord(s string) error {
	if strings.ContainsRune(s, '/') || s == "." || s == ".." {
		return nil
	}
	if imageName.MatchString(s) {
		return fault.Hint(errors.New("it looks like an image's name, and would become a directory"),
			"`sconce pull IMAGE --name "+quote.Word(s)+"` gives an image of the store a second name; ./"+s+" and oci:"+s+" are directories")
	}
	if _, err := os.Lstat(s); err == nil {
		return nil
	}
	stem := s
	if wordEnding.MatchString(s) {
		stem = strings.TrimSuffix(s, filepath.Ext(s))
	}
	return fault.Hint(errors.New("nothing says what is to be written there"),
		fmt.Sprintf("%s.sqsh is a squashfs, %s.sif a SIF, %s.tar an OCI archive; oci:%s is a directory in the OCI layout, dir:%s one with the image's files", stem, stem, stem, s, s))
}

// wordEnding is what was meant for an ending, and is none of a version: ".sqhs".
var wordEnding = lazyregexp.New(`.\.[A-Za-z]+$`)

// imageName is NAME:TAG, without a directory before it.
var imageName = lazyregexp.New(`^[^/\\.][^/\\]*:[^/\\]+$`)

// Write writes an image to a destination.
func Write(ctx context.Context, im *image.Image, t Target, o Options) error {
	dest := t.String()
	path, err := filepath.Abs(t.Path)
	if err != nil {
		return fmt.Errorf("write %s: %w", t, err)
	}
	t.Path = path
	if t.IsClusterFile() {
		in := clusterfile.FromImage(o.Store, im)
		in.Name, _ = store.SplitImageName(o.Name)
		in.Plain = holdsTree(t.Transport)
		in.Start = o.Start
		if o.Layer != nil {
			for number := range in.Layers {
				in.Layers[number].Source = o.Layer(number)
			}
		}
		if t.Transport == Uenv {
			if err := describeUenv(ctx, &in, im, o); err != nil {
				return fmt.Errorf("write %s: %w", t, err)
			}
		}
		return WriteClusterFile(ctx, in, t, o)
	}
	w := &writer{ctx: ctx, im: im, st: o.Store, target: t, force: o.Force}
	if t.carriesName() {
		w.label = labelOf(t, o.Name)
	}
	if w.upToDate() {
		progress.Begin(ctx, "export", dest, 0).EndCached()
		return nil
	}
	w.task = progress.Begin(ctx, "export", dest, 0)
	return w.task.End(explain(t, w.write()))
}

func (w *writer) write() error {
	if err := os.MkdirAll(filepath.Dir(w.target.Path), 0o755); err != nil {
		return err
	}
	switch w.target.Transport {
	case source.OCI:
		return w.layout()
	case source.Dir:
		return w.dir()
	case source.OCIArchive:
		return w.file(w.ociArchive)
	case source.DockerArchive:
		return w.file(w.dockerArchive)
	case source.Tar:
		return w.file(w.rootTar)
	}
	return fmt.Errorf("%q is not a kind of output", w.target.Transport)
}

func explain(t Target, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("write %s: %w", t, err)
	if hint := fault.HintOf(err); hint != "" {
		return fault.Hint(wrapped, hint)
	}
	if what := host.NoRoom(err, filepath.Dir(t.Path)); what != "" {
		return fault.Hint(wrapped, what+"; make room or write to another one: what was there before is untouched")
	}
	return wrapped
}

// writer writes one image to one target.
type writer struct {
	ctx    context.Context // of the one call of Write that the writer serves
	im     *image.Image
	st     *store.Store
	target Target
	label  label
	force  bool
	task   *progress.Task
}

// upToDate reports whether the target holds the image. It looks at little enough for a build that changes nothing.
func (w *writer) upToDate() bool {
	switch w.target.Transport {
	case source.OCI:
		return w.layoutHolds()
	case source.Dir:
		return dirStamp(w.target.Path) == w.stamp()
	default:
		return fileStamp(w.target.Path) == w.stamp()
	}
}

// stamp is what an export carries to be recognised by: what made it, the image and what it goes by.
func (w *writer) stamp() string {
	words := []string{stampPrefix + string(w.target.Transport), string(w.im.Digest), w.label.ref, w.label.name}
	return strings.TrimSpace(strings.Join(words, " "))
}

const stampPrefix = "sconce "

// mayReplace refuses to replace what sconce has not written.
func mayReplace(stamp string, force bool) error {
	if force || strings.HasPrefix(stamp, stampPrefix) {
		return nil
	}
	return fault.Hint(errors.New("something else is there"), "choose another name, or replace it with --force")
}

// file writes a single file beside the target and moves it there.
func (w *writer) file(fill func(*os.File) error) error {
	if err := mayReplaceFile(w.target.Path, w.force); err != nil {
		return err
	}
	return atomicfile.Fill(w.target.Path, 0o644, fill)
}

// mayReplaceFile refuses a directory, and a file that sconce has not written.
func mayReplaceFile(path string, force bool) error {
	st, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil //nolint:nilerr // there is nothing, or writing says what is wrong
	case st.IsDir():
		return errIsDir()
	}
	return mayReplace(fileStamp(path), force)
}

// tempPattern names what is being written so that a person sees what it is.
func tempPattern(path string) string { return "." + filepath.Base(path) + ".sconce-*" }

// umask returns the process's mask, without changing it (proc(5), status).
func umask() os.FileMode {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0o022
	}
	var mask uint32
	for line := range strings.Lines(string(data)) {
		if _, err := fmt.Sscanf(line, "Umask: %o", &mask); err == nil {
			return os.FileMode(mask)
		}
	}
	return 0o022
}
