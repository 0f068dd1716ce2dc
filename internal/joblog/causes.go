package joblog

import "sconce.dev/sconce/internal/lazyregexp"

// cause makes a Cause. The first of its lines that fits a log's line counts, so what is more special stands above what is more general.
func cause(id string, role Role, form string, clues []string, title, remedy string) Cause {
	c := Cause{ID: id, Role: role, Title: title, Remedy: remedy, form: lazyregexp.New(form)}
	for _, clue := range clues {
		c.clue = append(c.clue, []byte(clue))
	}
	return c
}

// check names the rule of `sconce check` that finds the cause in an image, before any job.
func (c Cause) check(rule string) Cause {
	c.Tool, c.Rule = "check", rule
	return c
}

// lint names the rule of `sconce lint` that finds it in a job's files.
func (c Cause) lint(rule string) Cause {
	c.Tool, c.Rule = "lint", rule
	return c
}

// state names the states of Slurm that say the same as a line.
func (c Cause) state(names ...string) Cause {
	c.states = names
	return c
}

// unless says what makes a line mean something else.
func (c Cause) unless(text string) Cause {
	c.but = []byte(text)
	return c
}

// name is a name in a log: a file's, a library's, a node's.
const name = `[^\s'"<>|]+`

var causes = []Cause{
	// The GPU and its driver.
	cause("gpu-no-code", Failure, `no kernel image is available for execution|cudaErrorNoKernelImageForDevice|is not compatible with the current PyTorch installation`,
		[]string{"no kernel image is", "NoKernelImage", "current PyTorch"},
		"the image has no code for the GPU of the node",
		"build it for that GPU: set target.cluster, or target.gpu, in the recipe; what is compiled takes it from there").check("gpu-no-code"),
	cause("driver-too-old", Failure, `CUDA driver version is insufficient for CUDA runtime version|NVIDIA driver on your system is too old`,
		[]string{"driver version is insufficient", "driver on your system is too old"},
		"the node's driver is older than the image's CUDA needs",
		"use packages of an older CUDA, which `sconce check` names for the cluster's driver, or nodes with a newer driver").check("driver-too-old"),
	cause("ptx-too-new", Failure, `provided PTX was compiled with an unsupported toolchain|cudaErrorUnsupportedPtxVersion`,
		[]string{"unsupported toolchain", "UnsupportedPtxVersion"},
		"the node's driver is too old to compile this image's PTX",
		"build the code for the GPU itself, so that no PTX is needed, or use packages of an older CUDA").check("gpu-ptx-only"),
	cause("driver-mismatch", Failure, `unsupported display driver / cuda driver combination|forward compatibility was attempted on non supported HW`,
		[]string{"cuda driver combination", "forward compatibility was attempted"},
		"the container has parts of two drivers, or a compatibility package that hides the node's driver",
		"take the driver and cuda-compat out of the image and of LD_LIBRARY_PATH: the runtime brings the node's own").check("driver-compat-shadows"),
	cause("driver-absent", Failure, `libcuda\.so\.1: cannot open shared object file|Found no NVIDIA driver on your system`,
		[]string{"libcuda.so.1: cannot open", "no NVIDIA driver on your system"},
		"the container does not have the node's driver",
		"ask for GPUs in the job, and see that the runtime adds them: its GPU hook or option, NVIDIA_VISIBLE_DEVICES, `sconce run --gpu`").check("env-nvidia-devices"),
	cause("gpu-absent", Failure, `No CUDA GPUs are available|no CUDA-capable device is detected`,
		[]string{"No CUDA GPUs are available", "no CUDA-capable device"},
		"the process sees no GPU",
		"ask for GPUs in the job (--gpus-per-node), and see that CUDA_VISIBLE_DEVICES is neither empty nor set in the image").check("env-cuda-visible-devices"),
	cause("gpu-ordinal", Failure, `invalid device ordinal|Duplicate GPU detected\s*: rank \d+ and rank \d+`,
		[]string{"invalid device ordinal", "Duplicate GPU detected"},
		"a process asks for a GPU that it does not see, or two ask for the same one",
		"let each task see all GPUs of its node and take the one of its LOCAL_RANK, or see only its own and take number 0").lint("sbatch-gpu-ordinal"),
	cause("gpu-broken", Failure, `uncorrectable (NVLink|ECC) error|cudaErrorECCUncorrectable`,
		[]string{"uncorrectable ", "ECCUncorrectable"},
		"a GPU of a node reports an error of its hardware",
		"submit again with --exclude=NODE, and tell those who run the cluster which node it was"),

	// Memory.
	cause("gpu-memory", Failure, `CUDA out of memory\. Tried to allocate|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY`,
		[]string{"CUDA out of memory. Tried", "CUDA error: out of memory", "CUDA_ERROR_OUT_OF_MEMORY"},
		"the memory of a GPU was not enough",
		"take smaller batches, save activations by recomputing them, or shard the model over more GPUs; where much is reserved and not allocated, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps"),
	cause("memory", Failure, `Detected \d+ oom[_-]kill event|: tasks? [\d,-]+: Out Of Memory|Out of memory: Killed process \d+|oom-kill:constraint=|killed by signal: Killed\.`,
		[]string{"oom", ": Out Of Memory", "Out of memory: Killed", "killed by signal: Killed."},
		"a node had not enough memory for the job, and the kernel ended a process",
		"ask for more (--mem, or `mem` of the job), or need less: fewer workers that load data, fewer tasks on a node").state("OUT_OF_MEMORY"),
	cause("shared-memory", Failure, `killed by signal: Bus error\.|Error while creating shared memory segment /dev/shm|unable to (open|write to|mmap|resize|allocate) .{0,20}shared memory`,
		[]string{"Bus error.", "shared memory"},
		"the shared memory of the container, /dev/shm, is full or too small",
		"give the container the node's /dev/shm, as jobs that sconce writes do, or let fewer workers load data"),

	// What the image lacks.
	cause("library-missing", Failure, `(`+name+`\.so(?:\.[\w.]+)?): cannot open shared object file`,
		[]string{": cannot open shared object file"},
		"the library $1 is not in the image, or not where it is looked for",
		"add the package that brings $1 to [system] or [python] of the recipe; if it is there, LD_LIBRARY_PATH hides it").check("link-missing-library").unless("dlerror"),
	cause("library-version", Failure, "version [`']((?:GLIBC|GLIBCXX|CXXABI)_[\\w.]{1,30})' not found",
		[]string{"' not found"},
		"a library is older than a program needs: it lacks $1",
		"take program and base of the same age: a newer base, or a program that was built for an older one; what is mounted from the host must not be newer than the image").check("link-missing-version"),
	cause("symbol-missing", Failure, `(`+name+`\.so[\w.]*): undefined symbol: (\w+)`,
		[]string{": undefined symbol: "},
		"$1 was built for another version of a library: nobody has the symbol $2",
		"install it for the torch that the image has, or let sconce compile it ([python.compile]); a user's ~/.local may bring another one too").check("link-undefined-symbol"),
	cause("architecture", Failure, `(?i)\bexec format error\b`,
		[]string{"xec format error"},
		"a program is for another processor than the node's, or a script has no #! line",
		"build the image for the node's platform: --platform, or target.cluster in the recipe").lint("edf-image-arch"),
	cause("processor", Failure, `\bIllegal instruction\b`,
		[]string{"Illegal instruction"},
		"a program was compiled for a newer processor than the node's",
		"compile it for the processor of the nodes, and not with -march=native").check("link-cpu-level"),
	cause("module-missing", Failure, `ModuleNotFoundError: No module named '([\w.]+)'`,
		[]string{"ModuleNotFoundError: "},
		"Python finds no module $1",
		"add its package to packages under [python] of the recipe, or look for a PYTHONPATH that is missing or wrong"),
	cause("script-missing", Failure, `can't open file '(`+name+`)'`,
		[]string{"can't open file '"},
		"there is no file $1 in the container",
		"mount the directory that it is in (`mounts` of the job), and set `workdir` if the path is relative"),
	cause("program-missing", Failure, `error: execve\(\): (`+name+`): No such file or directory`,
		[]string{"error: execve(): "},
		"there is no program $1 where the task was started",
		"name a program of the image, and see that srun starts the container: without its option the task runs on the host"),
	cause("image-missing", Failure, `(?i)no such file or directory: '?(`+name+`\.(?:sqsh|squashfs|sif))\b|(`+name+`\.(?:sqsh|squashfs|sif))['"]?: no such file or directory`,
		[]string{".sqsh", ".squashfs", ".sif"},
		"the image $1$2 is not there, or not for the nodes",
		"write it to a file system that the nodes see (paths.images of the profile), or correct the path; `sconce submit` copies it there").lint("edf-image-missing"),

	// Slurm.
	cause("time-limit", Failure, `CANCELLED AT .{1,40} DUE TO TIME LIMIT`,
		[]string{"DUE TO TIME LIMIT"},
		"the job's time was over",
		"ask for more (--time, `time` of the job), or save before the end and go on in a next job: `warn-before` and `continue`").state("TIMEOUT"),
	cause("preempted", Failure, `CANCELLED AT .{1,40} DUE TO PREEMPTION`,
		[]string{"DUE TO PREEMPTION"},
		"the job had to make room for another one",
		"save now and then, and submit with --requeue, or where jobs are not preempted").state("PREEMPTED"),
	cause("node-failed", Failure, `DUE TO NODE FAILURE|error: Node failure on (?:`+name+`)`,
		[]string{"DUE TO NODE FAILURE", "error: Node failure on"},
		"a node failed",
		"submit again, from the last checkpoint; --exclude=NODE leaves out a node that fails again").state("NODE_FAIL", "BOOT_FAIL"),
	cause("cancelled", Consequence, `error: \*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT [\dT:-]+ \*\*\*`,
		[]string{" CANCELLED AT "},
		"the job or its step was cancelled: by somebody, or by the job itself after one of its tasks had failed",
		"look for what failed above; if nothing did, `sacct -j JOB -o user,state` says who cancelled it"),
	cause("step-too-large", Failure, `Unable to create step for job \d+: More processors requested than permitted`,
		[]string{"Unable to create step"},
		"srun asks for more processors than the job has",
		"give srun the job's --cpus-per-task, which it does not take from sbatch since Slurm 22.05: --cpus-per-task=$$SLURM_CPUS_PER_TASK").lint("sbatch-cpus-inherit"),

	// Files.
	cause("disk-full", Failure, `Disk quota exceeded|No space left on device`,
		[]string{"Disk quota exceeded", "No space left on device"},
		"no more can be written: a quota is used up, or a disk is full",
		"remove what is not needed (`quota`, `lfs quota`), and put caches and checkpoints on the scratch file system; a quota may be of files and not of bytes"),
	cause("cache-shared", Failure, `(?i)stale file handle.*(triton|inductor|torch_extensions|[./]cache)|(triton|inductor|torch_extensions|[./]cache).*stale file handle`,
		[]string{"tale file handle"},
		"several nodes write to one cache of compiled kernels on a shared file system",
		"put it on the node: TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR and TORCH_EXTENSIONS_DIR below /tmp, as jobs that sconce writes do").lint("sbatch-cache-shared"),

	// Processes that do not find each other.
	cause("port-in-use", Failure, `server socket has failed to (bind|listen)|port: \d+.*EADDRINUSE`,
		[]string{"server socket has failed", "EADDRINUSE"},
		"the port that the first process waits at, MASTER_PORT, is taken by another one",
		"give each job a port of its own, such as one made from SLURM_JOB_ID, and start the first process once").lint("sbatch-master-port-overridden"),
	cause("ranks-missing", Consequence, `Timed out after \d+ seconds waiting for clients`,
		[]string{"seconds waiting for clients"},
		"not all processes came to the meeting point: one had failed, or WORLD_SIZE is not how many there are",
		"look for a process that failed before; WORLD_SIZE is SLURM_NTASKS, MASTER_ADDR the first node").lint("sbatch-ranks-mismatch"),
	cause("collective-timeout", Consequence, `Watchdog caught collective operation timeout|Some NCCL operations have failed or timed out`,
		[]string{"collective operation timeout", "NCCL operations have failed"},
		"a process waited in vain for the others in a collective operation: one had failed, hung or was far behind",
		"look for another process that failed first; if there is none, the ranks do not call the same operations, or the network is broken (NCCL_DEBUG=INFO says what it uses)"),
	cause("task-failed", Consequence, `srun: error: (`+name+`): (tasks? [\d,-]+): (Exited with exit code \d+|Segmentation fault|Aborted|Killed|Bus error)`,
		[]string{"srun: error: "},
		"Slurm says of $1, $2: $3",
		"the first task that Slurm names ended first; what it printed is above"),

	// What makes a job slow.
	cause("network-sockets", Slowness, `\bvia NET/Socket/|(?i:NET/OFI selected provider is (?:tcp|sockets|udp)\b)`,
		[]string{"via NET/Socket/", "elected "},
		"NCCL talks between nodes by TCP, and not by the cluster's fast network",
		"see that the runtime's hook adds NCCL's plugin for the network, or put it into the image, and set no NCCL_NET, NCCL_IB_DISABLE or FI_PROVIDER").check("network-plugin-missing"),
}
