package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

func newInfoCmd(a *app) *cobra.Command {
	var asJSON, network bool
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show what this machine offers: sandbox, cores, memory, disk, programs",
		Long: `Show what matters to sconce on this machine: whether commands can be run in images (it is tried, and where it is refused
the setting that refuses is named), the cores and the memory that are really available under the limits of cgroups and Slurm,
the disk under the store with your quota there, what configuration says, where you are logged in, and which other programs
were found. With --network, the registries that you are logged in at, the package indexes and conda channels that you have
configured and the mirrors of distributions that are known here are asked whether they answer.`,
		Example: examples("sconce info", "sconce info --network", "sconce info --json | jq .cores.available"),
		Args:    wants(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runInfo(cmd.Context(), asJSON, network) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&network, "network", false, "ask your registries, package indexes, channels and mirrors whether they answer")
	return cmd
}

// hostInfo is what `sconce info` shows.
type hostInfo struct {
	Sconce versionInfo `json:"sconce"`
	engine.Machine
	Config []config.Setting `json:"config"` // that count here, each with the file or the variable that says so
}

func (a *app) runInfo(ctx context.Context, asJSON, network bool) error {
	set := a.settings()
	dir, err := set.Dir()
	if err != nil {
		return err
	}
	in := hostInfo{Sconce: currentVersion(), Config: set.List()}
	o := engine.LookOptions{Network: network && !a.flags.offline, Mirrors: set.Config.Mirrors, UV: set.Config.UV}
	o.Scratch, o.ScratchBy = set.Scratch()
	if in.Machine, err = engine.LookAround(ctx, dir, o, a.open); err != nil {
		return err
	}
	for n := range in.Network {
		if an := &in.Network[n]; an.Err != nil && an.Hint == "" {
			an.Hint = ui.NetworkHint(an.Err)
		}
	}
	if asJSON {
		return a.printJSON(in)
	}
	_, err = a.out.Write([]byte(in.text(terminalWidth(a.out))))
	return err
}

// titleColumns is how wide the column of titles is.
const titleColumns = 10

// text is what a person reads, in lines of at most width columns; 0 is any number.
func (in hostInfo) text(width int) string {
	var b strings.Builder
	line := func(title, format string, args ...any) {
		text := ui.Clean(fmt.Sprintf(format, args...))
		if width > 0 {
			text = wrap(text, width, strings.Repeat(" ", titleColumns), titleColumns)
		}
		fmt.Fprintf(&b, "%-*s%s\n", titleColumns, title, text)
	}
	line("Sconce:", "%s (%s, %s)", in.Sconce.Version, in.Sconce.Platform, in.Sconce.Go)
	line("Kernel:", "%s", in.Kernel)
	if in.Sandbox.Works {
		line("Sandbox:", "works")
	} else {
		line("Sandbox:", "does not work: %s", in.Sandbox.Error)
		line("", "%s", in.Sandbox.Hint)
	}
	if in.Sandbox.FUSE != "" {
		line("", "layers, and .sqsh and .sif files, are unpacked before a command runs in them: %s", in.Sandbox.FUSE)
	}
	if in.Sandbox.Network != "" {
		line("", "steps have this machine's network, what listens on its localhost included: %s", in.Sandbox.Network)
	}
	switch f := in.Sandbox.Foreign; {
	case f == nil:
	case f.Error != "":
		line("", "programs for %s do not run: %s", f.Platform, f.Hint)
	case f.Emulator != "":
		line("", "programs for %s run, by %s", f.Platform, f.Emulator)
	default:
		line("", "programs for %s run, by an emulator that is registered with the kernel", f.Platform)
	}
	for _, r := range in.Refusals {
		line("", "for ordinary users, %s = %s: %s; %s", r.Setting, r.Value, r.Reason, r.Fix)
	}
	line("Cores:", "%d of %d", in.Cores.Available, in.Cores.Total)
	for _, l := range in.Cores.Limits {
		line("", "%s allows %d", l.Source, l.Value)
	}
	line("Memory:", "%s of %s available", units.Size(in.Memory.Available), units.Size(in.Memory.Total))
	for _, l := range in.Memory.Limits {
		line("", "%s allows %s", l.Source, units.Size(l.Value))
	}
	line("Store:", "%s", in.Store.Dir)
	for _, said := range in.storeRoom() {
		line("", "%s", said)
	}
	if in.Scratch != nil {
		line("Scratch:", "%s (%s, room for %s): %s", in.Scratch.Dir, in.Scratch.Type, units.Size(in.Scratch.Room), in.Scratch.Why)
	}
	title := "Config:"
	for _, s := range in.Config {
		line(title, "%s = %s (%s)", s.Key, s.Value, s.From)
		title = ""
	}
	in.sayLogins(line)
	in.sayNetwork(line)
	b.WriteString(in.programs(width))
	return b.String()
}

// programs lists what was found, and how to install what was not.
func (in hostInfo) programs(width int) string {
	rows := [][]string{{"PROGRAM", "FOR", "FOUND"}}
	var missing []string
	for _, t := range in.Tools {
		found := "missing"
		if t.Path != "" {
			found = strings.TrimSpace(t.Path + "  " + t.Version)
			if t.Why != "" {
				found += ", " + t.Why
			}
		} else {
			missing = append(missing, "missing "+t.Name+": "+t.Install)
		}
		rows = append(rows, []string{t.Name, t.Purpose, found})
	}
	var b strings.Builder
	b.WriteString("\n")
	_ = printTableIn(&b, rows, width) // a strings.Builder takes everything
	for _, said := range missing {
		if width > 0 {
			said = wrap(said, width, continued, 0)
		}
		b.WriteString(said + "\n")
	}
	return b.String()
}
