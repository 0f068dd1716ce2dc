package slurm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sbatch"
)

// Number stands for the number of the job in the log's path of a record that is to be submitted.
const Number = "%j"

var (
	// jobID is what sbatch --parsable prints: the number of the job, and of a federation the cluster's name.
	jobID = lazyregexp.New(`^([0-9]+)(;.*)?$`)

	// token is one of rand.Text.
	token = lazyregexp.New(`^[A-Z2-7]{26}$`)

	// tokenOf finds a job's number and its token in a line of squeue or sacct.
	tokenOf = lazyregexp.New(`^([0-9]+).*\bsconce:([A-Z2-7]{26})\b`)
)

const (
	begunPrefix = "begun-"       // of the file of a record without a number
	forgetAfter = 24 * time.Hour // when one of a job that Slurm does not know is dropped: nobody submits it any more
)

// Submit submits the script of a record with arguments, from the record's directory, and notes the job. It returns the record with number,
// log and time.
//
// The record is begun before, under a token that the job carries in its comment, behind the user's own. Who is killed between the two leaves
// what [Records] completes. A job that could not be noted is a warning.
func Submit(ctx context.Context, r Record, args []string) (Record, error) {
	comment, err := commentOf(r.Script)
	if err != nil {
		return r, err
	}
	r.Token, r.Submitted = rand.Text(), time.Now().UTC()
	begun := r
	_ = begun.keep() // where that fails, so it does below, which is told
	options := []string{"--parsable", "--comment=" + strings.TrimSpace(comment+" sconce:"+r.Token), r.Script}
	out, err := call(ctx, r.Dir, "sbatch", append(options, args...)...)
	if err != nil {
		return r, err // which need not mean that there is no job: the answer may have been lost
	}
	m := jobID.FindStringSubmatch(strings.TrimSpace(out))
	if m == nil {
		return r, fmt.Errorf("sbatch: it printed %q, and not the number of a job", strings.TrimSpace(out))
	}
	if r, err = begun.settle(m[1]); err != nil {
		progress.Warn(ctx, fmt.Sprintf("job %s is submitted, and could not be noted: %v", r.ID, err), "")
	}
	return r, nil
}

// commentOf is the comment that a script has for its job.
func commentOf(script string) (string, error) {
	data, err := os.ReadFile(script)
	if err != nil {
		return "", err
	}
	o, _ := sbatch.Find(sbatch.Parse(script, data).Options(), "comment")
	return o.Value, nil
}

// settle puts the record of a job that has a number in place of the one that was begun.
func (r Record) settle(id string) (Record, error) {
	settled := r
	settled.ID, settled.Log = id, strings.ReplaceAll(r.Log, Number, id)
	if err := settled.keep(); err != nil {
		return settled, err
	}
	return settled, r.remove()
}

func (r Record) remove() error {
	dir, err := Dir()
	if err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, fileOf(r))); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// complete returns the jobs whose records were only begun, and whose submission Slurm knows of. One that it has not heard of for a day
// was never submitted. When Slurm does not answer, they are looked for the next time.
func complete(ctx context.Context, begun, settled []Record) []Record {
	begun = slices.DeleteFunc(begun, func(b Record) bool { // settled, and about to be removed
		return slices.ContainsFunc(settled, func(s Record) bool { return s.Token == b.Token })
	})
	if len(begun) == 0 {
		return nil
	}
	jobs, err := submitted(ctx)
	if err != nil {
		return nil
	}
	var found []Record
	for _, b := range begun {
		if id := jobs[b.Token]; id != "" {
			r, _ := b.settle(id) // or the next time
			found = append(found, r)
		} else if time.Since(b.Submitted) > forgetAfter {
			_ = b.remove() // likewise
		}
	}
	return found
}

// submitted are the numbers of this user's jobs by their tokens: of those that the controller knows, and of those of the last day in the
// accounting, where there is one.
func submitted(ctx context.Context) (map[string]string, error) {
	out, err := call(ctx, "", "squeue", "--me", "--noheader", "--states=all", "--format=%F %k")
	if err != nil {
		return nil, err
	}
	old, err := call(ctx, "", "sacct", "--noheader", "--allocations", "--parsable2", "--starttime=now-1days", "--format=JobID,SubmitLine")
	if err != nil {
		old = ""
	}
	jobs := map[string]string{}
	for line := range strings.Lines(old + out) {
		if m := tokenOf.FindStringSubmatch(line); m != nil {
			jobs[m[2]] = m[1]
		}
	}
	return jobs, nil
}
