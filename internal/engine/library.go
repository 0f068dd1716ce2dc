package engine

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/fatbin"
)

// LibraryReport is the device code of a single file.
type LibraryReport struct {
	Path     string               `json:"path"`
	Format   fatbin.Format        `json:"format"`
	Regions  map[fatbin.Place]int `json:"regions"`
	Code     []CodeCount          `json:"code"`
	ROCm     []string             `json:"rocm,omitempty"`
	Problems []string             `json:"problems"`
	Verified *VerifiedCode        `json:"verified,omitempty"`
}

// CodeCount sums up images of one kind for one architecture in one kind of place. Sizes are in bytes.
type CodeCount struct {
	Place    fatbin.Place       `json:"place"`
	Kind     string             `json:"kind"`
	Arch     string             `json:"arch"` // "90a"
	Packed   fatbin.Compression `json:"packed"`
	Images   int                `json:"images"`
	Size     int64              `json:"size"`     // in the file; images that are packed as one have no size of their own
	Unpacked int64              `json:"unpacked"` // as far as headers tell
}

// VerifiedCode says what unpacking every image has shown.
type VerifiedCode struct {
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

// LibraryOptions say how files are looked at.
type LibraryOptions struct {
	SectionsOnly bool // look only where compilers put device code
	Verify       bool // unpack it, and compare it with its headers
}

// Libraries reports on files if every one of them is of a kind that can hold device code. It returns none for everything else: an image, or a
// mistake. Headers are read with all cores.
func Libraries(ctx context.Context, names []string, o LibraryOptions) ([]*LibraryReport, error) {
	libraries := openLibraries(names, fatbin.Options{SectionsOnly: o.SectionsOnly})
	defer closeLibraries(libraries)
	reports := make([]*LibraryReport, 0, len(libraries))
	for _, l := range libraries {
		r := reportOf(l.name, l.code)
		if o.Verify {
			if err := r.verify(ctx, l); err != nil {
				return nil, err
			}
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// openLibraries returns nil when one of the files is none.
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

func reportOf(name string, code *fatbin.File) *LibraryReport {
	r := &LibraryReport{Path: name, Format: code.Format, Regions: map[fatbin.Place]int{}, Code: []CodeCount{}, Problems: []string{}}
	counts := map[CodeCount]*CodeCount{}
	for i := range code.Regions {
		region := &code.Regions[i]
		r.Regions[region.Place]++
		for e := range region.Images() {
			key := CodeCount{Place: region.Place, Kind: e.Kind.String(), Arch: fmt.Sprintf("%d%s", e.Arch.SM, e.Arch.Variant), Packed: e.Compression}
			c := counts[key]
			if c == nil {
				c = &CodeCount{Place: key.Place, Kind: key.Kind, Arch: key.Arch, Packed: key.Packed}
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
	slices.SortFunc(r.Code, func(a, b CodeCount) int {
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

func (r *LibraryReport) verify(ctx context.Context, l *library) error {
	v, err := l.code.Verify(ctx)
	if err != nil {
		return fmt.Errorf("verify %s: %w", l.name, err)
	}
	r.Verified = &VerifiedCode{v.Images, v.Opaque, v.Bytes}
	for _, p := range v.Problems {
		r.Problems = append(r.Problems, p.String())
	}
	return nil
}
