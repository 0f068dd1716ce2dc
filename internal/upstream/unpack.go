package upstream

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/bzip2"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/zipread"
)

// Limits on what an archive may unpack to. The largest sources are some GiB, of some hundred thousand files.
const (
	maxBytes   = 64 << 30
	maxEntries = 4 << 20
)

func digestOf(ctx context.Context, r io.Reader) (store.Digest, error) {
	h := sha256.New()
	_, err := io.Copy(h, ctxio.Reader(ctx, r))
	return store.SumDigest(h), err
}

// entry is a file of an archive. Content is nil of what is no regular file.
type entry struct {
	tar.Header
	content io.Reader
}

// walkArchive calls visit for each entry of an archive, with clean names below "."; nothing of it leads out.
func walkArchive(ctx context.Context, f *os.File, visit func(e entry) error) error {
	head := make([]byte, 4)
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	limit := &limits{visit: visit}
	if string(head) == "PK\x03\x04" {
		return walkZip(ctx, f, limit)
	}
	return walkTar(ctx, f, limit)
}

// limits passes entries on as long as there are not too many of them.
type limits struct {
	visit   func(e entry) error
	entries int
	bytes   int64
}

func (l *limits) pass(e entry) error {
	name, err := cleanName(e.Name)
	if err != nil || name == "." {
		return err
	}
	if strings.Contains("/"+name, "/"+layer.WhiteoutPrefix) {
		return fmt.Errorf("its entry %q cannot be in an image: names that start with %s stand for files that are removed", name, layer.WhiteoutPrefix)
	}
	if l.entries++; l.entries > maxEntries {
		return fmt.Errorf("it has more than %d files", maxEntries)
	}
	if l.bytes += max(0, e.Size); l.bytes > maxBytes {
		return fmt.Errorf("it has more than %d GiB when it is unpacked", int64(maxBytes)>>30)
	}
	e.Name = name
	if e.Typeflag == tar.TypeLink {
		if e.Linkname, err = cleanName(e.Linkname); err != nil {
			return err
		}
	}
	return l.visit(e)
}

// cleanName refuses names that lead out of the archive.
func cleanName(name string) (string, error) {
	clean := path.Clean(strings.TrimLeft(name, "/"))
	if clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsRune(name, 0) || name == "" {
		return "", fmt.Errorf("its entry %q leads out of it", name)
	}
	return clean, nil
}

// magicBzip2 starts a bzip2 stream, before a digit.
const magicBzip2 = "BZh"

func walkTar(ctx context.Context, f *os.File, l *limits) error {
	br := bufio.NewReaderSize(ctxio.Reader(ctx, f), 64<<10)
	var plain io.Reader
	if head, _ := br.Peek(len(magicBzip2)); string(head) == magicBzip2 {
		plain = bzip2.NewReader(br)
	} else {
		z, err := layer.Decompress(br)
		if err != nil {
			return err
		}
		defer z.Close()
		plain = z
	}
	t := tar.NewReader(plain)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("it is no archive that can be read, or a damaged one: %w", err)
		}
		if err := layer.CheckPAX(h); err != nil {
			return fmt.Errorf("its entry %q: %w", h.Name, err)
		}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
		case tar.TypeXGlobalHeader:
			continue
		default:
			return fmt.Errorf("its entry %q is neither file, directory nor link", h.Name)
		}
		if err := l.pass(entry{*h, t}); err != nil {
			return err
		}
	}
}

func walkZip(ctx context.Context, f *os.File, l *limits) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	z, err := zipread.Open(f, info.Size())
	if err != nil {
		return fmt.Errorf("it is no archive that can be read, or a damaged one: %w", err)
	}
	for _, file := range z.File {
		if err := passZipped(ctx, file, l); err != nil {
			return err
		}
	}
	return nil
}

// maxLink bounds the target of a link in a zip, in bytes (PATH_MAX).
const maxLink = 4096

func passZipped(ctx context.Context, file *zip.File, l *limits) error {
	if file.UncompressedSize64 > maxBytes {
		return fmt.Errorf("its entry %q is larger than %d GiB", file.Name, int64(maxBytes)>>30)
	}
	mode := file.Mode()
	e := entry{Header: tar.Header{Name: file.Name, Typeflag: tar.TypeReg, Mode: int64(mode.Perm()), Size: int64(file.UncompressedSize64)}}
	if strings.HasSuffix(file.Name, "/") || mode.IsDir() {
		e.Typeflag, e.Size = tar.TypeDir, 0
		return l.pass(e)
	}
	r, err := file.Open()
	if err != nil {
		return fmt.Errorf("its entry %q: %w", file.Name, err)
	}
	defer r.Close()
	switch {
	case mode&fs.ModeSymlink != 0:
		target, err := ctxio.ReadAtMost(r, maxLink)
		if err != nil {
			return fmt.Errorf("its entry %q is a link that cannot be read", file.Name)
		}
		e.Typeflag, e.Linkname, e.Size = tar.TypeSymlink, string(target), 0
	case !mode.IsRegular():
		return fmt.Errorf("its entry %q is neither file, directory nor link", file.Name)
	default:
		e.content = ctxio.Reader(ctx, r)
	}
	return l.pass(e)
}

