package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/quote"
)

// JobOptions say which job of which image is meant, and what is different from what its recipe says.
type JobOptions struct {
	Subject  string // a recipe or an image
	Command  []string
	Cluster  string // instead of the recipe's
	Job      string
	Runtime  string
	Image    string // where the nodes read it
	Nodes    int
	GPUs     int // of each node; -1: not given
	Time     string
	Launcher string
	EDF      string
}

// JobRequest puts together what a job's files are written from. open is called for an image that has to be looked at.
func JobRequest(ctx context.Context, o JobOptions, open Opener) (job.Request, error) {
	r, target, err := o.request(ctx, open)
	target.Tell(ctx)
	return r, err
}

func (o JobOptions) request(ctx context.Context, open Opener) (r job.Request, t Target, err error) {
	r = job.Request{Runtime: o.Runtime, EDF: o.EDF}
	if IsRecipe(o.Subject) {
		t, err = o.ofRecipe(ctx, &r, open)
	} else {
		t, err = o.ofImage(ctx, &r, open)
	}
	if err != nil {
		return r, t, err
	}
	if err := o.change(&r); err != nil {
		return r, t, err
	}
	placeImage(&r, o)
	return r, t, nil
}

func (o JobOptions) ofRecipe(ctx context.Context, r *job.Request, open Opener) (Target, error) {
	from, err := LoadRecipe(o.Subject, Changes{})
	if err != nil {
		return Target{}, err
	}
	if o.Cluster != "" {
		if from.Target, err = TargetOf(from.Recipe, o.Cluster); err != nil {
			return Target{}, err
		}
	}
	if r.Name, r.Job, err = from.Job(o.Job); err != nil {
		return from.Target, err
	}
	r.Cluster, r.Image = from.Target.Profile, from.JobImage()
	return from.Target, lookAtFile(ctx, r, o.Image, open)
}

// lookAtFile has a job go by what is in the file of its image, where that is here: a recipe does not say whether there is a bash.
func lookAtFile(ctx context.Context, r *job.Request, file string, open Opener) error {
	if !slices.Contains([]string{".sqsh", ".sif"}, filepath.Ext(file)) {
		return nil
	}
	if _, err := os.Stat(file); err != nil {
		return nil // only the nodes have it
	}
	subject, err := openFor(ctx, open, file, r.Cluster.Platform)
	if err != nil {
		return err
	}
	defer subject.Close()
	found, err := subject.JobImage(ctx)
	found.Name, found.Reference = r.Image.Name, r.Image.Reference
	r.Image = found
	return err
}

func (o JobOptions) ofImage(ctx context.Context, r *job.Request, open Opener) (Target, error) {
	if o.Job != "" {
		return Target{}, fault.Usage(fault.Hint(fmt.Errorf("%s is an image, and has no job %q", o.Subject, o.Job), "jobs are a recipe's; a command of an image stands behind --"))
	}
	target, err := FindTarget(o.Cluster, ".")
	if err != nil {
		return target, err
	}
	subject, err := openFor(ctx, open, o.Subject, target.Platform)
	if err != nil {
		return target, err
	}
	defer subject.Close()
	r.Cluster = target.Profile
	r.Image, err = subject.JobImage(ctx)
	r.Name = r.EDFName()
	return target, err
}

// openFor opens an image that a job runs, for a platform; "" is this machine's where there is a choice.
func openFor(ctx context.Context, open Opener, name, platform string) (*Subject, error) {
	w := Wanted{ToRun: true}
	if platform != "" {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			return nil, fault.Usage(fmt.Errorf("platform %q: %w", platform, err))
		}
		w.Platform = *p
	}
	s, err := open(ctx)
	if err != nil {
		return nil, err
	}
	return s.Open(name, w)
}

// change puts what flags say in place of what the recipe does.
func (o JobOptions) change(r *job.Request) error {
	if o.Nodes < 0 || o.GPUs < -1 {
		return fault.Usage(errors.New("--nodes and --gpus-per-node take whole numbers"))
	}
	if o.Nodes > 0 {
		r.Job.Nodes = o.Nodes
	}
	if o.GPUs >= 0 {
		r.Job.GPUsPerNode = &o.GPUs
	}
	if o.Time != "" {
		r.Job.Time = o.Time
	}
	if o.Launcher != "" && o.Launcher != job.Srun && o.Launcher != job.Torchrun {
		return fault.Usage(fmt.Errorf("--launcher %q is neither srun nor torchrun", o.Launcher))
	}
	if o.Launcher != "" {
		r.Job.Launcher = o.Launcher
	}
	if len(o.Command) > 0 {
		r.Job.Command = quote.Words(o.Command...)
	}
	return nil
}

// placeImage decides where the nodes read the image, unless it is a file already.
func placeImage(r *job.Request, o JobOptions) {
	switch {
	case o.Image != "" && (isPath(o.Image) || r.StartsFiles()):
		r.Image.File = o.Image
	case o.Image != "":
		r.Image.Reference = o.Image
	case r.Image.File == "":
		r.Image.File = r.DefaultFile()
	}
	if IsRecipe(o.Subject) && r.Image.File != "" {
		build := []string{"sconce", "build"}
		if o.Subject != "." {
			build = append(build, quote.Operand(o.Subject))
		}
		r.Image.Put = quote.Words(build...) + " -o " + job.Path(r.Image.File)
	} else if !strings.HasSuffix(r.Image.File, o.Subject) {
		r.Image.Put = quote.Words("sconce", "copy", quote.Operand(o.Subject)) + " " + job.Path(r.Image.File)
	}
}
