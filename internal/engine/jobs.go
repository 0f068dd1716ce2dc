package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/job"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/spelling"
)

// Job returns a job of the recipe and its name: the one that is named, or the only one there is. Without any, it is an empty one under the
// recipe's own name.
func (r *Recipe) Job(name string) (string, job.Job, error) {
	names := slices.Sorted(maps.Keys(r.Jobs))
	j, ok := r.Jobs[name]
	switch {
	case name == "" && len(names) == 0:
		return r.Name, job.Job{}, nil
	case name == "" && len(names) == 1:
		return names[0], r.Jobs[names[0]], nil
	case name == "":
		return "", j, fault.Usage(fault.Hint(fmt.Errorf("%s has several jobs", r.Path), "name one: "+strings.Join(names, ", ")))
	case ok:
		return name, j, nil
	}
	hint := "its jobs are " + strings.Join(names, ", ")
	if near := spelling.Nearest(name, names); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	} else if len(names) == 0 {
		hint = fmt.Sprintf("add [job.%s] to it", name)
	}
	return "", j, fault.Usage(fault.Hint(fmt.Errorf("%s has no job %q", r.Path, name), hint))
}

// JobImage is what the recipe and its lock say of the image, which need not be built.
func (r *Recipe) JobImage() job.Image {
	i := job.Image{Name: r.FullName(), Workdir: r.Image.Workdir}
	_, i.Arch, _ = strings.Cut(r.Target.Platform, "/")
	if i.Arch == "" {
		_, i.Arch, _ = strings.Cut(r.Recipe.Target.Platform, "/")
	}
	if r.Publish.Repository != "" {
		i.Reference = r.Publish.Repository + ":" + r.Version
	}
	state, err := r.ReadLock()
	if err != nil || state.Lock == nil {
		return i
	}
	i.Musl = state.Lock.Python != nil && state.Lock.Python.Musl != ""
	if locked, err := state.Lock.Locked(r.pinned); err == nil {
		for _, w := range locked.Wheels {
			i.CUDA = max(i.CUDA, cudaOf(w.Name, w.Version))
		}
	}
	if i.CUDA > 0 && r.Base.Bootstrap != nil {
		i.Cudart = job.Nope // wheels have libcudart.so.12 alone
	}
	return i
}

// cudaOf is the major version of CUDA that a wheel brings the run time of, 0 for any other: nvidia-cuda-runtime-cu12, and since CUDA 13
// nvidia-cuda-runtime.
func cudaOf(name, version string) int {
	major := ""
	switch rest, ok := strings.CutPrefix(name, "nvidia-cuda-runtime"); {
	case ok && rest == "":
		major, _, _ = strings.Cut(version, ".")
	case ok:
		major = strings.TrimPrefix(rest, "-cu")
	}
	n, err := strconv.Atoi(major)
	if err != nil {
		return 0
	}
	return n
}

// JobImage is what an image holds, as far as jobs go by it.
func (s *Subject) JobImage(ctx context.Context) (job.Image, error) {
	i := job.Image{Name: s.Name}
	if s.IsClusterFile() {
		file, err := filepath.Abs(s.Ref.Value)
		if err != nil {
			return i, err
		}
		if err := checkLiteral(file); err != nil {
			return i, err
		}
		i.File, i.Name = file, strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	}
	gathered, err := s.Facts(ctx)
	if err != nil {
		return i, err
	}
	lookAtFacts(&i, gathered)
	return i, errors.Join(gathered.Close())
}

// checkLiteral refuses a path that is there with what a job would take for a variable in it.
func checkLiteral(path string) error {
	if v := job.Variable(path); v != "" {
		return fault.Usage(fault.Hint(fmt.Errorf("%q: a job would put a value in place of %s in the path", path, v), "rename it"))
	}
	return nil
}

// cudart is a CUDA run time library: libcudart.so, libcudart.so.12, libcudart.so.12.8.90.
var cudart = lazyregexp.New(`^libcudart\.so(?:\.([0-9]+))?(?:\.[0-9.]+)?$`)

func lookAtFacts(i *job.Image, f *facts.Facts) {
	i.Arch, i.Workdir = f.Arch(), f.Config.WorkingDir
	i.Cudart, i.NoBash = job.Nope, true
	for _, p := range f.Paths {
		dir, base := path.Split(p.Path)
		switch m := cudart.FindStringSubmatch(base); {
		case m != nil && m[1] == "":
			i.Cudart = job.Yes
		case m != nil:
			if n, err := strconv.Atoi(m[1]); err == nil {
				i.CUDA = max(i.CUDA, n)
			}
		case base == "bash" && (dir == "bin/" || dir == "usr/bin/"):
			i.NoBash = false
		case strings.HasPrefix(base, "ld-musl-") && (dir == "lib/" || dir == "usr/lib/"):
			i.Musl = true
		}
	}
}

// Placed is an image of the store and where the nodes of a cluster are to read it.
type Placed struct {
	job.Image
	Digest string // of its manifest

	uenv bool // the file is one
}

// PlaceOfRecipe is [Session.PlaceOf] for the built image of a recipe.
func (s *Session) PlaceOfRecipe(ctx context.Context, r *Recipe, dir string, uenv bool) (Placed, error) {
	p, err := s.PlaceOf(ctx, r.FullName(), dir, uenv)
	if err != nil && p.Digest == "" {
		err = fault.Hint(err, "build it first: sconce build "+quote.Word(filepath.Dir(r.Path)))
	}
	p.Reference = r.JobImage().Reference
	return p, err
}
