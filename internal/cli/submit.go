package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/slurm"
)

// submitOptions are the options of `sconce submit`.
type submitOptions struct {
	jobOptions
	args     []string // for the job's command
	dryRun   bool
	testOnly bool
	anyImage bool
	wait     bool
	follow   bool
}

func newSubmitCmd(a *app) *cobra.Command {
	var o submitOptions
	cmd := &cobra.Command{
		Use:   "submit [RECIPE] [JOB] [-- ARGUMENTS...]",
		Short: "Submit a job of a recipe to Slurm",
		Long: `Submit JOB of RECIPE (a sconce.toml or its directory, by default the current one) to Slurm, from the
current directory, which the job runs in. ARGUMENTS go to the job's command.

The built image is copied to the profile's paths.images under its digest, unless it is there: one copy
for all jobs, also when several people submit at once. One that was built before recipe or lock changed is
refused, unless --any-image is given. The script and the environment definition file,
as sconce export writes them, go to .sconce in the current directory, under the hash of what they say,
so that a job that waits keeps its own. Then sbatch is called, and the job's number and log are told.

--wait and --follow wait for the job's end. Of one that failed they say why, if its log tells, as sconce
explain does.

--dry-run prints the files and does nothing. --test-only asks Slurm whether it would take the job.`,
		Example: examples(
			"sconce submit                                the one job of ./sconce.toml",
			"sconce submit train -- --epochs 3            job train, with arguments for its command",
			"sconce submit llm train --nodes 4 --follow   another recipe's, on 4 nodes; show the log as it grows",
			"sconce submit train --test-only",
		),
		Args: submitArguments(&o),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runSubmit(cmd.Context(), o) },
	}
	addJobFlags(cmd, &o.jobOptions)
	f := cmd.Flags()
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be submitted, and do nothing")
	f.BoolVar(&o.testOnly, "test-only", false, "ask Slurm whether it would take the job, and when it would start")
	f.BoolVar(&o.anyImage, "any-image", false, "submit the image in the store although recipe or lock have changed since it was built")
	f.BoolVar(&o.wait, "wait", false, "wait for the job's end, and fail when it does")
	f.BoolVar(&o.follow, "follow", false, "show the log as it grows, to the job's end")
	return cmd
}

// submitArguments takes a recipe and a job, either of which may be left out, and behind -- arguments for the command.
func submitArguments(o *submitOptions) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if at := cmd.ArgsLenAtDash(); at >= 0 {
			args, o.args = args[:at], args[at:]
		}
		o.subject = "."
		if len(args) > 0 && isRecipe(args[0]) {
			o.subject, args = args[0], args[1:]
		}
		if len(args) > 0 && o.job == "" {
			o.job, args = args[0], args[1:]
		}
		if len(args) > 0 {
			return fault.Usage(fault.Hint(fmt.Errorf("%s: one argument too many: %q", cmd.CommandPath(), args[0]), "usage: "+cmd.UseLine()))
		}
		return nil
	}
}

func (a *app) runSubmit(ctx context.Context, o submitOptions) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	r, err := a.jobRequest(ctx, o.jobOptions, "sbatch")
	if err != nil {
		return err
	}
	r.From = ""
	if o.dryRun {
		return a.printFiles(r)
	}
	if _, err := job.Sbatch(r); err != nil { // before anything is copied
		return fmt.Errorf("job %s: %w", r.Name, err)
	}
	record := slurm.Record{Name: r.Name, Cluster: r.Cluster.Name, Image: r.Image.Name, Dir: dir}
	if err := a.placeForJob(ctx, &r, &record, o); err != nil {
		return err
	}
	if record.Script, err = writeJobFiles(dir, &r); err != nil {
		return err
	}
	if o.testOnly {
		said, err := slurm.Test(ctx, dir, record.Script, o.args)
		if err == nil {
			_, err = fmt.Fprintln(a.out, said)
		}
		return err
	}
	return a.submitScript(ctx, o, r, record)
}

// printFiles prints what would be submitted.
func (a *app) printFiles(r job.Request) error {
	text, err := job.Sbatch(r)
	if err != nil {
		return fmt.Errorf("job %s: %w", r.Name, err)
	}
	if r.ReadsEDF() {
		edf, err := job.EDF(r)
		if err != nil {
			return err
		}
		text += "\n" + edf
	}
	_, err = fmt.Fprint(a.out, text)
	return err
}

