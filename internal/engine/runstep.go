package engine

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/jobstep"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/users"
)

// The tasks of a job step run their commands in one sandbox on each machine, see package jobstep. It is held by one more process, the
// keeper, which is this program with the same command line: the first task starts it, and it ends with the last.

// keeperVariable tells a process that it is the keeper, or that it starts the keeper and ends. With that, the keeper is a descendant of
// no task, and whoever kills a task with all that it has started leaves it to clean up.
const (
	keeperVariable = "SCONCE_JOB_STEP_KEEPER"
	startsKeeper   = "start"
	isKeeper       = "keep"
)

// The keeper's files, see [jobstep.Keep].
const (
	keeperListener = 3
	keeperSeat     = 4
)

// InJobModes are whether a command runs as a task of a job step: where a launcher's variables tell of one, always, never.
var InJobModes = []string{"auto", "yes", "no"}

// step returns the job step that this process is a task of, if it is to run as one.
func (r *running) step() (jobstep.Step, bool, error) {
	step, found := jobstep.Find(os.Getenv)
	switch r.InJob {
	case "auto":
		return step, found, nil
	case "no":
		return step, false, nil
	case "yes":
		if !found {
			step = jobstep.Siblings()
		}
		return step, true, nil
	}
	return step, false, fmt.Errorf("--in-job %q: it is one of %s", r.InJob, strings.Join(InJobModes, ", "))
}

// stepRoot is what the keeper tells tasks of the root file system.
type stepRoot struct {
	Config v1.Config `json:"config"`
	UserNS bool      `json:"userNS"`
	GPUs   *gpus     `json:"gpus,omitempty"`

	Self *users.Account `json:"self,omitempty"`
}

// inStep runs the command as a task of a job step.
func (r *running) inStep(ctx context.Context, step jobstep.Step) (code int, err error) {
	name, err := r.stepName(step)
	if err != nil {
		return 0, err
	}
	r.caller.Leave() // till the command runs, the terminal is the keeper's
	seat, welcome, err := jobstep.Meet(ctx, name, r.startKeeper)
	if err != nil {
		return 0, err
	}
	defer seat.Leave()
	var root stepRoot
	if err := json.Unmarshal(welcome.Payload, &root); err != nil {
		return 0, fmt.Errorf("hear of the root file system: %w", err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-ended:
		case <-seat.Gone():
			progress.Warn(progress.With(ctx, r.caller.Warnings), "the process that holds the image for this job step has ended before the command",
				"was it killed, for want of memory perhaps?")
		}
	}()
	r.caller.Release()
	return sandbox.Join(ctx, sandbox.JoinOptions{
		Spaces: welcome.Files, UserNS: root.UserNS, Args: r.commandLine(root.Config), WorkDir: r.workdir(root.Config),
		Env:  root.GPUs.environment(environment(root.Self, root.Config.Env, slices.Concat(jobstep.Variables(os.Environ()), r.env))),
		Pass: jobstep.Descriptors(os.Getenv),
	})
}

// stepName is the name under which those tasks of a step meet that want the same sandbox: not all have to.
func (r *running) stepName(step jobstep.Step) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	wanted := r.RunOptions // but for what is a task's own
	wanted.Command, wanted.Entrypoint, wanted.Binds, wanted.Env, wanted.EnvFiles, wanted.Cluster, wanted.InJob = nil, false, nil, nil, nil, "", ""
	text, err := json.Marshal([]any{r.caller.Same, dir, r.caller.Store, os.Getenv("SCONCE_SHARED_STORES"), wanted, r.binds})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %x", step.Name, sha256.Sum256(text)), nil
}

// startKeeper starts the keeper. Its stderr is this task's, for what it has to say of an image that comes from a registry or is unpacked.
func (r *running) startKeeper(listener, seat *os.File) error {
	// What the launcher handed to this task is for this task.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err := r.keeperProcess(startsKeeper, listener, seat).Run(); err != nil { //nolint:forbidigo // what it starts outlives this process, and should
		return fmt.Errorf("start a process that holds the image for this job step: %w", err)
	}
	return nil
}

// keeperProcess prepares this program to be started once more, as what the variable says, in a session of its own: neither a terminal's
// end nor a task's is the keeper's.
func (r *running) keeperProcess(as string, listener, seat *os.File) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), keeperVariable+"="+as)
	cmd.Stderr = r.caller.Stderr
	cmd.ExtraFiles = []*os.File{listener, seat}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// keepStep is all that the keeper does. Launchers send signals to everything that a step has started; the keeper ends when no task is left.
func (r *running) keepStep(ctx context.Context) error {
	listener, seat := os.NewFile(keeperListener, "listener"), os.NewFile(keeperSeat, "seat")
	if os.Getenv(keeperVariable) == startsKeeper {
		return r.keeperProcess(isKeeper, listener, seat).Start() //nolint:forbidigo // it outlives this process, and should
	}
	r.caller.Release()
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	useAllProcessors()
	k, ctx, err := jobstep.Keep(ctx, listener, seat)
	if err != nil {
		return err
	}
	binds := r.binds
	for _, dir := range jobstep.Directories(os.Getenv) {
		binds = append(binds, sandbox.Bind{Source: dir, Target: dir})
	}
	err = r.withRoot(ctx, func(_ *Session, root *Root) error {
		run, gpus, err := r.sandboxOf(ctx, root, binds)
		if err != nil {
			return err
		}
		r.caller.Leave()
		held, err := sandbox.Hold(ctx, run)
		if err != nil {
			return err
		}
		defer held.Close()
		if err := k.Welcome(stepRoot{root.Config.Config, held.UserNS(), gpus, r.self}, held.Spaces()); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
	if err != nil {
		r.caller.Leave()
		k.Fail(err) // the tasks print it
		<-ctx.Done()
	}
	return nil
}

// useAllProcessors undoes that the keeper is bound to the processors of the task that started it, as far as the job has others.
func useAllProcessors() {
	var all unix.CPUSet
	for i := range len(all) * 64 {
		all.Set(i)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range tasks {
		var id int
		if _, err := fmt.Sscan(strings.TrimSpace(t.Name()), &id); err == nil {
			_ = unix.SchedSetaffinity(id, &all)
		}
	}
}
