package engine

import (
	"context"
	"fmt"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/tempdir"
	"sconce.dev/sconce/internal/units"
)

// chooseScratch makes a directory on this machine where the store's file system cannot hold what is unpacked and what steps write: homes on
// network file systems. It is gone with the process, as those who clean up such places may take single files of what stays there.
func chooseScratch(ctx context.Context, tmp string) (dir string, remove func(), err error) {
	place, reason, err := host.PlaceInstead(tmp)
	if reason == nil {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, fault.Hint(err, "set SCONCE_SCRATCH to a directory on a local disk")
	}
	progress.Notef(ctx, fmt.Sprintf("layers are unpacked, and steps write, below %s (%s, room for %s): the store cannot hold them: %v; SCONCE_SCRATCH names another place, which stays",
		place.Dir, place.Type, units.Size(place.Room), reason))
	return tempdir.MakeIn(place.Dir, "scratch")
}
