package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/slurm"
	"sconce.dev/sconce/internal/venv"
)

// submitOptions are the options of `sconce submit`.
type submitOptions struct {
	jobOptions
	args     []string // for the job's command
	dryRun   bool
	testOnly bool
	anyImage bool
	noLint   bool
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
so that a job that waits keeps its own. Before all that they are judged as by sconce lint, together with the
image: what cannot work is not submitted (exit code 3), unless --no-lint is given. Then sbatch is called, and
the job's number and log are told.

--wait and --follow wait for the job's end, and tell its state until then. Of one that failed they say why,
if its log tells, as sconce explain does.

--dry-run judges and prints the files, and does nothing. --test-only asks Slurm whether it would take the job.`,
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
	f.BoolVar(&o.noLint, "no-lint", false, "do not judge the job before it is submitted, as sconce lint does")
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
	if r.Job.Logs, err = engine.ExpandHere(r.Job.Logs); err != nil {
		return fmt.Errorf("job %s: logs: %w", r.Name, err)
	}
	if _, err := job.Sbatch(r); err != nil { // which nobody need build an image for
		return fmt.Errorf("job %s: %w", r.Name, err)
	}
	image, err := a.imageForJob(ctx, &r, o)
	if err == nil {
		err = a.filesForJob(ctx, r, image, o)
	}
	if err != nil && !o.dryRun {
		return err
	}
	if err != nil {
		progress.Warn(ctx, err.Error(), fault.HintOf(err))
	}
	files, err := filesOfJob(dir, &r)
	if err != nil {
		return fmt.Errorf("job %s: %w", r.Name, err)
	}
	judged := a.lintJob(ctx, o, &r, files, image.Digest)
	if o.dryRun {
		return cmp.Or(files.print(a.out), judged)
	}
	if judged != nil {
		return judged
	}
	if err := a.placeForJob(ctx, &r, image); err != nil {
		return err
	}
	if err := files.write(); err != nil {
		return err
	}
	record := slurm.Record{
		Name: r.Name, Cluster: r.Cluster.Name, Image: r.Image.Name, Digest: image.Digest, File: image.File, Dir: dir, Script: files[0].path,
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

// imageForJob decides where the nodes read the image that was built, unless somebody says where it is, or the runtime takes it from elsewhere;
// then the image is the zero value.
func (a *app) imageForJob(ctx context.Context, r *job.Request, o submitOptions) (engine.Placed, error) {
	var none engine.Placed
	if o.image != "" || !r.StartsFiles() || r.Image.File == "" {
		return none, nil
	}
	target, err := engine.ExpandHere(cmp.Or(r.Cluster.Paths.Images, "${PWD}/.sconce/images"))
	if err != nil {
		return none, fmt.Errorf("paths.images of %s: %w", cmp.Or(r.Cluster.Name, "the cluster"), err)
	}
	if home, err := os.UserHomeDir(); err == nil && r.Cluster.Paths.HomeShared != nil && !*r.Cluster.Paths.HomeShared && strings.HasPrefix(target+"/", home+"/") {
		return none, fault.Hint(fmt.Errorf("%s is in your home, which the nodes of %s do not see", target, r.Cluster.Name), "name a directory that they see: paths.images in the cluster's profile")
	}
	from, err := loadRecipe(o.subject, "", "")
	if err != nil {
		return none, err
	}
	s, err := a.opener(o)(ctx)
	if err != nil {
		return none, err
	}
	if !o.anyImage {
		if err := s.CheckCurrent(ctx, from); err != nil {
			return none, err
		}
	}
	placed, err := s.PlaceOfRecipe(ctx, from, target, r.MountsUenv())
	if err != nil {
		return none, err
	}
	r.Image = placed.Image
	return placed, nil
}

// opener opens the store for a job: a dry run makes none.
func (a *app) opener(o submitOptions) func(context.Context) (*engine.Session, error) {
	if o.dryRun {
		return a.openThere
	}
	return a.open
}

// filesForJob refuses what the nodes would look for in vain: the file that --image names, and the virtual environment.
func (a *app) filesForJob(ctx context.Context, r job.Request, image engine.Placed, o submitOptions) error {
	if ext := filepath.Ext(o.image); r.Image.File == o.image && (isPath(o.image) || ext == ".sqsh" || ext == ".squashfs" || ext == ".sif") {
		if path, err := engine.ExpandHere(o.image); err == nil && isMissing(path) {
			return fault.Usage(fmt.Errorf("--image: there is no file %s", path))
		}
	}
	path, err := engine.ExpandHere(r.Job.VenvSource())
	if path == "" || err != nil {
		return nil // a variable that is set on the nodes alone
	}
	if isMissing(path) {
		return fault.Usage(fault.Hint(fmt.Errorf("job %s: venv: there is no %s", r.Name, path), "`sconce venv pack DIR -o FILE.sqsh` writes one"))
	}
	if err := a.venvForJob(ctx, path, r, image, o); err != nil {
		return fmt.Errorf("job %s: venv: %w", r.Name, err)
	}
	return nil
}

// isPath reports whether a name of an image can only be a path.
func isPath(name string) bool { return name != "" && strings.ContainsAny(name[:1], "/.$") }

// isMissing reports whether a file is not there, in a directory that is: other directories the nodes alone may have.
func isMissing(path string) bool {
	_, err := os.Stat(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	dir, err := os.Stat(filepath.Dir(path))
	return err == nil && dir.IsDir()
}

// venvForJob refuses a directory in which `sconce venv` keeps what is still to be packed, and a packed environment of another image.
func (a *app) venvForJob(ctx context.Context, path string, r job.Request, image engine.Placed, o submitOptions) error {
	st, err := os.Stat(path)
	if err != nil {
		return nil //nolint:nilerr // the nodes may see more
	}
	if st.IsDir() {
		_, kept := os.Stat(filepath.Join(path, venv.FileName))
		_, python := os.Stat(filepath.Join(path, "pyvenv.cfg"))
		if kept == nil && python != nil {
			return fault.Usage(fault.Hint(fmt.Errorf("%s says what an environment is made of, and has no packages in it", path), "pack it, and name the file: sconce venv pack "+path+" -o FILE.sqsh"))
		}
		return nil
	}
	s, err := a.opener(o)(ctx)
	if err != nil {
		return err
	}
	v, err := s.OpenVenv(ctx, path)
	if errors.Is(err, venv.ErrNoRecord) {
		return nil // packed in another way, and nothing tells for what
	}
	if err != nil {
		return err
	}
	defer v.Close()
	on := image.Name
	if image.Digest == "" {
		on, err = engine.ExpandHere(r.Image.File)
		if _, missing := os.Stat(on); err != nil || missing != nil {
			return nil // the nodes alone have it, or know its name
		}
	}
	if o.noLint {
		return nil
	}
	return checkVenvOn(ctx, s, v, on)
}

// checkVenvOn refuses an environment that was made for another image.
func checkVenvOn(ctx context.Context, s *engine.Session, v *engine.Venv, image string) error {
	on, err := s.Open(image, engine.Wanted{OrOther: true})
	if err != nil {
		return err
	}
	defer on.Close()
	return fault.Hint(v.Check(ctx, on, false), "make it again on this image, or submit it all the same with --no-lint")
}

// placeForJob copies the image to where the nodes read it.
func (a *app) placeForJob(ctx context.Context, r *job.Request, image engine.Placed) error {
	if image.File == "" {
		return nil
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	engine.StripeNew(ctx, r.Cluster.Paths.Stripe, filepath.Dir(image.File))
	return s.Place(ctx, image)
}

// lintJob judges the files of a job as `sconce lint` does, before they are written and the image, of which the digest is given if it is known,
// is copied. What cannot work is not submitted; a warning is told.
func (a *app) lintJob(ctx context.Context, o submitOptions, r *job.Request, files jobFiles, digest string) error {
	if o.noLint {
		return nil
	}
	judged := lintOptions{texts: map[string]string{}, coming: map[string]string{}}
	for _, f := range files {
		judged.files, judged.texts[f.path] = append(judged.files, f.path), f.text
	}
	if o.image == "" && r.Image.File != "" {
		if path, err := engine.ExpandHere(r.Image.File); err == nil {
			judged.coming[path] = digest
		}
	}
	result, err := a.judge(ctx, judged, r.Cluster)
	if err != nil {
		return err
	}
	result.Only(audit.Warning)
	findings, _ := split(result.Audit())
	var errs []error
	for _, f := range findings {
		text := fmt.Sprintf("%s (%s)", placed(f), f.Rule)
		if f.Severity == audit.Error {
			errs = append(errs, fmt.Errorf("%s: %s", text, f.Remedy))
		} else {
			progress.Warn(ctx, text, f.Remedy)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fault.Problem(fault.Hint(fmt.Errorf("job %s is not submitted: %w", r.Name, errors.Join(errs...)), "--dry-run prints its files, --no-lint submits it all the same"))
}

// jobFiles are the script of a job and, behind it, its environment definition file if it has one. Each is named by a hash of what it says: a
// job that waits, or follows another one, keeps the file that it was submitted with.
type jobFiles []struct{ path, text string }

func (f *jobFiles) add(dir, name, ext, text string) (path string) {
	sum := sha256.Sum256([]byte(text))
	path = filepath.Join(dir, ".sconce", name+"-"+hex.EncodeToString(sum[:4])+ext)
	*f = slices.Insert(*f, 0, struct{ path, text string }{path, text})
	return path
}

// filesOfJob makes the files of a job that is submitted from a directory, and says in the request which environment it has.
func filesOfJob(dir string, r *job.Request) (jobFiles, error) {
	var files jobFiles
	if r.ReadsEDF() {
		text, err := job.EDF(*r)
		if err != nil {
			return nil, err
		}
		r.EDF = files.add(dir, r.EDFName(), ".toml", text)
	}
	text, err := job.Sbatch(*r)
	if err != nil {
		return nil, err
	}
	files.add(dir, r.Name, ".sbatch", text)
	return files, nil
}

// print prints them as they would be written.
func (f jobFiles) print(w io.Writer) error {
	for i, file := range f {
		if i > 0 {
			file.text = "\n" + file.text
		}
		if _, err := io.WriteString(w, file.text); err != nil {
			return err
		}
	}
	return nil
}

// write writes those that are not there already.
func (f jobFiles) write() error {
	for _, file := range f {
		if old, err := os.ReadFile(file.path); err == nil && string(old) == file.text {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file.path), 0o755); err != nil {
			return err
		}
		if err := replaceFile(file.path, []byte(file.text)); err != nil {
			return err
		}
	}
	return nil
}

// submitScript submits a job whose files are written, and tells its number.
func (a *app) submitScript(ctx context.Context, o submitOptions, r job.Request, record slurm.Record) error {
	logs := r.Job.Logs
	if !filepath.IsAbs(logs) {
		logs = filepath.Join(record.Dir, logs)
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	record.Log = filepath.Join(logs, r.LogName(slurm.Number))
	record, err := slurm.Submit(ctx, record, o.args)
	if err != nil {
		return err
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

// waitFor tells of the job's state and calls each until the job has ended, and once more then. A job that failed is an error.
func (a *app) waitFor(ctx context.Context, record slurm.Record, each func() error) error {
	tell := slurm.Telling(record.ID, a.say)
	state, err := slurm.Follow(ctx, record.ID, func(s slurm.State) error {
		tell(s)
		return each()
	})
	if err != nil {
		return err
	}
	a.explainEnd(record, state)
	if state.Failed() {
		return fault.Hint(fmt.Errorf("job %s (%s) ended as %s", record.ID, record.Name, state.Name), "its log is "+record.Log)
	}
	a.say("job %s (%s) has ended", record.ID, record.Name)
	return nil
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
