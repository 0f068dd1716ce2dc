package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/units"
)

// checkOptions are the options of `sconce check`.
type checkOptions struct {
	image     string
	recipe    string
	target    targetOptions
	allow     []string
	severity  string
	json      bool
	sarif     string // a file, or toStdout; "": none is written
	listRules bool
	trust     trustOptions
}

// targetOptions say what an image is to run on.
type targetOptions struct {
	cluster string          // a name or a file
	own     cluster.Profile // what goes before its profile
}

// toStdout stands for stdout where a file is named.
const toStdout = "-"

func newCheckCmd(a *app) *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use:   "check IMAGE",
		Short: "Tell whether an image will run on a cluster, without running it",
		Long: `Look into an image for what would keep it from running on a machine, or from running well: device code for other GPUs, a
driver that is too old, libraries that are missing or clash, Python packages that do not fit together, an environment that
breaks under the runtime, and more (--list-rules). Nothing of the image runs, and no GPU is needed.

The target is a cluster (see sconce clusters), or what the other flags say; they go before what the cluster's profile says.
--recipe takes both the target and the rules that are allowed from a recipe. What the target does not say is not judged.

With --key, an image in a registry is judged by the facts that ` + "`sconce push --sign`" + ` or a pipeline left beside it, if
one of the keys has signed them, about exactly this image: no layer is downloaded then. Otherwise that is said, and the
layers come.

Exit code 3 means that an error was found that is not allowed.

` + anyImage,
		Example: examples(
			"sconce check llm-train:25.11 --cluster clariden",
			"sconce check pytorch.sif --gpu 9.0 --driver 550.54 --runtime apptainer",
			"sconce check docker://nvcr.io/nvidia/pytorch:25.06-py3 --cluster ./mycluster.toml --severity error",
			"sconce check registry.example.org/team/llm-train:25.11 --cluster clariden --key team.pub",
			"sconce check --recipe llm-train                     the image that was built of it, for its target",
			"sconce check llm-train --cluster clariden --allow files-setuid='only su, of the base'",
			"sconce check llm-train --cluster clariden --sarif=check.sarif",
			"sconce check --list-rules",
		),
		Args:              wants("[IMAGE]"),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.image = args[0]
			}
			if o.listRules {
				return a.listRules(o.json)
			}
			return a.runCheck(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	a.addTargetFlags(cmd, &o.target)
	f.StringVar(&o.recipe, "recipe", "", "take target and allowed rules from the recipe in `DIR`; without IMAGE, check what it names")
	f.StringArrayVar(&o.allow, "allow", nil, "count what this rule finds as no error, as `RULE=REASON` (repeatable)")
	completeRules(cmd)
	f.StringVar(&o.severity, "severity", string(audit.Note), "show findings of at least this `LEVEL`: error, warning, note")
	o.trust.addFlags(cmd)
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.StringVar(&o.sarif, "sarif", "", "print SARIF 2.1.0, or write it to `FILE` with --sarif=FILE")
	f.Lookup("sarif").NoOptDefVal = toStdout
	f.BoolVar(&o.listRules, "list-rules", false, "list the rules")
	complete(cmd, "severity", string(audit.Error), string(audit.Warning), string(audit.Note))
	return cmd
}

// trustOptions say whose facts about an image in a registry are believed.
type trustOptions struct {
	keys  []string
	facts string // the repository that holds them; "": the image's own
}

func (o *trustOptions) addFlags(cmd *cobra.Command) {
	addKeyFlag(cmd, &o.keys)
	cmd.Flags().StringVar(&o.facts, "facts", "", "with --key: look for facts in this `REPOSITORY`, HOST/NAME, instead of the image's own")
}

// apply has a subject believe them.
func (o trustOptions) apply(to *engine.Subject) error {
	if len(o.keys) == 0 {
		if o.facts != "" {
			return fault.Usage(fault.Hint(errors.New("--facts REPOSITORY: no key says whose facts count"), "add --key team.pub"))
		}
		return nil
	}
	keys, err := engine.TrustedKeys(o.keys)
	if err != nil {
		return err
	}
	if err := to.Trust(keys, strings.TrimPrefix(o.facts, "docker://")); err != nil {
		return fault.Usage(fmt.Errorf("--key: %w", err))
	}
	return nil
}

