package engine

import (
	"context"
	"fmt"

	"sconce.dev/sconce/internal/cuda"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
)

// cudaRuntime are the packages that CUDA's own library comes in: nvidia-cuda-runtime, and with the major version behind it until CUDA 12.
var cudaRuntime = lazyregexp.New(`^nvidia-cuda-runtime(-cu[0-9]+)?$`)

// LockWarning is what a lock that was made now will come to on its target.
type LockWarning struct {
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// driverTooOld is the rule of the check by which an image fails whose CUDA is too new for the target's driver.
const driverTooOld = "driver-too-old"

// driverWarnings say which CUDA of a lock will not start on the target, unless somebody allows that. They are told before gigabytes of it are
// downloaded: when the lock is made, and by each build that finds it made. The check of the image, which looks at more, has the last word.
func (s *Session) driverWarnings(l *Locked, r *Recipe) (all []LockWarning) {
	driver := cuda.ParseDriver(r.Target.Driver)
	if driver == nil || s.allowed(r.Target.Allow)[driverTooOld] != "" {
		return nil
	}
	for i := range l.Wheels {
		w := &l.Wheels[i]
		version, ok := cuda.ParseVersion(w.Version)
		if !ok || !cudaRuntime.MatchString(w.Name) {
			continue
		}
		if least := cuda.MinimumDriver(version); least != nil && driver.OlderThan(least) {
			all = append(all, LockWarning{
				fmt.Sprintf("the packages are for CUDA %s, which needs driver %s or newer, and the target has %s", version, least, driver),
				`torch-backend = "target" under [python] takes the newest CUDA that the target's driver runs`,
			})
		}
	}
	return all
}

func tellWarnings(ctx context.Context, all []LockWarning) {
	for _, w := range all {
		progress.Warn(ctx, w.Message, w.Hint)
	}
}
