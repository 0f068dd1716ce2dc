package job

import (
	"errors"
	"fmt"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"sconce.dev/sconce/internal/fault"
)

// command is what a process of a job runs, as lines of a shell.
type command struct {
	text    string
	rest    string // what follows its program
	program string
	simple  bool // one program with arguments: it may take the shell's place, and further arguments
}

// builtins are commands that no other process can be.
var builtins = map[string]bool{
	"cd": true, "exec": true, "export": true, "source": true, ".": true, "eval": true, "set": true, "unset": true, "trap": true, "ulimit": true,
	"exit": true, "read": true, "test": true, "[": true, "wait": true, ":": true,
}

// parseCommand reads a command of a recipe.
func parseCommand(text string) (command, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return command{}, fault.Hint(errors.New("the job has no command"), `add command = "python train.py" to it`)
	}
	f, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return command{}, fmt.Errorf("command: this is no command of the shell: %w", err)
	}
	c := command{text: text}
	if len(f.Stmts) != 1 || len(f.Last) > 0 || len(f.Stmts[0].Comments) > 0 {
		return c, nil
	}
	s := f.Stmts[0]
	call, ok := s.Cmd.(*syntax.CallExpr)
	if !ok || len(s.Redirs) > 0 || s.Background || s.Negated || len(call.Assigns) > 0 || len(call.Args) == 0 {
		return c, nil
	}
	c.program = call.Args[0].Lit()
	c.simple = !builtins[c.program]
	c.rest = strings.TrimSpace(text[call.Args[0].End().Offset():])
	return c, nil
}

// lines are what runs in the container, in order: rank variables, what is done about signals, the virtual environment, the command.
func (s *settled) lines() ([]string, error) {
	c, err := parseCommand(s.Job.Command)
	if err != nil {
		return nil, fault.Usage(err)
	}
	var lines []string
	if s.launcher == Srun {
		lines = append(lines, "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS")
	}
	if s.warn > 0 {
		lines = append(lines, `trap "" USR1 # a program that has no handler of its own is not ended by the warning`)
	}
	if s.runtime == uenv && s.workdir != here && s.workdir != "" {
		lines = append(lines, "cd "+word(s.workdir))
	}
	if s.venv.dir != "" {
		lines = append(lines, ". "+word(s.venv.dir+"/bin/activate"))
	}
	switch {
	case s.launcher == Torchrun:
		launch, err := s.torchrun(c)
		return append(lines, launch...), err
	case c.simple:
		return append(lines, "exec "+c.text+` "$@"`), nil
	}
	return append(lines, strings.Split(c.text, "\n")...), nil
}

// torchrun starts the processes of a node. It is called as a module: the program torchrun of an image is for the image's own Python, and
// leaves a virtual environment out. The rendezvous is static, since the hosts are known, and needs no name to be looked up by c10d.
func (s *settled) torchrun(c command) ([]string, error) {
	if !c.simple || c.program != "python" && c.program != "python3" || c.rest == "" || strings.Contains(c.text, "\n") {
		return nil, fault.Usage(fault.Hint(fmt.Errorf("with launcher = %q the command must be Python's alone, not %q", Torchrun, c.text),
			`write command = "python train.py --epochs 3", or launcher = "srun"`))
	}
	return []string{
		"exec " + c.program + " -m torch.distributed.run \\",
		fmt.Sprintf(`    --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --nproc-per-node=%d \`, s.ranks),
		`    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \`,
		`    ` + c.rest + ` "$@"`,
	}, nil
}
