package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"sconce.dev/sconce/internal/event"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/ui"
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

// openLibrary opens a path that is a file with device code, or may be one. It returns nil for everything else, which is an
// image.
func openLibrary(name string) (*os.File, *fatbin.File) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() {
		if code, err := fatbin.Scan(f, info.Size(), fatbin.Options{}); err == nil {
			return f, code
		}
	}
	f.Close()
	return nil, nil
}

// inspectLibrary shows the device code of a single file, image by image if they are verified.
func (a *app) inspectLibrary(ctx context.Context, o inspectOptions, code *fatbin.File) error {
	r := newLibraryReport(o.image, code)
	if o.verify {
		v, err := code.Verify(ctx)
		if err != nil {
			return fmt.Errorf("verify %s: %w", o.image, err)
		}
		r.Verified = &verified{v.Images, v.Opaque, v.Bytes}
		for _, p := range v.Problems {
			r.Problems = append(r.Problems, p.String())
		}
	}
	if err := a.showLibrary(ctx, o, r); err != nil {
		return err
	}
	if len(r.Problems) > 0 {
		return fault.Problem(fmt.Errorf("%s is not what the format of CUDA's device code says, in %d places", o.image, len(r.Problems)))
	}
	return nil
}

func (a *app) showLibrary(ctx context.Context, o inspectOptions, r *libraryReport) error {
	if o.json {
		return a.printJSON(r)
	}
	for _, p := range r.Problems {
		event.Warn(ctx, p, "")
	}
	return r.print(a.out)
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
			string(c.Place), c.Kind, c.Arch, string(c.Packed), fmt.Sprint(c.Images), ui.Size(c.Size), ui.Size(c.Unpacked),
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
		_, err := fmt.Fprintf(w, "%d images unpacked to %s are what their headers say; %d cannot be compared\n", v.Images, ui.Size(v.Bytes), v.Opaque)
		return err
	}
	return nil
}

var errVerifyFile = errors.New("--verify takes a file with device code, such as a library")
