package imagetest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/spelling"
)

// FindPlace decides where tests run: here if that is wanted, in the allocation that this process is in, unless the tests are only to be
// submitted, or as a job.
func FindPlace(here, detach bool) (Place, error) {
	has := func(program string) bool {
		_, err := exec.LookPath(program)
		return err == nil
	}
	switch {
	case here:
		return Here, nil
	case os.Getenv("SLURM_JOB_ID") != "" && has("srun") && !detach:
		return Allocation, nil
	case has("sbatch"):
		return Submitted, nil
	}
	return "", fault.Usage(fault.Hint(errors.New("there is no Slurm here: no program sbatch is on PATH"), "--here runs the tests on this machine"))
}

// GPUsHere counts the GPUs of this machine, by their devices.
func GPUsHere() int {
	found, err := filepath.Glob("/dev/nvidia[0-9]*")
	if err != nil {
		return 0
	}
	return len(found)
}

// OfKit are the tests of an image without a recipe: of all that the kit has if some are named, else those that need neither GPUs nor a
// second node. Tests of communication have two tasks, on as many GPUs or nodes.
func OfKit(named, here bool) []Test {
	var tests []Test
	for _, use := range Kit {
		t := Test{Use: use}
		if use != Env && use != Import && use != GPU && GPUsHere() < 2 && here {
			t.TasksPerNode = 2
		} else if use != Env && use != Import && use != GPU && !here {
			t.Nodes = 2
		}
		if named || use == Env || use == Import {
			tests = append(tests, t)
		}
	}
	return tests
}

// Choose takes the tests that are named, all if none is, and of them those for a cluster; skipped are those that are left out.
func Choose(all []Test, only []string, on string) (run, skipped []Test, err error) {
	var names []string
	for _, t := range all {
		names = append(names, t.Title())
	}
	for _, name := range only {
		if !slices.Contains(names, name) {
			hint := "the tests are " + strings.Join(names, ", ")
			if near := spelling.Nearest(name, names); near != "" {
				hint = fmt.Sprintf("did you mean %q?", near)
			}
			return nil, nil, fault.Usage(fault.Hint(fmt.Errorf("there is no test %q", name), hint))
		}
	}
	for _, t := range all {
		switch {
		case len(only) > 0 && !slices.Contains(only, t.Title()):
		case !t.On(on):
			if len(only) > 0 {
				return nil, nil, fault.Usage(fmt.Errorf("the test %q is for %s, and not for %s", t.Title(), strings.Join(t.Clusters, ", "), cmp.Or(on, "this machine")))
			}
		case t.Skip != "":
			skipped = append(skipped, t)
		default:
			run = append(run, t)
		}
	}
	if len(run)+len(skipped) == 0 {
		return nil, nil, fault.Usage(fmt.Errorf("none of the tests is for %s", cmp.Or(on, "this machine")))
	}
	return run, skipped, nil
}
