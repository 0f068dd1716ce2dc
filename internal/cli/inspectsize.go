package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/report"
	"sconce.dev/sconce/internal/units"
)

// inspectSize shows where the room in an image goes.
func (a *app) inspectSize(ctx context.Context, o inspectOptions) error {
	s, subject, err := a.openImage(ctx, o.image, o.platform)
	if err != nil {
		return err
	}
	defer subject.Close()
	sizes, err := s.Sizes(ctx, subject)
	if err != nil {
		return fmt.Errorf("inspect %s: %w", o.image, err)
	}
	if o.json {
		return a.printJSON(sizes)
	}
	return a.printSizes(sizes, o.image)
}

// sizeRows is how many rows a table of sizes has without --verbose: what fits a screen with the others.
const sizeRows = 15

func (a *app) printSizes(s *report.Sizes, image string) error {
	if _, err := fmt.Fprintf(a.out, "%s in %s files; %s as stored\n", units.Size(s.Size), strconv.Itoa(s.Files), units.Size(s.Stored)); err != nil {
		return err
	}
	tables := []struct {
		heads []string
		parts []report.Part
		row   func(p report.Part) []string
	}{
		{[]string{"PACKAGE", "KIND", "SIZE", "FILES"}, s.Packages, func(p report.Part) []string {
			return []string{strings.TrimSpace(p.Name + " " + p.Version), p.Kind, units.Size(p.Size), strconv.Itoa(p.Files)}
		}},
		{[]string{"DIRECTORY", "SIZE", "FILES"}, s.Directories, func(p report.Part) []string {
			return []string{p.Name, units.Size(p.Size), strconv.Itoa(p.Files)}
		}},
		{[]string{"COULD GO", "SIZE", "BY sconce slim " + image}, s.Removable, func(p report.Part) []string {
			return []string{p.Name, units.Size(p.Size), p.Flags}
		}},
	}
	for _, t := range tables {
		if len(t.parts) == 0 {
			continue
		}
		shown := t.parts
		if len(shown) > sizeRows+1 && !a.flags.verbose { // one more row rather than a line about it
			shown = shown[:sizeRows]
		}
		rows := [][]string{t.heads}
		for _, p := range shown {
			rows = append(rows, t.row(p))
		}
		if more := len(t.parts) - len(shown); more > 0 {
			rows = append(rows, append([]string{fmt.Sprintf("%d more (--verbose)", more)}, make([]string, len(t.heads)-1)...))
		}
		if _, err := fmt.Fprintln(a.out); err != nil {
			return err
		}
		if err := printTable(a.out, rows); err != nil {
			return err
		}
	}
	return nil
}
