package lock

import (
	"cmp"
	"fmt"
	"slices"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/wheelbuild"
	"sconce.dev/sconce/internal/wheelbuild/catalog"
)

// usesCUDA reports whether a package has code for GPUs that goes with torch's.
func usesCUDA(own recipe.Compile, facts catalog.Package) bool {
	if own.CUDA != nil {
		return *own.CUDA
	}
	return facts.CUDA
}

// withToolkit adds the CUDA compiler to what a build asks for, of the version that torch was built with, where there is none:
// neither in the image nor among what is asked for. Package indexes have those of CUDA 13 and newer.
func (k *locker) withToolkit(name string, asked []string, image map[string]string) ([]string, error) {
	version, env := cudaOf(image), k.recipe.Python.Compile[name].Env
	if version == "" || env["CUDA_HOME"]+env["CUDA_PATH"] != "" || image[wheelbuild.CUDACompiler] != "" ||
		slices.ContainsFunc(asked, isFor(wheelbuild.CUDACompiler)) {
		return asked, nil
	}
	tree, err := k.tree()
	if err != nil {
		return nil, err
	}
	if wheelbuild.HasToolkit(tree, k.image.Config.Config.Env, version) {
		return asked, nil
	}
	wheels := wheelbuild.ToolkitWheels(version)
	if wheels == nil && len(k.recipe.Target.GPU) > 0 {
		return nil, fault.Hint(fmt.Errorf("%s is compiled for GPUs with the CUDA of torch, %s, and the base has no nvcc of that", name, version),
			fmt.Sprintf("take a base that has it, compile in one (`base` under [python.compile.%s]), or take a torch for CUDA 13, whose compiler package indexes have", name))
	}
	return slices.Concat(asked, wheels), nil
}

// cudaOf returns the version of the CUDA that a torch from packages brings, "" for none.
func cudaOf(image map[string]string) string {
	return cmp.Or(image[wheelbuild.CUDARuntime], image[wheelbuild.CUDARuntime+"-cu12"])
}

// withCompilerParts wants the packages that nvcc consists of in the version of nvcc: they ask for each other in any version, and
// parts of two versions do not work together.
func withCompilerParts(asked []string) []string {
	i := slices.IndexFunc(asked, isFor(wheelbuild.CUDACompiler))
	if i < 0 {
		return asked
	}
	compiler, err := python.ParseRequirement(asked[i])
	if err != nil || compiler.URL != "" {
		return asked
	}
	for _, part := range wheelbuild.CUDACompilerParts {
		if !slices.ContainsFunc(asked, isFor(part)) {
			asked = append(asked, part+compiler.Specifiers.String())
		}
	}
	return asked
}

// isFor returns what reports whether a requirement is for the package called name.
func isFor(name string) func(requirement string) bool {
	return func(requirement string) bool {
		r, err := python.ParseRequirement(requirement)
		return err == nil && python.NormalizeName(r.Name) == name
	}
}
