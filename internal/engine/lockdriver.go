package engine

import (
	"context"
	"fmt"
	"regexp"

	"sconce.dev/sconce/internal/cuda"
	"sconce.dev/sconce/internal/progress"
)

// cudaRuntime are the packages that CUDA's own library comes in: nvidia-cuda-runtime, and with the major version behind it until CUDA 12.
var cudaRuntime = regexp.MustCompile(`^nvidia-cuda-runtime(-cu[0-9]+)?$`)

// LockWarning is what a lock that was made now will come to on its target.
type LockWarning struct {
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// warnOfDriver says that the CUDA of a lock will not start on the target, before gigabytes of it are downloaded. The check of the image,
// which looks at more, has the last word.
func (l *Locked) warnOfDriver(ctx context.Context, r *Recipe) {
	driver := cuda.ParseDriver(r.Target.Driver)
	if driver == nil {
		return
	}
	for i := range l.Wheels {
		w := &l.Wheels[i]
		version, ok := cuda.ParseVersion(w.Version)
		if !ok || !cudaRuntime.MatchString(w.Name) {
			continue
		}
		if least := cuda.MinimumDriver(version); least != nil && driver.OlderThan(least) {
			warning := LockWarning{
				fmt.Sprintf("the packages are for CUDA %s, which needs driver %s or newer, and the target has %s", version, least, driver),
				`torch-backend = "target" under [python] takes the newest CUDA that the target's driver runs`,
			}
			l.Warnings = append(l.Warnings, warning)
			progress.Warn(ctx, warning.Message, warning.Hint)
		}
	}
}
