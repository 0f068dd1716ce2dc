package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

func newCacheCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cache COMMAND",

		DisableFlagsInUseLine: true,

		Short: "Look after the store: its size, its health, what can go",
		Long: `The store keeps downloads, layers, images and what is known about them. Everything in it but the named images can be
fetched or made again.`,
		Example: examples("sconce cache info", "sconce cache prune --older-than 7d", "sconce cache verify"),
		Args:    cobra.ArbitraryArgs,
		RunE:    helpOrUnknown,
	}
	cmd.AddCommand(newCacheInfoCmd(a), newCacheInitCmd(a), newCachePruneCmd(a), newCacheVerifyCmd(a))
	return cmd
}

func newCacheInfoCmd(a *app) *cobra.Command {
	var asJSON, byUser bool
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show where the store is and how much it holds",
		Long: `Show where the store is, how much it holds and how much it may.

With --by-user, say who has what: the images that a user has named, the bytes that these need, the bytes of these that nobody
else's need, what the user has brought and unpacked, of how much they may have, and when they last used it.`,
		Example: examples("sconce cache info", "sconce cache info --json | jq -r .dir", "sconce --store /capstor/proj/ml/sconce cache info --by-user"),
		Args:    wants(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if byUser {
				return a.runCacheUsers(cmd.Context(), asJSON)
			}
			return a.runCacheInfo(cmd.Context(), asJSON)
		},
	}
	cmd.Flags().BoolVar(&byUser, "by-user", false, "say what each user has")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) runCacheInfo(ctx context.Context, asJSON bool) error {
	s, err := a.openThere(ctx)
	if err != nil {
		return err
	}
	in, err := s.CacheInfo(a.settings())
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(in)
	}
	return a.printCacheInfo(in)
}

func (a *app) printCacheInfo(in engine.CacheInfo) error {
	where := in.Dir
	if in.ReadOnly {
		where += " (read-only)"
	}
	fs := fmt.Sprintf("%s, %s of %s free", in.FileSystem.Type, units.Size(in.FileSystem.Free), units.Size(in.FileSystem.Size))
	if _, err := fmt.Fprintf(a.out, "%-12s %s\n%-12s %s\n", "Store:", ui.Clean(where), "Disk:", fs); err != nil {
		return err
	}
	limit := "none"
	if in.Limit > 0 {
		limit = units.Size(in.Limit)
	}
	if _, err := fmt.Fprintf(a.out, "%-12s %s\n", "Limit:", limit); err != nil {
		return err
	}
	if in.Shared != "" {
		if _, err := fmt.Fprintf(a.out, "%-12s %s\n", "Shared:", ui.Clean(in.Shared)); err != nil {
			return err
		}
	}
	rows := [][]string{{"", "NUMBER", "SIZE"}}
	rows = append(rows, []string{"images", strconv.Itoa(in.Images), ""})
	for _, b := range in.Buckets {
		rows = append(rows, []string{b.Name, strconv.Itoa(b.Objects), units.Size(b.Bytes)})
	}
	rows = append(rows, []string{"all", "", units.Size(in.Bytes)})
	if err := printTable(a.out, rows); err != nil {
		return err
	}
	if in.FileSystem.Advice != "" {
		a.say("note: %s", in.FileSystem.Advice)
	}
	return nil
}

// cachePruneOptions are the options of `sconce cache prune`.
type cachePruneOptions struct {
	all      bool
	older    string
	keepSize string
	dryRun   bool
	noWait   bool
	json     bool

	olderGiven bool // --older-than was given
}