func (a *app) addTargetFlags(cmd *cobra.Command, t *targetOptions) {
	f := cmd.Flags()
	f.StringVar(&t.cluster, "cluster", "", "judge for this cluster: a `NAME` that sconce clusters lists, or a profile's file")
	for _, k := range cluster.Keys() {
		addProfileFlag(cmd, k, &t.own)
	}
	completeClusters(cmd)
}

// addProfileFlag adds the flag of a profile's key, if that has one.
func addProfileFlag(cmd *cobra.Command, k cluster.Key, p *cluster.Profile) {
	usage := k.Flag
	switch {
	case usage == "":
		return
	case k.Enum != nil && k.Name != "platform":
		usage += ": " + strings.Join(k.Enum, ", ")
	}
	switch field := k.Field(p).(type) {
	case *string:
		cmd.Flags().StringVar(field, k.Name, "", usage)
	case *int:
		cmd.Flags().IntVar(field, k.Name, 0, usage)
	case *[]string:
		cmd.Flags().StringSliceVar(field, k.Name, nil, usage)
	}
	if k.Enum != nil {
		complete(cmd, k.Name, k.Enum...)
	}
}

// completeRules completes the rules of --allow RULE=REASON.
func completeRules(cmd *cobra.Command) {
	err := cmd.RegisterFlagCompletionFunc("allow", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var ids []string
		for _, r := range audit.Rules() {
			ids = append(ids, r.ID+"=")
		}
		return ids, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // there is no such flag: a mistake in this package
	}
}

// completeClusters completes the names of profiles, and files, for --cluster.
func completeClusters(cmd *cobra.Command) {
	err := cmd.RegisterFlagCompletionFunc("cluster", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		all, _ := cluster.List("") // a file that is wrong is no reason to complete nothing
		var names []string
		for _, f := range all {
			names = append(names, f.Name)
		}
		return names, cobra.ShellCompDirectiveDefault
	})
	if err != nil {
		panic(err) // there is no such flag: a mistake in this package
	}
}

func list[T ~string](values []T) string {
	var names []string
	for _, v := range values {
		names = append(names, string(v))
	}
	return strings.Join(names, ", ")
}

// profile is what the flags say of the machine.
func (t targetOptions) profile() (cluster.Profile, error) {
	p := t.own
	if p.Platform != "" {
		var err error
		if p.Platform, err = recipe.ParsePlatform(p.Platform); err != nil {
			return p, fault.Usage(fmt.Errorf("--platform: %w", err))
		}
	}
	if err := p.Normalize(); err != nil {
		return p, fault.Usage(fmt.Errorf("--%w", err))
	}
	return p, nil
}

// checked is what `sconce check --json` prints.
type checked struct {
	Image    string          `json:"image"`
	Digest   string          `json:"digest,omitempty"`
	Platform string          `json:"platform"`
	Target   cluster.Profile `json:"target"`
	Profile  string          `json:"profile,omitempty"`     // where the cluster's profile is from
	Unknown  []string        `json:"notJudged"`             // what the target does not say
	Trusted  bool            `json:"signedFacts,omitempty"` // judged by facts that one of the keys has signed
	Findings []audit.Finding `json:"findings"`
	audit.Count
	Warnings []string `json:"unread,omitempty"` // files that could not be understood
}

func (a *app) runCheck(ctx context.Context, o checkOptions) error {
	if !slices.Contains(audit.Severities, audit.Severity(o.severity)) {
		return fault.Usage(fmt.Errorf("--severity %q: it is one of %s", o.severity, list(audit.Severities)))
	}
	if o.json && o.sarif == toStdout {
		return fault.Usage(fmt.Errorf("--json and --sarif cannot be used together; --sarif=FILE can"))
	}
	t, err := o.resolve()
	if err != nil {
		return err
	}
	t.Tell(ctx)
	platform, err := parsePlatform(t.Platform)
	if err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	image, err := s.Open(o.image, engine.Wanted{Platform: platform, OrOther: true})
	if err != nil {
		return err
	}
	defer image.Close()
	if err := o.trust.apply(image); err != nil {
		return err
	}
	keys, err := engine.TrustedKeys(a.settings().Believed(o.trust.keys))
	if err != nil {
		return err
	}
	warn := s.WarnIfWithdrawn(ctx, image, keys)
	found, err := s.Check(ctx, image, t)
	if err != nil {
		return err
	}
	facts := found.Facts
	warn(store.Digest(facts.Digest))
	c := checked{
		Image: o.image, Digest: facts.Digest, Platform: facts.Platform, Target: t.Profile, Profile: t.From, Unknown: t.Unknown(),
		Trusted: found.Trusted, Count: found.Count, Warnings: slices.Clone(facts.Warnings),
	}
	if facts.GPU != nil {
		c.Warnings = append(c.Warnings, facts.GPU.Warnings...)
	}
	c.Findings = slices.DeleteFunc(slices.Clone(found.Findings), func(f audit.Finding) bool { return !f.Severity.AtLeast(audit.Severity(o.severity)) })
	if err := a.reportCheck(ctx, o, &c, facts); err != nil {
		return err
	}
	return c.verdict()
}