// topOf returns the one directory that holds all of an archive, "" if there is none.
func topOf(ctx context.Context, f *os.File) (string, error) {
	top, several := "", false
	err := walkArchive(ctx, f, func(e entry) error {
		first, rest, _ := strings.Cut(e.Name, "/")
		switch {
		case rest == "" && e.Typeflag != tar.TypeDir, top != "" && first != top:
			several = true
		default:
			top = first
		}
		return nil
	})
	if err != nil || several {
		return "", err
	}
	_, err = f.Seek(0, io.SeekStart)
	return top, err
}

// packer writes the files of archives as one tar that depends on nothing but names, contents, and whether files may be run. A later
// file takes the place of an earlier one, as when both are unpacked.
type packer struct {
	w    *tar.Writer
	root string // that all names are put below, without slashes around it
	when time.Time
	dirs map[string]bool
}

// add adds an archive below dir, without the one directory that holds all of it. Entries that leave says are left out.
func (p *packer) add(ctx context.Context, f *os.File, dir string, leave func(name string) bool) error {
	top, err := topOf(ctx, f)
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	strip := func(name string) string {
		if top == "" {
			return name
		}
		return strings.TrimPrefix(strings.TrimPrefix(name, top), "/")
	}
	return walkArchive(ctx, f, func(e entry) error {
		name := strip(e.Name)
		if name == "" || leave != nil && leave(name) {
			return nil
		}
		e.Name = path.Join(dir, name)
		if e.Typeflag == tar.TypeLink {
			e.Linkname = path.Join(dir, strip(e.Linkname))
		}
		return p.put(e)
	})
}

func (p *packer) put(e entry) error {
	h := tar.Header{Name: path.Join(p.root, e.Name), Typeflag: e.Typeflag, Mode: 0o644, ModTime: p.when, Format: tar.FormatPAX}
	switch e.Typeflag {
	case tar.TypeDir:
		h.Name, h.Mode = h.Name+"/", 0o755
		if p.dirs[e.Name] {
			return nil
		}
		p.dirs[e.Name] = true
	case tar.TypeSymlink:
		h.Linkname, h.Mode = e.Linkname, 0o777
	case tar.TypeLink:
		h.Linkname = path.Join(p.root, e.Linkname)
	default:
		h.Size = e.Size
		if e.Mode&0o111 != 0 {
			h.Mode = 0o755
		}
	}
	if err := p.w.WriteHeader(&h); err != nil {
		return fmt.Errorf("entry %q: %w", e.Name, err)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	if n, err := io.Copy(p.w, e.content); err != nil || n != h.Size {
		return fmt.Errorf("entry %q cannot be read: %w", e.Name, errors.Join(err, sizeError(n, h.Size)))
	}
	return nil
}

func sizeError(got, want int64) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("it has %d bytes, and its header says %d", got, want)
}

// pack writes the files of a source as one tar, below root, and returns the patches that the source itself brings.
func (p *Pinned) pack(ctx context.Context, st *store.Store, to io.Writer, root string, when time.Time) (patches []patch, err error) {
	if when.IsZero() {
		when = layer.DefaultModTime
	}
	buffered := bufio.NewWriterSize(to, 1<<20)
	w := &packer{w: tar.NewWriter(buffered), root: root, when: when, dirs: make(map[string]bool)}
	err = w.put(entry{Header: tar.Header{Name: ".", Typeflag: tar.TypeDir}})
	switch {
	case err != nil:
	case p.Debian != "":
		patches, err = p.packDebian(ctx, st, w)
	default:
		err = withBlob(st, p.Files[0], func(f *os.File) error { return w.add(ctx, f, "", nil) })
	}
	return patches, errors.Join(err, w.close(buffered, err))
}

// close ends the tar, unless writing it has failed.
func (p *packer) close(buffered *bufio.Writer, failed error) error {
	if failed != nil {
		return nil //nolint:nilerr // reported where it failed
	}
	return errors.Join(p.w.Close(), buffered.Flush())
}

// withBlob opens a file of a source.
func withBlob(st *store.Store, file File, do func(f *os.File) error) error {
	f, err := st.OpenBlob(file.SHA256)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := do(f); err != nil {
		return fmt.Errorf("unpack %s: %w", file.Name, err)
	}
	return nil
}

// patch is a patch with its name.
type patch struct {
	name   string
	text   []byte
	offset bool // its hunks may stand at other lines than they say
}

// readAllOf reads a small file of an archive.
func readAllOf(e entry, limit int64) ([]byte, error) {
	data, err := ctxio.ReadAtMost(e.content, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.Name, err)
	}
	return data, nil
}