func newCachePruneCmd(a *app) *cobra.Command {
	var o cachePruneOptions
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove from the store what is not needed",
		Long: `Remove what no named image is based on and nothing has used for 30 days, and what killed processes left behind. Named
images stay whole; ` + "`sconce images rm`" + ` removes names. What policy.toml in the store says of
its size, of age and of users holds where no flag says otherwise.

In a store of a group, what is removed is yours; whoever keeps the store removes what anybody has brought.

Prune waits until no other sconce uses the store, and new ones wait for it.`,
		Example: examples(
			"sconce cache prune --dry-run",
			"sconce cache prune --older-than 7d",
			"sconce cache prune --keep-size 100GB     then the least recently used, until this much is left",
			"sconce cache prune --all                 keep only what images need",
		),
		Args: wants(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.olderGiven = cmd.Flags().Changed("older-than")
			return a.runCachePrune(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.all, "all", false, "remove all that no image needs, however recently it was used")
	f.StringVar(&o.older, "older-than", "30d", "remove what was not used for this `TIME`: 12h, 30d, 2w")
	f.StringVar(&o.keepSize, "keep-size", "", "then remove what was used longest ago until the store holds at most this `SIZE`: 500MB, 20GB, 64GiB")
	f.BoolVar(&o.dryRun, "dry-run", false, "only say what would be removed")
	f.BoolVar(&o.noWait, "no-wait", false, "fail when another process uses the store")
	f.BoolVar(&o.json, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("all", "older-than")
	return cmd
}

func (o cachePruneOptions) parse() (engine.PruneOptions, error) {
	p := engine.PruneOptions{
		PruneOptions: store.PruneOptions{All: o.all, DryRun: o.dryRun, NoWait: o.noWait}, AnyAge: !o.olderGiven, AnySize: o.keepSize == "",
	}
	var err error
	if p.OlderThan, err = units.ParseAge(o.older); err != nil {
		return p, fault.Usage(fmt.Errorf("--older-than: %w", err))
	}
	if p.OlderThan == 0 {
		p.All = true
	}
	if o.keepSize == "" {
		return p, nil
	}
	if p.KeepBytes, err = units.ParseSize(o.keepSize); err != nil {
		return p, fault.Usage(fmt.Errorf("--keep-size: %w", err))
	}
	if p.KeepBytes == 0 {
		p.All = true
	}
	return p, nil
}

func (a *app) runCachePrune(ctx context.Context, o cachePruneOptions) error {
	p, err := o.parse()
	if err != nil {
		return err
	}
	s, err := a.openThere(ctx)
	if err != nil {
		return err
	}
	r, err := s.Prune(ctx, a.settings(), p)
	if err != nil {
		return err
	}
	if o.json {
		return a.printJSON(r)
	}
	verb := "removed"
	if o.dryRun {
		verb = "would remove"
	}
	_, err = fmt.Fprintf(a.out, "%s %s: %d blobs, %d records, %d trees, %d leftovers; %s kept\n",
		verb, units.Size(r.Bytes), r.Blobs, r.Records, r.Trees, r.Temps, units.Size(r.Kept))
	return err
}

// cacheVerifyOptions are the options of `sconce cache verify`.
type cacheVerifyOptions struct {
	remove bool
	slice  time.Duration
	json   bool
}

func newCacheVerifyCmd(a *app) *cobra.Command {
	var o cacheVerifyOptions
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check the hash of everything in the store",
		Long: `Read the whole store: hash every blob and compare it with its name, read every record, and look whether every image has
all its parts. Other sconces may use the store meanwhile.

With --slice TIME it stops after that time, and the next one goes on from there, blob by blob; at the end it begins anew. It
yields cores and disk to all others: a timer keeps a large store checked without anyone noticing.

Exit code 3 says that something is damaged. With --remove it is removed, and fetched or made again by the next command that
needs it; an image that lost a part loses its name.`,
		Example: examples("sconce cache verify", "sconce cache verify --remove", "sconce cache verify --slice 10m     from a timer"),
		Args:    wants(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runCacheVerify(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.remove, "remove", false, "remove what is damaged")
	f.DurationVar(&o.slice, "slice", 0, "stop after this `TIME`, and go on from there the next time: 10m, 2h")
	f.BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

func (a *app) runCacheVerify(ctx context.Context, o cacheVerifyOptions) error {
	if o.slice < 0 {
		return fault.Usage(fmt.Errorf("--slice %s: it is a time like 10m or 2h", o.slice))
	}
	s, err := a.openThere(ctx)
	if err != nil {
		return err
	}
	r, err := s.VerifyStore(ctx, o.remove, o.slice)
	if err != nil {
		return err
	}
	if o.json {
		err = a.printJSON(r)
	} else {
		err = a.printVerify(r)
	}
	if err != nil || r.OK() {
		return err
	}
	err = fmt.Errorf("the store %s is damaged: %d objects", s.Store.Dir(), len(r.Damaged))
	if !o.remove {
		err = fault.Hint(err, "`sconce cache verify --remove` removes them, so that they are fetched or made again")
	}
	return fault.Problem(err)
}

func (a *app) printVerify(r engine.VerifiedStore) error {
	for _, d := range r.Damaged {
		state := "damaged"
		if d.Removed {
			state = "removed"
		}
		if _, err := fmt.Fprintf(a.out, "%s: %s: %s\n", state, ui.Clean(d.Object), ui.Clean(d.Problem)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(a.out, "%d blobs (%s), %d records and %d trees checked: %d damaged\n",
		r.Blobs, units.Size(r.Bytes), r.Records, r.Trees, len(r.Damaged))
	if err != nil || r.Pass == nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, progressOf(*r.Pass))
	return err
}

// progressOf says how far the slices of a verification have come.
func progressOf(p store.Pass) string {
	if p.Ended {
		return "that was the last slice: the next one begins anew"
	}
	text := fmt.Sprintf("%s of %s hashed since %s", units.Size(p.Bytes), units.Size(p.Of), p.Began.Format(time.DateOnly))
	if p.Last.IsZero() {
		return text
	}
	return text + "; the pass before ended on " + p.Last.Format(time.DateOnly)
}
