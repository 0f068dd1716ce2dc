package audit

// pythonRules are about what Python imports: whether the packages fit one another, the interpreter and the GPU.
var pythonRules = []Rule{
	{
		ID: "python-requirement-unmet", Severity: Warning,
		Title:  "Python packages whose requirements are not met",
		Why:    "A package was written and tested for other versions of what it imports. It may fail at the import, or later and in ways that are hard to trace.",
		Remedy: "install the packages in one step, so that the resolver sees all requirements: list them in [python] packages of the recipe",
		look:   requirementUnmet,
	},
	{
		ID: "python-abi", Severity: Error,
		Title:  "Compiled Python modules for another Python or another machine",
		Why:    "Python looks for a module under the file names of its own version and machine, so it does not see these: ModuleNotFoundError.",
		Remedy: "install the package with the Python that is to import it, for example: /path/to/python -m pip install --force-reinstall NAME",
		look:   foreignModules,
	},
	{
		ID: "python-shadowed", Severity: Warning,
		Title:  "Python packages hidden by another version",
		Why:    "The directory that comes first on the path wins for every process. Modules compiled against the hidden version then meet the other one, and a fix to the hidden one has no effect.",
		Remedy: "keep one version: protect the base's packages ([python] protect in the recipe), or take the one that is not wanted out of the image",
		look:   shadowedPackages,
	},
	{
		ID: "python-no-bytecode", Severity: Warning,
		Title:  "Python modules without byte code",
		Why:    "A container's file system is read-only on most clusters, so that each process of each job compiles these modules again: imports take many times as long, and longer still from a shared file system. Tests that packages bring do not count.",
		Remedy: "set [python] bytecode = true in the recipe, give uv --compile-bytecode, or run python -m compileall when the image is built",
		look:   missingBytecode,
	},
	{
		ID: "python-torch-cpu", Severity: Error,
		Title:  "PyTorch built without CUDA, for a target with NVIDIA GPUs",
		Why:    "torch.cuda.is_available() is False with this build, on every node. Programs stop there or, worse, run on the processor alone.",
		Remedy: `take a CUDA build: [python] torch-backend = "cu128" in the recipe, or uv pip install --torch-backend=cu128 torch`,
		look:   torchWithoutCUDA,
	},
	{
		ID: "python-torch-pair", Severity: Warning,
		Title:  "Packages built against another PyTorch",
		Why:    "Their compiled code calls into PyTorch's libraries, whose interface changes with every release: undefined symbols, operators that are not registered, or crashes.",
		Remedy: "install torch and what is compiled against it in one step, all for one release and one CUDA",
		look:   torchPairs,
	},
	{
		ID: "cuda-toolkit-differs", Severity: Warning,
		Title:  "CUDA toolkit of another version than PyTorch's",
		Why:    "PyTorch refuses to compile extensions with a toolkit of another major version, as DeepSpeed and others do at run time: \"The detected CUDA version mismatches the version that was used to compile PyTorch\".",
		Remedy: "take a base image with the CUDA version of the PyTorch build, or set [python] torch-backend in the recipe to the base's",
		look:   toolkitDiffers,
	},
	{
		ID: "duplicate-nccl", Severity: Warning,
		Title:  "Several versions of NCCL that meet in one process",
		Why:    "The first one loaded serves all, whoever asks next. Which one that is depends on the order of imports, and ranks that disagree do not connect.",
		Remedy: "keep one: uninstall the copy that is not wanted, and take its directory out of LD_LIBRARY_PATH",
		look:   duplicateNCCL,
	},
	{
		ID: "duplicate-cudnn", Severity: Warning,
		Title:  "Several versions of cuDNN that meet in one process",
		Why:    "cuDNN is several libraries that must be of one version. Mixed, it stops with CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH.",
		Remedy: "keep one: uninstall the copy that is not wanted, and take its directory out of LD_LIBRARY_PATH",
		look:   duplicateCuDNN,
	},
	{
		ID: "duplicate-openmp", Severity: Note,
		Title:  "OpenMP runtimes of several families",
		Why:    "Each runtime starts its own threads and does not know of the others': more threads than processors, and Intel's stops the program when it finds that it was loaded twice.",
		Remedy: "set OMP_NUM_THREADS, import the package that matters most first, and take packages from one source, all wheels or all conda",
		look:   duplicateOpenMP,
	},
}
