package recipe

import (
	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/job"
)

// jobKeys are those of jobs on a cluster, and tests, which are jobs too.
var jobKeys = map[string]key{
	"job": {
		Doc:      "What the image is run as on a cluster, by a name: `sconce export sbatch --job NAME` writes the files.",
		NameForm: formJob, NameFormName: "letters, digits, dots, underscores and dashes, the first a letter or digit",
	},
	"job.NAME": {Doc: "The job of this name. What it leaves out is the cluster's, or Slurm's own."},
	"job.NAME.nodes": {
		Doc: "How many nodes it runs on.", Default: "1", Example: `4`, Min: 1, Max: 100000,
	},
	"job.NAME.time": {
		Doc: "How long it may run.", Default: "Slurm's own", Example: `"12h"`, Form: formTime, FormName: `a time such as "90m", "12h" or "1-12:00:00"`,
	},
	"job.NAME.launcher": {
		Doc:     "Who starts the processes: `srun` one for each GPU, with `RANK`, `LOCAL_RANK` and `WORLD_SIZE`; `torchrun` one launcher on each node, which starts those of its GPUs.",
		Default: job.Srun, Example: `"torchrun"`, Enum: job.Launchers,
	},
	"job.NAME.command": {
		Doc:     "What every process runs, as the shell reads it. Arguments after the script of the job go behind a single command. With `launcher = \"torchrun\"` it begins with `python`.",
		Example: `"python train.py --epochs 3"`, Form: formScript, FormName: "a command", Lines: true,
	},
	"job.NAME.workdir": {
		Doc:     "The directory that the command starts in.",
		Default: "the image's, where it has one, else the one that the job is submitted from", Example: `"${HOME}/my-app"`, Form: formJobPath, FormName: formJobPathName,
	},
	"job.NAME.mounts": {
		Doc:     "Files and directories of the host that the container sees, each `SRC[:DST[:ro]]`, besides those of the cluster's profile and the directory that the job is submitted from. Pyxis and Apptainer mount no path with a comma.",
		Example: `["${HOME}/my-app", "/datasets:/data:ro"]`, Form: formAny, FormName: "mounts",
	},
	"job.NAME.env": {
		Doc: "Environment variables, besides those of the cluster's profile. `${NAME}` is a variable of the host. Those by which programs of the host choose files and programs, such as `PATH`, `LD_PRELOAD` and `SLURM_*`, are refused.", Example: `{ NCCL_DEBUG = "INFO" }`,
		NameForm: formEnvName, NameFormName: "a letter or underscore, then letters, digits and underscores",
	},
	"job.NAME.venv": {
		Doc:     "A virtual environment on top of the image's Python: its directory, or a squashfs file `FILE.sqsh[:DIR]` that is mounted at `DIR`, by default `/venv`. The command runs in it.",
		Example: `"${SCRATCH}/venvs/exp.sqsh"`, Form: formJobPath, FormName: formJobPathName,
	},
	"job.NAME.uenv": {
		Doc: "The uenv that the job runs in with the runtime `uenv`, as `--uenv` takes it, instead of the image's own Python environment.", Example: `"pytorch/v2.6.0:v1"`, Form: formOneWord, FormName: "one word",
	},
	"job.NAME.view": {
		Doc: "The view of the uenv; of one that sconce writes, `default` without this.", Example: `"default"`, Form: formOneWord, FormName: "one word",
	},
	"job.NAME.checkpoint": {Doc: "What saving the state of a training costs."},
	"job.NAME.checkpoint.takes": {
		Doc: "How long it takes. With the cluster's `reliability.mtbf-node`, the script says how often to save.", Example: `"90s"`, Form: formTime, FormName: `a time such as "90s"`,
	},
	"job.NAME.continue": {
		Doc:     "What follows when the time is up and the command, warned, has ended well: with `chain` a new job is submitted, with `requeue` the same one is queued again, which pyxis does not bear.",
		Default: job.No, Example: `"chain"`, Enum: job.Continues,
	},
	"job.NAME.warn-before": {
		Doc: "How long before its end the command gets SIGUSR1, to save.", Default: "no warning", Example: `"5m"`, Form: formTime, FormName: `a time such as "5m"`,
	},
	"job.NAME.array": {
		Doc: "Run it once for each of these numbers, as `sbatch --array` takes them.", Example: `"0-9%2"`, Form: formArray, FormName: `numbers and ranges, such as "0-9%2"`,
	},
	"job.NAME.dependency": {
		Doc: "When it may start, as `sbatch --dependency` takes it.", Example: `"singleton"`, Form: formOneWord, FormName: "one word",
	},
	"job.NAME.runtime": {
		Doc: "What starts it.", Default: "the first of the cluster's `runtimes`", Example: `"apptainer"`, Enum: cluster.Starters,
	},
	"job.NAME.tasks-per-node": {
		Doc: "How many processes a node has.", Default: "one for each GPU, else 1", Example: `4`, Min: 1, Max: 4096,
	},
	"job.NAME.cpus-per-task": {
		Doc: "How many CPUs each task of `srun` has.", Default: "its share of the node", Example: `72`, Min: 1, Max: 4096,
	},
	"job.NAME.gpus-per-node": {
		Doc: "How many GPUs of each node it has.", Default: "all", Example: `4`, Min: 0, Max: 64,
	},
	"job.NAME.account":     {Doc: "The account that it is charged to.", Default: "the profile's", Example: `"g123"`, Form: formOneWord, FormName: "one word"},
	"job.NAME.partition":   {Doc: "The partition that it goes to.", Default: "the profile's", Example: `"debug"`, Form: formOneWord, FormName: "one word"},
	"job.NAME.qos":         {Doc: "The quality of service that it asks for.", Default: "the profile's", Example: `"regular"`, Form: formOneWord, FormName: "one word"},
	"job.NAME.constraint":  {Doc: "Features that its nodes must have.", Default: "the profile's", Example: `"gpu&hbm80g"`, Form: formOneWord, FormName: "one word"},
	"job.NAME.reservation": {Doc: "The reservation that it runs in.", Example: `"course"`, Form: formOneWord, FormName: "one word"},
	"job.NAME.logs": {
		Doc: "The directory of its log, which starts where the job is submitted. `sconce submit` expands variables in it; sbatch itself expands none.", Default: "that directory itself", Example: `"logs"`, Form: formOneWord, FormName: "a path without blanks",
	},
	"job.NAME.options": {
		Doc: "Further options of `sbatch`, each an element of its own. They ask for resources, or say when the job starts; others are for [profiles of your own](clusters.md#whose-profile-counts).", Example: `["--exclusive"]`, Form: formOption, FormName: `options, such as "--exclusive"`,
	},

	"test": {Doc: "Tests of the image, which `sconce test` runs on a cluster or here. Nothing of them is in the image or in its key."},
	"test.name": {
		Doc: "What it is called.", Default: "what it uses", Example: `"bench"`, Form: formJob, FormName: "letters, digits, dots, underscores and dashes, the first a letter or digit",
	},
	"test.use": {
		Doc: "A test of the kit, which the image's Python runs: `env` (all ranks see the same versions, and their GPUs), `import`, `gpu` (it computes, and how fast), " +
			"`all-reduce`, `all-to-all` and `sendrecv` (through torch.distributed, with NCCL or, without GPUs, Gloo) and `mpi-pingpong` (mpi4py's).",
		Example: `"all-reduce"`, Enum: imagetest.Kit,
	},
	"test.run": {
		Doc:     "A command of one's own, instead of `use`, as the shell reads it. Every task runs it, with `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`.",
		Example: `"python tests/bench.py"`, Form: formScript, FormName: "a command", Lines: true,
	},
	"test.files": {
		Doc:     "Files and directories beside the recipe that the command finds under the same names where it starts. They are copied beside it, and never become part of the image.",
		Example: `["tests"]`, Form: formAny, FormName: "paths",
	},
	"test.modules": {
		Doc: "What `use = \"import\"` imports.", Default: `["torch"]`, Example: `["torch", "flash_attn"]`, Form: formModule, FormName: `names of modules, such as "torch" or "flash_attn"`,
	},
	"test.nodes":          {Doc: "How many nodes it runs on.", Default: "1", Example: `2`, Min: 1, Max: 100000},
	"test.tasks-per-node": {Doc: "How many tasks run on a node.", Default: "one for each GPU, else 1", Example: `4`, Min: 1, Max: 1024},
	"test.clusters": {
		Doc: "The clusters it runs on, by the names of their profiles.", Default: "all", Example: `["clariden"]`, Form: formOneWord, FormName: "names of clusters",
	},
	"test.time": {
		Doc: "How long one run may take. One that takes longer has failed.", Default: "10m", Example: `"5m"`, Form: formTime, FormName: `a time such as "90s", "10m" or "00:10:00"`,
	},
	"test.env": {
		Doc: "Environment variables, besides those of the cluster's profile. Those of the host's programs are refused, as in `[job.NAME]`.", Example: `{ NCCL_DEBUG = "INFO" }`,
		NameForm: formEnvName, NameFormName: "a letter or underscore, then letters, digits and underscores", Form: formAny, FormName: "a text",
	},
	"test.expect": {
		Doc: "What numbers must be that it prints, by their names: at least or at most another (`\">= 135 GB/s\"`), around it (`\"24 GB/s ± 5%\"`), or a part of the " +
			"cluster's reference (`\">= 90%\"`). GB are 10^9 bytes, GiB 2^30.",
		Example: `{ busbw = ">= 90%" }`, NameForm: formMeasurement, NameFormName: `the name of a measurement, such as "busbw" or "bandwidth@4194304"`,
		Form: formAny, FormName: `what a number is expected to be, such as ">= 135 GB/s"`,
	},
	"test.log": {
		Doc: "Regular expressions that must match lines of what it prints.", Example: `["Selected provider is cxi"]`, Form: formAny, FormName: "regular expressions",
	},
	"test.not-log": {
		Doc: "Regular expressions that must match nothing of it.", Example: `["NET/Socket"]`, Form: formAny, FormName: "regular expressions",
	},
	"test.reader": {
		Doc: "How its numbers are read: `lines` are `NAME = VALUE UNIT` or JSON objects with name, value and unit, `json` is the file of nccl-tests, " +
			"`table` what nccl-tests, OSU's benchmarks and mpi4py print.",
		Default: imagetest.Lines, Example: `"table"`, Enum: imagetest.Readers,
	},
	"test.repeat": {Doc: "How often it runs in a job. The median of each number counts, and every run must be good otherwise.", Default: "1", Example: `3`, Min: 1, Max: 99},
	"test.skip":   {Doc: "Why it does not run for now. It is reported as left out, which is not passed.", Example: `"waits for driver 570"`, Form: formImage, FormName: "a reason in a line"},
}
