package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/units"
)

// verifyOptions are the options of `sconce verify`.
type verifyOptions struct {
	image    string
	evidence string
	keys     []string
	json     bool
}

func newVerifyCmd(a *app) *cobra.Command {
	var o verifyOptions
	cmd := &cobra.Command{
		Use:   "verify IMAGE [--key FILE]",
		Short: "Tell which tests an image in a registry has passed, by signed evidence",
		Long: `Tell which tests an image in a registry has passed, on which clusters. Only evidence counts that one of the keys has signed,
about exactly the image that the tag leads to now. No layer is downloaded, and nothing but the registry is asked.
Of an index there has to be evidence about each image that it lists; what is signed about the index itself is told beside it.

Evidence is looked for beside the image, and among what refers to it in registries that keep a list of that; --evidence names
the repository that it was promoted from, where neither holds any.

The image is judged as promotion judges it. Where the pipeline that promoted it has signed that, the tests that it names
must have passed; what it published untested is told.

Exit code 3 means that there is no evidence, that a test has failed, or that what looks like evidence is not to be trusted.

` + "`cosign verify-attestation`" + ` judges the same evidence; see docs/guide/promotion.md.`,
		Example: examples(
			"sconce verify registry.example.org/team/train:25.11 --key team.pub",
			"sconce verify mirror.example.org/train:25.11 --evidence registry.example.org/team/ci/train --key team.pub --json",
		),
		Args: wants("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.image = args[0]
			return a.runVerify(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	addKeyFlag(cmd, &o.keys)
	f.StringVar(&o.evidence, "evidence", "", "look for evidence in this `REPOSITORY`, HOST/NAME")
	f.BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

func (a *app) runVerify(ctx context.Context, o verifyOptions) error {
	keys := a.settings().Believed(o.keys)
	if len(keys) == 0 {
		return fault.Hint(fault.Usage(errors.New("no key says whose evidence counts")), "add --key team.pub, or keys in the configuration")
	}
	trust, err := engine.TrustedKeys(keys)
	if err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	v, err := s.Verify(ctx, o.image, strings.TrimPrefix(o.evidence, "docker://"), trust)
	if err != nil {
		return err
	}
	if o.json {
		err = a.printJSON(v)
	} else {
		err = a.printVerification(v)
	}
	if err != nil || v.Good() {
		return err
	}
	err = fault.Problem(fmt.Errorf("%s is not verified:\n  %s", v.Image, strings.Join(v.Problems, "\n  ")))
	if len(v.Evidence) == 0 && o.evidence == "" {
		err = fault.Hint(err, "evidence stays where the image was tested: name the repository that it was promoted from by --evidence HOST/PATH")
	}
	return err
}

func (a *app) printVerification(v *engine.Verification) error {
	rows := [][]string{{"TEST", "CLUSTER", "RESULT", "FINISHED"}}
	for _, e := range v.Evidence {
		result := cmp.Or(string(e.Result), "-")
		if e.FailedBefore > 0 {
			result += fmt.Sprintf(" (failed %s before)", units.Number(e.FailedBefore, "time"))
		}
		rows = append(rows, []string{e.Test, e.Cluster, result, e.Finished})
	}
	if len(v.Evidence) > 0 {
		if err := printTable(a.out, rows); err != nil {
			return err
		}
	}
	for _, what := range v.Untested {
		a.say("%s; the pipeline that published it allows that", what)
	}
	if text := originOf(v.Origin); text != "" {
		a.say("made from %s", text)
	}
	if r := v.Record; r != nil {
		a.say("promoted %s from %s", r.Time.Format(time.RFC3339), cmp.Or(originOf(r.Origin), "unknown sources"))
	}
	switch {
	case v.Index != nil:
		a.say("%s@%s; signed: about the index %s, about each of %s %s", v.Image, v.Digest,
			kindsOf(v.Index.Signed, "nothing"), units.Number(len(v.Index.Images), "image"), kindsOf(v.Signed, "nothing"))
	case len(v.Signed) > 0:
		a.say("%s@%s; signed: %s", v.Image, v.Digest, kindsOf(v.Signed, ""))
	default:
		a.say("%s@%s", v.Image, v.Digest)
	}
	return nil
}

// originOf is where something is from, in words; "": nothing is known of that.
func originOf(o *engine.Origin) string {
	if o == nil || *o == (engine.Origin{}) {
		return ""
	}
	text := cmp.Or(o.Repository, "a repository")
	if o.Commit != "" {
		text += " at " + o.Commit
	}
	if o.Changed {
		text += ", with changes"
	}
	if o.Unchecked {
		text += ", with changes or without: that is unknown"
	}
	if o.Job != "" {
		text += fmt.Sprintf(", by %s: %s", o.CI, o.Job)
	}
	return text
}

// kindsOf are kinds of signed documents in words.
func kindsOf(signed []string, none string) string {
	if len(signed) == 0 {
		return none
	}
	return strings.Join(signed, ", ")
}
