package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/tempdir"
	"sconce.dev/sconce/internal/units"
)

// chooseScratch makes a directory on this machine where the store's file system cannot hold what is unpacked and what steps write: homes on
// network file systems. It is gone with the process, as those who clean up such places may take single files of what stays there.
func chooseScratch(ctx context.Context, tmp string) (dir string, remove func(), err error) {
	local := localOfJob()
	place, reason, err := host.PlaceInstead(tmp, local.dirs()...)
	if reason == nil {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, fault.Hint(err, "set SCONCE_SCRATCH to a directory on a local disk")
	}
	progress.Notef(ctx, fmt.Sprintf("layers are unpacked, and steps write, below %s (%s, room for %s)%s: the store cannot hold them: %v; SCONCE_SCRATCH names another place, which stays",
		place.Dir, place.Type, units.Size(place.Room), local.because(place.Dir), reason))
	return tempdir.MakeIn(place.Dir, "scratch")
}

// jobPlace is the directory that a cluster's profile says each of its nodes has, for a process of a job there. The zero value is for others.
type jobPlace struct{ dir, cluster string }

// localOfJob returns paths.local of the profile with the name of the cluster on which this process is part of a job of Slurm's. Where the
// profile takes it from variables, it is the user's or the job's own and is made; any other is there for all users, or is not taken.
func localOfJob() jobPlace {
	name := os.Getenv("SLURM_CLUSTER_NAME")
	if os.Getenv("SLURM_JOB_ID") == "" || name == "" || strings.ContainsRune(name, filepath.Separator) {
		return jobPlace{}
	}
	found, err := cluster.Find(name, "")
	if err != nil || found.Paths.Local == "" {
		return jobPlace{}
	}
	dir, err := cluster.Expand(found.Paths.Local, os.LookupEnv)
	if err != nil || !filepath.IsAbs(dir) {
		return jobPlace{}
	}
	if dir != found.Paths.Local {
		_ = os.Mkdir(dir, 0o700) // where it cannot be made, another place is taken
	}
	return jobPlace{dir, name}
}

func (p jobPlace) dirs() []string {
	if p.dir == "" {
		return nil
	}
	return []string{p.dir}
}

// because says who names a place, if the profile does.
func (p jobPlace) because(dir string) string {
	if p.dir == "" || dir != p.dir {
		return ""
	}
	return ", as paths.local of " + p.cluster + " says"
}