// reportCheck prints what was found, in each form that was asked for.
func (a *app) reportCheck(ctx context.Context, o checkOptions, c *checked, facts *facts.Facts) error {
	if o.sarif != "" {
		log, err := audit.SARIF(facts, c.Target, c.Findings, currentVersion().Version)
		if err != nil {
			return err
		}
		if done, err := a.writeSARIF(o.sarif, log); done {
			return err
		}
	}
	if o.json {
		return a.printJSON(c)
	}
	for _, w := range c.Warnings {
		progress.Warn(ctx, w, "")
	}
	return a.printFindings(c)
}

// writeSARIF writes a log to a file, or prints it. done says that nothing else is to be printed.
func (a *app) writeSARIF(to string, log []byte) (done bool, err error) {
	if to == toStdout {
		_, err = a.out.Write(log)
		return true, err
	}
	if err := atomicfile.Replace(to, log, 0o644); err != nil {
		return true, fmt.Errorf("write SARIF: %w", err)
	}
	return false, nil
}

// verdict is nil when the image will run there, as far as is known.
func (c *checked) verdict() error {
	if c.Errors == 0 {
		return nil
	}
	return fault.Problem(fault.Hint(fmt.Errorf("%s: %s found", c.Image, units.Number(c.Errors, "error")),
		"an error that can be lived with is allowed by --allow RULE=REASON, or under [check] in the recipe"))
}

// resolve finds out what is to be checked, for what target.
func (o *checkOptions) resolve() (engine.Target, error) {
	t, err := o.named()
	if err != nil {
		return t, err
	}
	if o.image == "" {
		return t, fault.Usage(fault.Hint(fmt.Errorf("sconce check: IMAGE is missing"), "name an image, or a recipe with --recipe DIR"))
	}
	flags, err := o.target.profile()
	if err != nil {
		return t, err
	}
	t.Profile = t.Override(flags)
	return t, allow(t, o.allow)
}

// named is the target that --recipe or --cluster names.
func (o *checkOptions) named() (engine.Target, error) {
	if o.recipe == "" {
		return engine.FindTarget(o.target.cluster, "")
	}
	r, err := recipe.Load(o.recipe)
	if err != nil {
		return engine.Target{}, err
	}
	if o.image == "" {
		o.image = r.Name + ":" + r.Version
	}
	return engine.TargetOf(r, o.target.cluster)
}

// allow adds what flags allow.
func allow(t engine.Target, flags []string) error {
	for _, text := range flags {
		rule, reason, _ := strings.Cut(text, "=")
		if strings.TrimSpace(reason) == "" {
			return fault.Usage(fault.Hint(fmt.Errorf("--allow %s: the reason is missing", text), "write --allow "+rule+"='why it is no problem'"))
		}
		if err := audit.KnownRule(rule); err != nil {
			return fmt.Errorf("--allow: %w", err)
		}
		t.Allow[rule] = reason
	}
	return nil
}

func (a *app) listRules(asJSON bool) error { return a.printRules(audit.Rules(), asJSON) }

// printRules lists rules for a person or a program.
func (a *app) printRules(rules []audit.Rule, asJSON bool) error {
	if asJSON {
		out := make([]listedRule, 0, len(rules))
		for _, r := range rules {
			out = append(out, listedRule{r.ID, r.Severity, r.Title, r.Why, r.Remedy})
		}
		return a.printJSON(out)
	}
	rows := [][]string{{"RULE", "SEVERITY", "WHAT IT LOOKS FOR"}}
	for _, r := range rules {
		rows = append(rows, []string{r.ID, string(r.Severity), r.Title})
	}
	return printTable(a.out, rows)
}

// listedRule is what `sconce check --list-rules --json` prints of each rule.
type listedRule struct {
	ID       string         `json:"id"`
	Severity audit.Severity `json:"severity"`
	Title    string         `json:"title"`
	Why      string         `json:"why"`
	Remedy   string         `json:"remedy"`
}
