package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/units"
)

// errNoFacts says what the options for signed facts are for.
var errNoFacts = errors.New("--key and --facts go with --gpu: facts beside an image hold its device code, and not all else that is shown")

// inspectGPU shows the device code of an image.
func (a *app) inspectGPU(ctx context.Context, o inspectOptions) error {
	report, err := a.auditGPU(ctx, o)
	if err != nil {
		return fmt.Errorf("inspect %s: %w", o.image, err)
	}
	if o.json {
		return a.printJSON(report)
	}
	for _, w := range report.Warnings {
		progress.Warn(ctx, w, "")
	}
	return printGPU(a.out, report)
}

func (a *app) auditGPU(ctx context.Context, o inspectOptions) (*facts.GPUReport, error) {
	s, subject, err := a.openImage(ctx, o.image, o.platform)
	if err != nil {
		return nil, err
	}
	defer subject.Close()
	if err := o.trust.apply(subject); err != nil {
		return nil, err
	}
	return s.GPU(ctx, subject)
}

func printGPU(w io.Writer, r *facts.GPUReport) error {
	if len(r.Libraries) == 0 {
		_, err := fmt.Fprintln(w, "no device code")
		return err
	}
	tables := [][][]string{gpuLibraries(r), gpuGroups(r), gpuArchitectures(r)}
	if len(r.Capabilities) > 0 {
		tables = append(tables, gpuCapabilities(r))
	}
	for i, rows := range tables {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if err := printTable(w, rows); err != nil {
			return err
		}
	}
	return nil
}

func gpuLibraries(r *facts.GPUReport) [][]string {
	rows := [][]string{{"LIBRARY", "SIZE", "SASS", "PTX", "NOTES"}}
	for i := range r.Libraries {
		l := &r.Libraries[i]
		rows = append(rows, []string{shortPath(l), units.Size(l.Size), archs(l.SASS), ptxArchs(l.PTX), strings.Join(gpuNotes(l), "; ")})
	}
	return rows
}

// shortPath leaves out where a Python package is.
func shortPath(l *facts.Library) string {
	for _, dir := range []string{"/site-packages/", "/dist-packages/"} {
		if i := strings.LastIndex("/"+l.Path, dir); i >= 0 {
			return ("/" + l.Path)[i+len(dir):]
		}
	}
	return "/" + l.Path
}

func archs(list []facts.Code) string {
	names := make([]string, 0, len(list))
	for _, c := range list {
		names = append(names, c.Arch)
	}
	return strings.Join(names, " ")
}

// ptxArchs are the architectures of PTX with the highest version of it: "80 90 (8.4)".
func ptxArchs(list []facts.Code) string {
	if v := facts.HighestPTX(list); v != "" {
		return archs(list) + " (" + v + ")"
	}
	return archs(list)
}

// gpuNotes says what the columns do not.
func gpuNotes(l *facts.Library) []string {
	var notes, lacking, compiled []string
	most := 0
	for _, s := range l.Runs {
		if l.PartlyFor(s.Capability) {
			lacking = append(lacking, s.Capability)
			most = max(most, s.Lacking)
		}
		if s.PTX > 0 && s.How == "native" && !l.OfToolkit() {
			compiled = append(compiled, s.Capability)
		}
	}
	if len(lacking) > 0 {
		notes = append(notes, fmt.Sprintf("%d of %d parts lack %s", most, l.Parts, strings.Join(lacking, " ")))
	}
	if len(compiled) > 0 {
		notes = append(notes, "a part has only PTX for "+strings.Join(compiled, " "))
	}
	switch {
	case !l.Linked:
		notes = append(notes, "for linking")
	case l.Own > 0 && l.Regions > 0:
		notes = append(notes, fmt.Sprintf("loads %d of %d regions itself", l.Own, l.Own+l.Regions))
	case l.Own > 0:
		notes = append(notes, "loads its code itself")
	}
	if len(l.LTO) > 0 {
		notes = append(notes, "LTO-IR "+archs(l.LTO))
	}
	if len(l.ROCm) > 0 {
		notes = append(notes, "ROCm "+strings.Join(l.ROCm, " "))
	}
	if l.Damaged {
		notes = append(notes, "damaged")
	}
	return notes
}

func gpuGroups(r *facts.GPUReport) [][]string {
	rows := [][]string{{"PACKAGE OR DIRECTORY", "LIBRARIES", "SIZE"}}
	for _, g := range r.Groups {
		rows = append(rows, []string{g.Name, fmt.Sprint(g.Libraries), units.Size(g.Size)})
	}
	return rows
}

func gpuArchitectures(r *facts.GPUReport) [][]string {
	rows := [][]string{{"ARCHITECTURE", "LIBRARIES", "SIZE"}}
	for _, a := range r.Architectures {
		name := map[string]string{"sass": "sm_", "ptx": "PTX compute_", "lto-ir": "LTO-IR lto_"}[a.Kind] + a.Arch
		rows = append(rows, []string{name, fmt.Sprint(a.Libraries), units.Size(a.Size)})
	}
	return append(rows, []string{"all", fmt.Sprint(len(r.Libraries)), units.Size(r.Size)})
}

// gpuWithout is how many libraries are named that have no code for a capability.
const gpuWithout = 3

func gpuCapabilities(r *facts.GPUReport) [][]string {
	rows := [][]string{{"CAPABILITY", "NATIVE", "PTX ONLY", "PTX NEEDS", "IN PART", "NONE"}}
	for _, c := range r.Capabilities {
		none, needs := "-", "-"
		if c.Driver != "" {
			needs = "driver " + c.Driver
		}
		if n := len(c.Without); n > 0 {
			none = fmt.Sprintf("%d: %s", n, baseNames(c.Without[:min(n, gpuWithout)]))
			if n > gpuWithout {
				none += " ..."
			}
		}
		rows = append(rows, []string{c.Capability, fmt.Sprint(c.Native), fmt.Sprint(c.PTX), needs, fmt.Sprint(c.Partly), none})
	}
	return rows
}

func baseNames(paths []string) string {
	names := make([]string, 0, len(paths))
	for _, p := range paths {
		names = append(names, p[strings.LastIndexByte(p, '/')+1:])
	}
	return strings.Join(names, " ")
}
