package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

// libraryReport is what `sconce inspect --gpu` shows of a single file with device code.
type libraryReport struct {
	Path     string               `json:"path"`
	Format   fatbin.Format        `json:"format"`
	Regions  map[fatbin.Place]int `json:"regions"`
	Code     []codeCount          `json:"code"`
	ROCm     []string             `json:"rocm,omitempty"`
	Problems []string             `json:"problems"`
	Verified *verified            `json:"verified,omitempty"`
}

// codeCount sums up images of one kind for one architecture in one kind of place. Sizes are in bytes.
type codeCount struct {
	Place    fatbin.Place       `json:"place"`
	Kind     string             `json:"kind"`
	Arch     string             `json:"arch"` // "90a"
	Packed   fatbin.Compression `json:"packed"`
	Images   int                `json:"images"`
	Size     int64              `json:"size"`     // in the file; images that are packed as one have no size of their own
	Unpacked int64              `json:"unpacked"` // as far as headers tell
}

// verified says what unpacking every image has shown.
type verified struct {
	Images int   `json:"images"` // that are what their headers say
	Opaque int   `json:"opaque"` // that nothing can be compared with
	Bytes  int64 `json:"bytes"`  // unpacked
}

// library is an open file that may hold device code.
type library struct {
	name string
	file *os.File
	code *fatbin.File
}

// openLibraries opens the files if every one of them is of a kind that can hold device code. It returns nil for everything
// else: an image, or a mistake. Headers are read with all cores.
func openLibraries(names []string, o fatbin.Options) []*library {
	libraries := make([]*library, len(names))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range names {
		g.Go(func() (err error) {
			libraries[i], err = openLibrary(name, o)
			return err
		})
	}
	if g.Wait() == nil {
		return libraries
	}
	closeLibraries(libraries)
	return nil
}

func closeLibraries(libraries []*library) {
	for _, l := range libraries {
		if l != nil {
			l.file.Close()
		}
	}
}

func openLibrary(name string, o fatbin.Options) (*library, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	l := &library{name: name, file: f}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fatbin.ErrFormat
	}
	if err == nil {
		l.code, err = fatbin.Scan(f, info.Size(), o)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return l, nil
}

// inspectLibraries shows the device code of files.
func (a *app) inspectLibraries(ctx context.Context, o inspectOptions, libraries []*library) error {
	defer closeLibraries(libraries)
	problems := 0
	reports := make([]*libraryReport, len(libraries))
	for i, l := range libraries {
		r := newLibraryReport(l.name, l.code)
		if err := r.verify(ctx, o.verify, l); err != nil {
			return err
		}
		problems += len(r.Problems)
		reports[i] = r
	}
	if err := a.showLibraries(ctx, o, reports); err != nil {
		return err
	}
	if problems > 0 {
		return fault.Problem(fmt.Errorf("%s where device code is not what its format says", units.Number(problems, "place")))
	}
	return nil
}

func (r *libraryReport) verify(ctx context.Context, wanted bool, l *library) error {
	if !wanted {
		return nil
	}
	v, err := l.code.Verify(ctx)
	if err != nil {
		return fmt.Errorf("verify %s: %w", l.name, err)
	}
	r.Verified = &verified{v.Images, v.Opaque, v.Bytes}
	for _, p := range v.Problems {
		r.Problems = append(r.Problems, p.String())
	}
	return nil
}

func (a *app) showLibraries(ctx context.Context, o inspectOptions, reports []*libraryReport) error {
	switch {
	case o.json && len(reports) == 1:
		return a.printJSON(reports[0])
	case o.json:
		return a.printJSON(reports)
	}
	for i, r := range reports {
		if len(reports) > 1 {
			if _, err := fmt.Fprintf(a.out, "%s%s:\n", strings.Repeat("\n", min(i, 1)), ui.Clean(r.Path)); err != nil {
				return err
			}
		}
		for _, p := range r.Problems {
			progress.Warn(ctx, r.Path+": "+p, "")
		}
		if err := r.print(a.out); err != nil {
			return err
		}
	}
	return nil
}

func newLibraryReport(name string, code *fatbin.File) *libraryReport {
	r := &libraryReport{Path: name, Format: code.Format, Regions: map[fatbin.Place]int{}, Code: []codeCount{}, Problems: []string{}}
	counts := map[codeCount]*codeCount{}
	for i := range code.Regions {
		region := &code.Regions[i]
		r.Regions[region.Place]++
		for e := range region.Images() {
			key := codeCount{Place: region.Place, Kind: e.Kind.String(), Arch: fmt.Sprintf("%d%s", e.Arch.SM, e.Arch.Variant), Packed: e.Compression}
			c := counts[key]
			if c == nil {
				c = &codeCount{Place: key.Place, Kind: key.Kind, Arch: key.Arch, Packed: key.Packed}
				counts[key] = c
			}
			c.Images++
			c.Size += e.HeaderSize + e.PayloadSize
			c.Unpacked += e.UncompressedSize
		}
	}
	for _, c := range counts {
		r.Code = append(r.Code, *c)
	}
	slices.SortFunc(r.Code, func(a, b codeCount) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), cmp.Compare(a.Kind, b.Kind), cmp.Compare(len(a.Arch), len(b.Arch)), cmp.Compare(a.Arch, b.Arch),
			cmp.Compare(a.Packed, b.Packed))
	})
	for _, b := range code.Bundles {
		for _, t := range b.Targets {
			if !slices.Contains(r.ROCm, t.ID) {
				r.ROCm = append(r.ROCm, t.ID)
			}
		}
	}
	for _, p := range code.Problems {
		r.Problems = append(r.Problems, p.String())
	}
	return r
}

func (r *libraryReport) print(w io.Writer) error {
	if len(r.Code)+len(r.ROCm) == 0 {
		_, err := fmt.Fprintln(w, "no device code")
		return err
	}
	rows := [][]string{{"PLACE", "KIND", "ARCH", "PACKED", "IMAGES", "SIZE", "UNPACKED"}}
	for _, c := range r.Code {
		rows = append(rows, []string{
			string(c.Place), c.Kind, c.Arch, string(c.Packed), fmt.Sprint(c.Images), units.Size(c.Size), units.Size(c.Unpacked),
		})
	}
	if err := printTable(w, rows); err != nil {
		return err
	}
	for _, id := range r.ROCm {
		if _, err := fmt.Fprintln(w, "ROCm", ui.Clean(id)); err != nil {
			return err
		}
	}
	if v := r.Verified; v != nil {
		_, err := fmt.Fprintf(w, "%d images unpacked to %s are what their headers say; %d cannot be compared\n", v.Images, units.Size(v.Bytes), v.Opaque)
		return err
	}
	return nil
}

// errNoLibrary says what the options for files, and more than one argument, are for.
var errNoLibrary = errors.New("several arguments, --verify and --no-search go with --gpu and files that can hold device code, such as libraries")
