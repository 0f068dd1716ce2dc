package conda

import (
	"archive/tar"
	"archive/zip"
	"compress/bzip2"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/zipread"
)

// Limits on what a package may claim. Each is far above the largest package known (pytorch with CUDA: 1.5 GB packed, 15,000
// files) and only there so that a hostile file costs bounded memory and time.
const (
	maxMembers    = 500_000
	maxUnpacked   = 64 << 30  // bytes, of all members of an archive
	maxRatio      = 512       // between that and the archive's size, beyond freeUnpacked: text of one line again and again has 100
	freeUnpacked  = 1 << 30   // bytes
	maxMetadata   = 256 << 20 // bytes of a file of info/ that is read whole; paths.json has about 250 for each file
	maxZipMembers = 64        // there are three
	maxWindow     = 128 << 20 // bytes that zstd looks back; what its highest level (22) does
)

// PackageError says what is wrong with a package, and where in it.
type PackageError struct {
	File   string // the archive's file name
	Member string // the file in it; "" when it is the package as a whole
	Err    error
}

func (e *PackageError) Error() string {
	if e.Member == "" {
		return fmt.Sprintf("conda package %s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("conda package %s: %s: %v", e.File, e.Member, e.Err)
}

func (e *PackageError) Unwrap() error { return e.Err }

// Hint says what can be done about it: packages come from others.
func (e *PackageError) Hint() string {
	if h := fault.HintOf(e.Err); h != "" {
		return h
	}
	return "the package is damaged or was not made by the rules; choose another build of it, or tell its channel"
}

// archive is an open package: a zip of two tars (".conda") or one tar (".tar.bz2"), see CEP 35. It may be read many times, each
// time from beginning to end.
type archive struct {
	name  string                                         // the file's name
	limit int64                                          // bytes that it may unpack to
	parts map[string]func() (r io.ReadCloser, err error) // "info" and "pkg", decompressed; one tar has both
	tar   *os.File                                       // of a .tar.bz2, once it is decompressed
}

func (a *archive) close() {
	if a.tar != nil {
		a.tar.Close()
	}
}

func (a *archive) bad(member, format string, args ...any) error {
	return &PackageError{File: a.name, Member: member, Err: fmt.Errorf(format, args...)}
}

// openArchive opens the package that r, which has size bytes, holds.
func openArchive(r io.ReaderAt, size int64, name string) (*archive, error) {
	a := &archive{name: name, limit: unpackedLimit(size), parts: map[string]func() (io.ReadCloser, error){}}
	switch {
	case strings.HasSuffix(name, ".conda"):
		return a, a.openZip(r, size)
	case strings.HasSuffix(name, ".tar.bz2"):
		both := func() (io.ReadCloser, error) {
			return io.NopCloser(bzip2.NewReader(io.NewSectionReader(r, 0, size))), nil
		}
		a.parts["info"], a.parts["pkg"] = both, both
		return a, nil
	}
	return nil, a.bad("", `its name ends neither in ".conda" nor in ".tar.bz2"`)
}

// unpackedLimit is how much an archive of a size may unpack to, in bytes: as much as any package does, so that a small file cannot
// fill a disk.
func unpackedLimit(size int64) int64 {
	return min(maxUnpacked, freeUnpacked+min(size, maxUnpacked)*maxRatio)
}

// expand decompresses a .tar.bz2 into a temporary file in dir: bzip2 is slow, and the archive is read twice. The caller closes the
// archive.
func (a *archive) expand(ctx context.Context, dir string) error {
	if !strings.HasSuffix(a.name, ".tar.bz2") {
		return nil
	}
	packed, err := a.parts["pkg"]()
	if err != nil {
		return err
	}
	if a.tar, err = os.CreateTemp(dir, "tar-*"); err != nil {
		return err
	}
	n, err := io.Copy(onlyWriter{spoolWriter{a.tar}}, io.LimitReader(ctxio.Reader(ctx, packed), a.limit))
	if err != nil {
		return a.blame("", err)
	}
	both := func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(a.tar, 0, n)), nil }
	a.parts["info"], a.parts["pkg"] = both, both
	return nil
}

// openZip finds the two tars of a .conda file, whose members may have any order.
func (a *archive) openZip(r io.ReaderAt, size int64) error {
	limited := &budgetReaderAt{r: r, left: 1 << 20}
	z, err := zip.NewReader(limited, size)
	if err != nil {
		return a.bad("", "read the archive's directory: %w", err)
	}
	if len(z.File) > maxZipMembers {
		return a.bad("", "the archive has %d members; more than %d are not believed", len(z.File), maxZipMembers)
	}
	if err := zipread.Check(z, limited, size); err != nil {
		return a.bad("", "%w", err)
	}
	for _, f := range z.File {
		part, err := zipPart(f)
		if err == nil && part != "" {
			err = a.addPart(part, f, r)
		}
		if err != nil {
			return a.bad(f.Name, "%w", err)
		}
	}
	for _, part := range []string{"info", "pkg"} {
		if a.parts[part] == nil {
			return a.bad("", "it has no member %s-*.tar.zst", part)
		}
	}
	return nil
}

