package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

// inspectLibraries shows the device code of files.
func (a *app) inspectLibraries(ctx context.Context, o inspectOptions, reports []*engine.LibraryReport) error {
	if err := a.showLibraries(ctx, o, reports); err != nil {
		return err
	}
	problems := 0
	for _, r := range reports {
		problems += len(r.Problems)
	}
	if problems > 0 {
		return fault.Problem(fmt.Errorf("%s where device code is not what its format says", units.Number(problems, "place")))
	}
	return nil
}

func (a *app) showLibraries(ctx context.Context, o inspectOptions, reports []*engine.LibraryReport) error {
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
		if err := printLibrary(a.out, r); err != nil {
			return err
		}
	}
	return nil
}

func printLibrary(w io.Writer, r *engine.LibraryReport) error {
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