// placeForJob sees to the image being where the nodes read it, unless somebody says where it is, or the runtime takes it from elsewhere.
func (a *app) placeForJob(ctx context.Context, r *job.Request, record *slurm.Record, o submitOptions) error {
	if o.image != "" || !r.StartsFiles() || r.Image.File == "" {
		return nil
	}
	images := cmp.Or(r.Cluster.Paths.Images, "${PWD}/.sconce/images")
	target, err := expandHere(images)
	if err != nil {
		return fmt.Errorf("paths.images of %s: %w", cmp.Or(r.Cluster.Name, "the cluster"), err)
	}
	if home, err := os.UserHomeDir(); err == nil && r.Cluster.Paths.HomeShared != nil && !*r.Cluster.Paths.HomeShared && strings.HasPrefix(target+"/", home+"/") {
		return fault.Hint(fmt.Errorf("%s is in your home, which the nodes of %s do not see", target, r.Cluster.Name), "name a directory that they see: paths.images in the cluster's profile")
	}
	from, err := loadRecipe(o.subject, "", "")
	if err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	if !o.anyImage {
		if err := s.CheckCurrent(ctx, from); err != nil {
			return err
		}
	}
	engine.StripeNew(ctx, r.Cluster.Paths.Stripe, target)
	var placed engine.Placed
	if placed, err = s.PlaceImage(ctx, from, target); err != nil {
		return err
	}
	r.Image = placed.Image
	record.Digest, record.File = placed.Digest, placed.File
	return nil
}

// expandHere puts values in place of ${NAME}.
func expandHere(text string) (string, error) {
	var missing []string
	out := os.Expand(text, func(name string) string {
		if name == "PWD" {
			dir, err := os.Getwd()
			if err == nil {
				return dir
			}
		}
		value, ok := os.LookupEnv(name)
		if !ok {
			missing = append(missing, name)
		}
		return value
	})
	if len(missing) > 0 {
		return "", fault.Usage(fault.Hint(fmt.Errorf("the variable %s is not set here", missing[0]), "set it, or name a path without it in the profile"))
	}
	return out, nil
}

// writeJobFiles writes the script of a job and its environment definition file, each under a hash of what it says: a job that waits, or
// follows another one, keeps the file that it was submitted with. It returns the path of the script.
func writeJobFiles(dir string, r *job.Request) (string, error) {
	files := filepath.Join(dir, ".sconce")
	if err := os.MkdirAll(files, 0o755); err != nil {
		return "", err
	}
	if r.ReadsEDF() {
		text, err := job.EDF(*r)
		if err != nil {
			return "", err
		}
		if r.EDF, err = writeUnderHash(files, r.EDFName(), ".toml", text); err != nil {
			return "", err
		}
	}
	text, err := job.Sbatch(*r)
	if err != nil {
		return "", err
	}
	return writeUnderHash(files, r.Name, ".sbatch", text)
}

func writeUnderHash(dir, name, ext, text string) (string, error) {
	sum := sha256.Sum256([]byte(text))
	path := filepath.Join(dir, name+"-"+hex.EncodeToString(sum[:4])+ext)
	if old, err := os.ReadFile(path); err == nil && string(old) == text {
		return path, nil
	}
	return path, replaceFile(path, []byte(text))
}

// submitScript submits a job whose files are written, and tells its number.
func (a *app) submitScript(ctx context.Context, o submitOptions, r job.Request, record slurm.Record) error {
	logs, err := expandHere(cmp.Or(r.Job.Logs, "."))
	if err != nil {
		return err
	}
	if !filepath.IsAbs(logs) {
		logs = filepath.Join(record.Dir, logs)
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	if record.ID, err = slurm.Submit(ctx, record.Dir, record.Script, o.args); err != nil {
		return err
	}
	record.Log = filepath.Join(logs, r.LogName(record.ID))
	record.Submitted = time.Now().UTC().Truncate(time.Second)
	if err := record.Keep(); err != nil {
		a.say("job %s is submitted, and could not be noted: %v", record.ID, err)
	}
	if _, err := fmt.Fprintln(a.out, record.ID); err != nil {
		return err
	}
	a.say("submitted job %s (%s); its log is %s", record.ID, record.Name, record.Log)
	switch {
	case o.follow:
		return a.follow(ctx, record)
	case o.wait:
		return a.waitFor(ctx, record, func() error { return nil })
	}
	return nil
}

// pollTime is how often Slurm is asked for a job: its controller serves all users.
const pollTime = 2 * time.Second

// waitFor calls each until the job has ended, and once more then. A job that failed is an error.
func (a *app) waitFor(ctx context.Context, record slurm.Record, each func() error) error {
	for {
		state, err := slurm.StateOf(ctx, record.ID)
		if err = errors.Join(err, each()); err != nil {
			return err
		}
		if state.Ended() {
			a.explainEnd(record, state)
		}
		if state.Failed() {
			return fault.Hint(fmt.Errorf("job %s (%s) ended as %s", record.ID, record.Name, state.Name), "its log is "+record.Log)
		}
		if state.Ended() {
			a.say("job %s (%s) has ended", record.ID, record.Name)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollTime):
		}
	}
}

// arrayLog is what stands in the name of a log for the number of an array's part.
var arrayLog = regexp.MustCompile(`_\*\.log$`)

// follow shows the log of a job as it grows.
func (a *app) follow(ctx context.Context, record slurm.Record) error {
	if arrayLog.MatchString(record.Log) {
		return fault.Usage(fault.Hint(fmt.Errorf("job %s is an array, and has several logs", record.ID), "look at one of "+record.Log))
	}
	var at int64
	return a.waitFor(ctx, record, func() error {
		n, err := a.printFrom(record.Log, at)
		at += n
		return err
	})
}
