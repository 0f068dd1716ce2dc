package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/filelock"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/source"
)

// Mirror is a directory in which chosen images are kept as files that clusters run.
type Mirror struct {
	Dir     string // an absolute path
	Images  []MirrorImage
	Wanted  Wanted
	Writing Writing
	Keep    *time.Duration // files that belong to no image since then are removed; nil: none are
}

// MirrorImage is a line of a mirror's list.
type MirrorImage struct {
	Image string // as [Session.Open] takes it
	Name  string // of the link, without the ending
}

// MirrorState says what became of an image.
type MirrorState string

// The states of an image in a mirror.
const (
	MirrorNew       MirrorState = "new"       // the link leads to another file than before
	MirrorUnchanged MirrorState = "unchanged" // it leads where it led
	MirrorKept      MirrorState = "kept"      // the image cannot be had; what was there still is
	MirrorMissing   MirrorState = "missing"   // it cannot be had, and there was nothing
)

// Mirrored is an image of a mirror after a run.
type Mirrored struct {
	Name  string      `json:"name"`
	Image string      `json:"image"`
	State MirrorState `json:"state"`
	File  string      `json:"file,omitempty"`  // its path, named after the digest
	Error string      `json:"error,omitempty"` // why it cannot be had
}

// maxMirrorList bounds a list in bytes: some ten thousand images.
const maxMirrorList = 1 << 20

