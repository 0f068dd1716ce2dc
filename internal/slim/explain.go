package slim

import (
	"context"
	"errors"
	"fmt"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/progress"
)

// Explain tells what slimming would do to the files of an image, and writes nothing. The report has no layers, and
// nothing about trimming: see [ExplainTrim].
func Explain(ctx context.Context, files facts.Files, o Options) (*Report, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	r := &Report{GPUs: capabilities(o.gpus()), Files: []FileReport{}}
	if len(o.GPUs) == 0 {
		return r, nil
	}
	task := progress.Begin(ctx, "scan", "device code", 0)
	err := files.Walk(ctx, fatbin.MayHold, func(f facts.File) error {
		task.Add(f.Size)
		plan, err := Look(ctx, f.Content, f.Size, o)
		switch {
		case errors.Is(err, fatbin.ErrFormat):
			return nil
		case err != nil:
			return fmt.Errorf("%q: %w", f.Path, err)
		}
		plan.Report.Path = f.Path
		r.Files = append(r.Files, plan.Report)
		return nil
	})
	if task.End(err) != nil {
		return nil, fmt.Errorf("look for device code: %w", err)
	}
	r.sum()
	return r, nil
}
