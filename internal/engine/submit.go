package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/atomicfile"
	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/lint"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/slurm"
	"sconce.dev/sconce/internal/venv"
)

// SubmitOptions say which job is submitted, and how far.
type SubmitOptions struct {
	JobOptions
	Args []string // for the job's command

	DryRun   bool // make its files and judge them, and do no more
	TestOnly bool // ask Slurm whether it would take the job
	AnyImage bool // the image in the store will do although recipe or lock have changed since it was built
	NoLint   bool // do not judge the files
}

// Submitted is a job that was submitted, or would be.
type Submitted struct {
	Files []JobFile // the script first
	Said  string    // by Slurm, of a job that was only tried
	slurm.Record
}

// JobFile is a file of a job.
type JobFile struct{ Path, Text string }

// Submit submits a job from this directory: it makes and judges its files, copies the image to where the nodes read it, writes the
// files and calls sbatch. The files of a dry run are returned beside an error that says what would not work.
func Submit(ctx context.Context, o SubmitOptions, open Opener) (Submitted, error) {
	var done Submitted
	dir, err := os.Getwd()
	if err != nil {
		return done, err
	}
	s := &submission{o: o, open: open}
	if s.r, err = o.request(ctx, open); err != nil {
		return done, err
	}
	err = s.placeImage(ctx)
	if err == nil {
		err = s.checkFiles(ctx)
	}
	if err != nil && !o.DryRun {
		return done, err
	}
	if err != nil {
		progress.Warn(ctx, err.Error(), fault.HintOf(err))
	}
	if done.Files, err = s.makeFiles(dir); err != nil {
		return done, fmt.Errorf("job %s: %w", s.r.Name, err)
	}
	if err := s.lint(ctx, done.Files); err != nil || o.DryRun {
		return done, err
	}
	if err := s.copyImage(ctx); err != nil {
		return done, err
	}
	if err := writeJobFiles(done.Files); err != nil {
		return done, err
	}
	done.Record = slurm.Record{
		Name: s.r.Name, Cluster: s.r.Cluster.Name, Image: s.r.Image.Name, Digest: s.placed.Digest, File: s.placed.File, Dir: dir, Script: done.Files[0].Path,
	}
	if o.TestOnly {
		done.Said, err = slurm.Test(ctx, dir, done.Script, o.Args)
		return done, err
	}
	done.Record, err = s.submit(ctx, done.Record)
	return done, err
}

// submission is a job on its way to Slurm.
type submission struct {
	o      SubmitOptions
	r      job.Request
	open   Opener
	placed Placed // where the nodes read the image, see placeImage
}

// request puts together what the job's files are written from.
func (o SubmitOptions) request(ctx context.Context, open Opener) (job.Request, error) {
	r, target, err := o.JobOptions.request(ctx, open)
	if err != nil {
		return r, err
	}
	target.tellMounts(ctx)
	if r.Job.Logs, err = ExpandHere(r.Job.Logs); err != nil {
		return r, fmt.Errorf("job %s: logs: %w", r.Name, err)
	}
	if _, err := job.Sbatch(r); err != nil { // which nobody need build an image for
		return r, fmt.Errorf("job %s: %w", r.Name, err)
	}
	return r, nil
}

// placeImage decides where the nodes read the image that was built, unless somebody says where it is, or the runtime takes it from
// elsewhere.
func (s *submission) placeImage(ctx context.Context) error {
	r := &s.r
	if s.o.Image != "" || !r.StartsFiles() || r.Image.File == "" {
		return nil
	}
	target, err := imagesOf(r.Cluster)
	if err != nil {
		return err
	}
	if home, err := os.UserHomeDir(); err == nil && r.Cluster.Paths.HomeShared != nil && !*r.Cluster.Paths.HomeShared && strings.HasPrefix(target+"/", home+"/") {
		return fault.Hint(fmt.Errorf("%s is in your home, which the nodes of %s do not see", target, r.Cluster.Name), "name a directory that they see: paths.images in the cluster's profile")
	}
	from, err := LoadRecipe(s.o.Subject, Changes{})
	if err != nil {
		return err
	}
	session, err := s.open(ctx)
	if err != nil {
		return err
	}
	if !s.o.AnyImage {
		if err := session.CheckCurrent(ctx, from); err != nil {
			return err
		}
	}
	placed, err := session.PlaceOfRecipe(ctx, from, target, r.MountsUenv())
	if err != nil {
		return err
	}
	s.placed, r.Image = placed, placed.Image
	return nil
}

// imagesOf is the directory of a cluster for images that all nodes read: where jobs are submitted from, unless its profile names one.
func imagesOf(p cluster.Profile) (string, error) {
	if p.Paths.Images == "" {
		dir, err := os.Getwd()
		if err != nil {
			return "", err
		}
		return slurm.FilesDir(dir, "images")
	}
	dir, err := ExpandHere(p.Paths.Images)
	if err != nil {
		return "", fmt.Errorf("paths.images of %s: %w", cmp.Or(p.Name, "the cluster"), err)
	}
	return dir, nil
}