// linkName is the form of a link's name: one word of a file system, of an URL and of a shell.
var linkName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,199}$`)

// ParseMirrorList reads a list: an image on each line, with a name behind it, or else that which enroot import gives. All mistakes
// are told at once, with the lines of file that they are in.
func ParseMirrorList(file string, r io.Reader) ([]MirrorImage, error) {
	var images []MirrorImage
	var mistakes []error
	line, names := 0, map[string]int{}
	bounded := &io.LimitedReader{R: r, N: maxMirrorList + 1}
	lines := bufio.NewScanner(bounded)
	for lines.Scan() {
		line++
		im, err := parseMirrorLine(lines.Text())
		if err == nil && im.Image == "" {
			continue
		}
		if first, twice := names[im.Name]; err == nil && twice {
			err = fault.Hint(fmt.Errorf("line %d has the name %q already", first, im.Name), "write another name behind the image")
		}
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s:%d: %w", file, line, err))
			continue
		}
		names[im.Name] = line
		images = append(images, im)
	}
	if err := lines.Err(); err != nil {
		mistakes = append(mistakes, fmt.Errorf("%s:%d: %w", file, line+1, err))
	}
	if bounded.N <= 0 {
		return nil, fmt.Errorf("%s: it is larger than %d MiB", file, maxMirrorList>>20)
	}
	if len(images) == 0 && len(mistakes) == 0 {
		return nil, fmt.Errorf("%s: it names no image", file)
	}
	return images, errors.Join(mistakes...)
}

func parseMirrorLine(text string) (MirrorImage, error) {
	words := strings.Fields(text)
	for i, w := range words {
		if strings.HasPrefix(w, "#") { // within a word it is enroot's REGISTRY#IMAGE
			words = words[:i]
			break
		}
	}
	var im MirrorImage
	switch len(words) {
	case 0:
		return im, nil
	case 1:
		name, err := enrootName(words[0])
		if err != nil {
			return im, err
		}
		im = MirrorImage{Image: words[0], Name: name}
	case 2:
		im = MirrorImage{Image: words[0], Name: words[1]}
	default:
		return im, fault.Hint(fmt.Errorf("%q is too much: a line is an image and perhaps a name", words[2]), `comments begin with "#"`)
	}
	if !linkName.MatchString(im.Name) || strings.HasPrefix(im.Name, sharedPrefix) || strings.HasSuffix(im.Name, sharedExt) {
		return im, fault.Hint(fmt.Errorf("%q cannot be the name of an image here", im.Name), "use letters, digits and . _ + -, without .sqsh behind them or sha256- before")
	}
	return im, nil
}

// enrootName is what enroot import calls the file of an image, without the ending: nvidia+pytorch+25.11-py3.
func enrootName(image string) (string, error) {
	ref, err := source.Parse(image)
	if err != nil {
		return "", err
	}
	if ref.Transport != source.Docker || ref.Tag == "" {
		return "", fault.Hint(fmt.Errorf("%s has no tag to be named after", image), "write a name behind the image")
	}
	return strings.ReplaceAll(strings.TrimPrefix(ref.Repository(), "library/"), "/", "+") + "+" + ref.Tag, nil
}

// Mirror brings the files of a mirror up to date. It returns what became of each image, and an error if any of them cannot be had.
// Several at once take turns; one that is killed leaves no link to a file that is not whole.
func (s *Session) Mirror(ctx context.Context, m Mirror) ([]Mirrored, error) {
	if err := makePublic(m.Dir); err != nil {
		return nil, err
	}
	lock, err := filelock.Acquire(ctx, filepath.Join(m.Dir, "mirror"), "brings images up to date", progress.Waiting(ctx))
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	var done []Mirrored
	var failed []error
	current := map[string]bool{}
	for _, im := range m.Images {
		out, err := s.mirrorOne(ctx, m, im)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			out.Error = err.Error()
			failed = append(failed, fmt.Errorf("%s: %w", im.Image, err))
		}
		current[out.File] = true
		done = append(done, out)
	}
	if m.Keep != nil {
		if err := m.removeOld(current); err != nil {
			failed = append(failed, err)
		}
	}
	return done, errors.Join(failed...)
}

// makePublic makes a directory that others may read, whatever the umask. One that is there stays as its owner made it.
func makePublic(dir string) error {
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// mirrorOne brings one image up to date.
func (s *Session) mirrorOne(ctx context.Context, m Mirror, im MirrorImage) (Mirrored, error) {
	out := Mirrored{Name: im.Name, Image: im.Image, State: MirrorMissing}
	link := filepath.Join(m.Dir, im.Name+sharedExt)
	before, err := linkedFile(link)
	if err != nil {
		return out, err
	}
	if before != "" && used(before) {
		out.State, out.File = MirrorKept, before
	}
	subject, err := s.Open(im.Image, m.Wanted)
	if err != nil {
		return out, err
	}
	defer subject.Close()
	file, err := s.Share(ctx, subject, m.Dir, m.Writing)
	if err != nil {
		return out, err
	}
	if file == before {
		out.State = MirrorUnchanged
		return out, nil
	}
	if err := pointTo(link, filepath.Base(file)); err != nil {
		return out, err
	}
	out.State, out.File = MirrorNew, file
	return out, nil
}

// linkedFile returns the path of the file that one of our links leads to, "" if there is no such link.
func linkedFile(link string) (string, error) {
	target, err := os.Readlink(link)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil || !isShared(target):
		return "", fault.Hint(fmt.Errorf("%s is something else than a link of a mirror", link), "remove it, or write another name behind the image in the list")
	}
	return filepath.Join(filepath.Dir(link), target), nil
}

// pointTo makes a link lead to target, at once for everybody.
func pointTo(link, target string) error {
	next := filepath.Join(filepath.Dir(link), "."+filepath.Base(link)+".new")
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // one that was killed may have left it
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	return os.Rename(next, link)
}

// removeOld removes the files that belong to no current image and were not asked for within the time to keep, and the links to them.
func (m Mirror) removeOld(current map[string]bool) error {
	found, err := os.ReadDir(m.Dir)
	if err != nil {
		return err
	}
	old := map[string]bool{}
	for _, e := range found {
		if path := filepath.Join(m.Dir, e.Name()); !current[path] && unusedFor(e, *m.Keep) {
			old[path] = true
		}
	}
	for _, e := range found { // links first: none is ever left without its file
		link := filepath.Join(m.Dir, e.Name())
		if e.Type() != fs.ModeSymlink {
			continue
		}
		if file, err := linkedFile(link); err != nil || !old[file] {
			continue // not ours, or still of use
		}
		if err := os.Remove(link); err != nil {
			return err
		}
	}
	for path := range old {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