// zipPart says which of the two tars a member is; "" for the others.
func zipPart(f *zip.File) (string, error) {
	if f.Name == "metadata.json" {
		return "", checkFormat(f)
	}
	part, _, ok := strings.Cut(f.Name, "-")
	if !ok || part != "info" && part != "pkg" {
		return "", nil
	}
	switch {
	case !strings.HasSuffix(f.Name, ".tar.zst"):
		return "", errors.New("it is no .tar.zst; this program reads version 2 of the format")
	case f.Method != zip.Store || f.CompressedSize64 != f.UncompressedSize64:
		return "", errors.New("it is not stored as it is, as the members of a .conda file are")
	}
	return part, nil
}

// checkFormat reads the version of the format (CEP 35).
func checkFormat(f *zip.File) error {
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	var metadata struct {
		Version *int `json:"conda_pkg_format_version"`
	}
	if err := json.NewDecoder(io.LimitReader(r, 1<<20)).Decode(&metadata); err != nil {
		return err
	}
	if metadata.Version != nil && *metadata.Version != 2 {
		err := fmt.Errorf("the package's format is version %d; this program reads 2", *metadata.Version)
		return fault.Hint(err, "a newer sconce may read it")
	}
	return nil
}

func (a *archive) addPart(part string, f *zip.File, r io.ReaderAt) error {
	if a.parts[part] != nil {
		return errors.New("there are two of its kind")
	}
	at, err := f.DataOffset()
	if err != nil {
		return err
	}
	size := int64(f.CompressedSize64)
	a.parts[part] = func() (io.ReadCloser, error) {
		z, err := zstd.NewReader(io.NewSectionReader(r, at, size),
			zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return nil
}

// budgetReaderAt stops a reader that reads more than it should need to.
type budgetReaderAt struct {
	r    io.ReaderAt
	left int64
}

func (b *budgetReaderAt) ReadAt(p []byte, off int64) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, errors.New("the archive's directory is larger than is believed")
	}
	return b.r.ReadAt(p, off)
}

// errEnough, returned by a visitor of [archive.walk], ends the walk without an error.
var errEnough = errors.New("enough")

// walk shows the members of a part in their order: "info" for those below info/, "pkg" for all others. Nothing that a member says
// of itself has been checked, but that its name is a plain relative path.
func (a *archive) walk(ctx context.Context, part string, visit func(h *tar.Header, r io.Reader) error) error {
	content, err := a.parts[part]()
	if err != nil {
		return a.bad("", "%w", err)
	}
	defer content.Close()
	limited := &io.LimitedReader{R: ctxio.Reader(ctx, content), N: a.limit}
	t := tar.NewReader(limited)
	for n := 0; ; n++ {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && limited.N <= 0:
			return a.tooLarge()
		case err != nil:
			return a.bad("", "read its %s: %w", part, err)
		case n >= maxMembers:
			return a.bad("", "it has more than %d members", maxMembers)
		}
		if err := layer.CheckPAX(h); err != nil {
			return a.bad(h.Name, "%w", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		h.Name = strings.TrimPrefix(h.Name, "./")
		if h.Typeflag == tar.TypeDir {
			h.Name = strings.TrimRight(h.Name, "/")
		}
		if h.Name == "" || h.Name == "." {
			continue // the root
		}
		if err := checkPath(h.Name); err != nil {
			return a.bad(h.Name, "%w", err)
		}
		if below(h.Name, "info") != (part == "info") {
			continue
		}
		if err := visit(h, t); errors.Is(err, errEnough) {
			return nil
		} else if errors.Is(err, io.ErrUnexpectedEOF) && limited.N <= 0 {
			return a.tooLarge()
		} else if err != nil {
			return a.blame(h.Name, err)
		}
	}
}

func (a *archive) tooLarge() error { return a.bad("", "it unpacks to more than %d bytes", a.limit) }

// blame gives an error the member that it is about, unless it has one or is about something else.
func (a *archive) blame(member string, err error) error {
	var disk spoolError
	if errors.As(err, &disk) {
		return fmt.Errorf("unpack conda package %s: %w", a.name, disk.error)
	}
	var known *PackageError
	if errors.As(err, &known) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &PackageError{File: a.name, Member: member, Err: err}
}

// readMember reads a small member whole.
func readMember(h *tar.Header, r io.Reader) ([]byte, error) {
	if h.Typeflag != tar.TypeReg {
		return nil, errors.New("it is no regular file")
	}
	if h.Size > maxMetadata {
		return nil, fmt.Errorf("it has %d bytes; more than %d are not believed", h.Size, maxMetadata)
	}
	return io.ReadAll(r)
}