// checkFiles refuses what the nodes would look for in vain: the file that --image names, and the virtual environment.
func (s *submission) checkFiles(ctx context.Context) error {
	r, image := &s.r, s.o.Image
	if ext := filepath.Ext(image); r.Image.File == image && (isPath(image) || ext == ".sqsh" || ext == ".squashfs" || ext == ".sif") {
		if path, err := ExpandHere(image); err == nil && isMissing(path) {
			return fault.Usage(fmt.Errorf("--image: there is no file %s", path))
		}
	}
	path, err := ExpandHere(r.Job.VenvSource())
	if path == "" || err != nil {
		return nil //nolint:nilerr // a variable that is set on the nodes alone
	}
	if isMissing(path) {
		return fault.Usage(fault.Hint(fmt.Errorf("job %s: venv: there is no %s", r.Name, path), "`sconce venv pack DIR -o FILE.sqsh` writes one"))
	}
	if err := s.checkVenv(ctx, path); err != nil {
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

// checkVenv refuses a directory in which `sconce venv` keeps what is still to be packed, and a packed environment of another image.
func (s *submission) checkVenv(ctx context.Context, path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return nil // the nodes may see more
	}
	if st.IsDir() {
		_, kept := os.Stat(filepath.Join(path, venv.FileName))
		_, python := os.Stat(filepath.Join(path, "pyvenv.cfg"))
		if kept == nil && python != nil {
			return fault.Usage(fault.Hint(fmt.Errorf("%s says what an environment is made of, and has no packages in it", path), "pack it, and name the file: sconce venv pack "+quote.Word(quote.Operand(path))+" -o FILE.sqsh"))
		}
		return nil
	}
	session, err := s.open(ctx)
	if err != nil {
		return err
	}
	v, err := session.OpenVenv(ctx, path)
	if errors.Is(err, venv.ErrNoRecord) {
		return nil // packed in another way, and nothing tells for what
	}
	if err != nil {
		return err
	}
	defer v.Close()
	on := s.placed.Name
	if s.placed.Digest == "" {
		on, err = ExpandHere(s.r.Image.File)
		if _, missing := os.Stat(on); err != nil || missing != nil {
			return nil // the nodes alone have it, or know its name
		}
	}
	if s.o.NoLint {
		return nil
	}
	return session.checkVenvOn(ctx, v, on)
}

// checkVenvOn refuses an environment that was made for another image.
func (s *Session) checkVenvOn(ctx context.Context, v *Venv, image string) error {
	on, err := s.Open(image, Wanted{OrOther: true})
	if err != nil {
		return err
	}
	defer on.Close()
	return fault.Hint(v.Check(ctx, on, false), "make it again on this image, or submit it all the same with --no-lint")
}

// copyImage copies the image to where the nodes read it.
func (s *submission) copyImage(ctx context.Context) error {
	if s.placed.File == "" {
		return nil
	}
	session, err := s.open(ctx)
	if err != nil {
		return err
	}
	StripeNew(ctx, s.r.Cluster.Paths.Stripe, filepath.Dir(s.placed.File))
	return session.Place(ctx, s.placed)
}

// lint judges the files of the job as `sconce lint` does, before they are written and the image is copied. What cannot work is not
// submitted; a warning is told.
func (s *submission) lint(ctx context.Context, files []JobFile) error {
	if s.o.NoLint {
		return nil
	}
	judged := LintOptions{Options: lint.Options{Target: s.r.Cluster, Lookup: os.LookupEnv, Texts: map[string]string{}, Coming: map[string]string{}}}
	var paths []string
	for _, f := range files {
		paths = append(paths, f.Path)
		judged.Texts[f.Path] = f.Text
	}
	if s.o.Image == "" && s.r.Image.File != "" {
		if path, err := ExpandHere(s.r.Image.File); err == nil {
			judged.Coming[path] = s.placed.Digest
		}
	}
	result, err := Lint(ctx, paths, judged, s.open)
	if err != nil {
		return err
	}
	result.Only(audit.Warning)
	var errs []error
	for _, f := range result.Audit() {
		text := fmt.Sprintf("%s (%s)", f.Placed(), f.Rule)
		switch {
		case f.Allowed != "":
		case f.Severity == audit.Error:
			errs = append(errs, fmt.Errorf("%s: %s", text, f.Remedy))
		default:
			progress.Warn(ctx, text, f.Remedy)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fault.Problem(fault.Hint(fmt.Errorf("job %s is not submitted: %w", s.r.Name, errors.Join(errs...)), "--dry-run prints its files, --no-lint submits it all the same"))
}

// makeFiles makes the files of a job that is submitted from a directory, the script first, and says in the request which environment it
// has. Each is named by a hash of what it says: a job that waits, or follows another one, keeps the file that it was submitted with.
func (s *submission) makeFiles(dir string) ([]JobFile, error) {
	dir, err := slurm.FilesDir(dir)
	if err != nil {
		return nil, err
	}
	var files []JobFile
	add := func(name, ext, text string) (path string) {
		sum := sha256.Sum256([]byte(text))
		path = filepath.Join(dir, name+"-"+hex.EncodeToString(sum[:4])+ext)
		files = slices.Insert(files, 0, JobFile{path, text})
		return path
	}
	if s.r.ReadsEDF() {
		text, err := job.EDF(s.r)
		if err != nil {
			return nil, err
		}
		s.r.EDF = add(s.r.EDFName(), ".toml", text)
		if err := checkLiteral(s.r.EDF); err != nil {
			return nil, err
		}
	}
	text, err := job.Sbatch(s.r)
	if err != nil {
		return nil, err
	}
	add(s.r.Name, ".sbatch", text)
	return files, nil
}

// writeJobFiles writes those that are not there already.
func writeJobFiles(files []JobFile) error {
	for _, f := range files {
		if old, err := os.ReadFile(f.Path); err == nil && string(old) == f.Text {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return err
		}
		if err := atomicfile.Write(f.Path, []byte(f.Text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// submit submits a job whose files are written.
func (s *submission) submit(ctx context.Context, record slurm.Record) (slurm.Record, error) {
	logs := s.r.Job.Logs
	if !filepath.IsAbs(logs) {
		logs = filepath.Join(record.Dir, logs)
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return record, err
	}
	record.Log = filepath.Join(logs, s.r.LogName(slurm.Number))
	return slurm.Submit(ctx, record, s.o.Args)
}
