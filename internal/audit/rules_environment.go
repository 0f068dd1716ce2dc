package audit

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/facts"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/runtimefiles"
	"sconce.dev/sconce/internal/units"
)

// environmentRules are about the variables that every process of the image starts with.
var environmentRules = []Rule{
	{
		ID: "env-nvidia-devices", Severity: Warning,
		Title: "NVIDIA_VISIBLE_DEVICES or NVIDIA_DRIVER_CAPABILITIES missing",
		Why: "The hook that brings NVIDIA's driver into a container does nothing without NVIDIA_VISIBLE_DEVICES, and without " +
			"NVIDIA_DRIVER_CAPABILITIES it brings nvidia-smi but not libcuda: programs then say that there is no GPU.",
		Remedy: `set both in the recipe: [image] env = { NVIDIA_VISIBLE_DEVICES = "all", NVIDIA_DRIVER_CAPABILITIES = "compute,utility" }`,
		look:   lookNVIDIADevices,
	},
	{
		ID: "env-cuda-visible-devices", Severity: Warning,
		Title: "CUDA_VISIBLE_DEVICES set in the image",
		Why: "Slurm sets CUDA_VISIBLE_DEVICES for each task. Where the image's value wins, all tasks of a node meet on the same GPUs, " +
			"and with an empty value there is no GPU at all.",
		Remedy: "remove CUDA_VISIBLE_DEVICES from the image's environment, and set it for the job where it is needed",
		look:   lookCUDAVisibleDevices,
	},
	{
		ID: "env-not-set", Severity: Note,
		Title:  "Variables that the runtime will not set",
		Why:    "A program that relies on such a variable finds it missing, or with another value, inside the container.",
		Remedy: "rename the variable, or set it in the script that starts the program",
		look:   lookNotSet,
	},
	{
		ID: "env-multiline", Severity: Warning,
		Title: "Values that enroot changes or loses",
		Why: "enroot keeps the environment as lines of /etc/environment: it reads only the first line of a value, takes quotes off, and " +
			"puts the host's value where ${NAME} stands.",
		Remedy: "write the file for the cluster with sconce, whose /etc/rc sets such values: sconce copy IMAGE FILE.sqsh",
		look:   lookMultiline,
	},
	{
		ID: "env-not-evaluated", Severity: Warning,
		Title: "Commands and variables in values that nobody evaluates",
		Why: "An image's environment is not read by a shell: $(command) and ${NAME} stay in the value as they are, and whoever reads it " +
			"finds no such directory or number.",
		Remedy: "write the value out, or compute it in an entrypoint script",
		look:   lookNotEvaluated,
	},
	{
		ID: "env-search-path", Severity: Note,
		Title: "Search paths with empty, relative or missing directories",
		Why: "An empty or relative element is the directory that a program is started in: libraries and programs lying there by chance are " +
			"taken for the right ones. Directories that do not exist cost a look-up for every library, slow on a parallel file system, " +
			"and often are a mistake.",
		Remedy: "write absolute directories that exist, without a colon at either end",
		look:   lookSearchPath,
	},
	{
		ID: "env-python-path", Severity: Note,
		Title: "PYTHONPATH or PYTHONHOME set",
		Why: "Modules below PYTHONPATH come before those of any virtual environment, of whatever version of Python they are. PYTHONHOME " +
			"tells every Python where its own library is, a second Python's too.",
		Remedy: "install the packages into the virtual environment, or list the directory in a .pth file of the one Python that needs it; " +
			"PYTHONHOME is not needed by any installed Python",
		look: lookPythonPath,
	},
	{
		ID: "env-user-site", Severity: Note,
		Title: "Packages of the user's home come first",
		Why: "Apptainer shows the user's home directory. Python looks in ~/.local/lib before the image's packages, so that each user may run " +
			"other versions than the image has.",
		Remedy: `set it in the recipe: [image] env = { PYTHONNOUSERSITE = "1" }`,
		look:   lookUserSite,
	},
	{
		ID: "env-preload", Severity: Warning,
		Title:  "LD_PRELOAD names a library that is not in the image",
		Why:    "The loader prints an error in front of everything each program prints, and goes on without the library.",
		Remedy: "remove the library from LD_PRELOAD, or add it to the image",
		look:   lookPreload,
	},
	{
		ID: "env-debug", Severity: Note,
		Title:  "Settings for debugging left on",
		Why:    "They make programs slower or fill the log: with CUDA_LAUNCH_BLOCKING every kernel is waited for.",
		Remedy: "remove the setting from the image, and set it for the job that is being debugged",
		look:   lookDebug,
	},
	{
		ID: "env-build-flags", Severity: Note,
		Title:  "Settings for compiling without effect, or too large",
		Why:    "What is left of a build in the environment has an effect on everything that is compiled later in the container, or none at all.",
		Remedy: "remove the setting; what a build needs belongs in the command that builds",
		look:   lookBuildFlags,
	},
	{
		ID: "env-secrets", Severity: Warning,
		Title:  "Passwords and tokens in the environment",
		Why:    "The environment is part of the image's configuration: whoever may pull the image or read the file can read it.",
		Remedy: "revoke the secret, remove the variable, and hand it to the job when it runs",
		look:   lookEnvironmentSecrets,
	},
	{
		ID: "env-network-interface", Severity: Warning,
		Title: "Names of network interfaces in the image",
		Why: "Interfaces have other names on other machines, and sometimes on other nodes of the same. NCCL, Gloo and UCX stop when none " +
			"of the names exists, and use a slow network when the wrong one does.",
		Remedy: "remove the variable from the image; set it for the job, as the cluster's documentation says",
		look:   lookInterfaces,
	},
	{
		ID: "env-nccl-workaround", Severity: Warning,
		Title: "NCCL's transports switched off",
		Why: "Data between GPUs then goes through slower paths, often a tenth as fast. These settings are for finding out what is wrong on one " +
			"machine.",
		Remedy: "remove the setting from the image's environment",
		look:   lookNCCLWorkarounds,
	},
	{
		ID: "env-nccl-net", Severity: Warning,
		Title: "NCCL_NET names a network that is not there, or a slow one",
		Why: "With NCCL_NET, NCCL uses that network or stops: \"Failed to initialize any NET plugin\". Socket is TCP, which leaves a fast " +
			"fabric idle.",
		Remedy: "remove NCCL_NET from the image: NCCL takes a plugin that it finds, then InfiniBand, then TCP",
		look:   lookNCCLNet,
	},
	{
		ID: "env-nccl-plugin", Severity: Warning,
		Title:  "NCCL_NET_PLUGIN names a plugin that is not there, or hides the fabric's",
		Why:    "NCCL then looks for no other plugin, says so only with NCCL_DEBUG=INFO, and goes on over TCP where the fabric needs one.",
		Remedy: "remove NCCL_NET_PLUGIN from the image's environment, or set it to the plugin of the fabric",
		look:   lookNCCLPlugin,
	},
}

func lookNVIDIADevices(s *Subject, report func(Finding)) error {
	podman := s.Target.Runtime == cluster.Podman
	if !s.usesGPU() || !podman && !s.underEnroot() {
		return nil
	}
	severity := Warning
	if podman {
		severity = Note // devices are asked for with --device today, and only the old hook reads these
	}
	devices, set := s.Env("NVIDIA_VISIBLE_DEVICES")
	switch {
	case !set || devices == "":
		report(Finding{Severity: severity, Message: "the image has code for GPUs but does not set NVIDIA_VISIBLE_DEVICES: " +
			s.runtimeName() + " will show it none"})
	case devices == "void" || devices == "none":
		report(Finding{Severity: severity, Message: "NVIDIA_VISIBLE_DEVICES=" + devices + " asks for no GPU"})
	}
	text, _ := s.Env("NVIDIA_DRIVER_CAPABILITIES")
	given := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	if slices.Contains(given, "all") {
		return nil
	}
	var missing []string
	for _, want := range []string{"compute", "utility"} {
		if !slices.Contains(given, want) {
			missing = append(missing, want)
		}
	}
	switch {
	case len(given) == 0:
		report(Finding{Severity: severity, Message: "the image has code for GPUs but does not set NVIDIA_DRIVER_CAPABILITIES: " +
			"the driver's libcuda.so.1 may stay away"})
	case len(missing) > 0:
		report(Finding{Severity: severity, Message: fmt.Sprintf("NVIDIA_DRIVER_CAPABILITIES=%s lacks %s", quoteValue(text), strings.Join(missing, " and "))})
	}
	return nil
}

func lookCUDAVisibleDevices(s *Subject, report func(Finding)) error {
	value, set := s.Env("CUDA_VISIBLE_DEVICES")
	switch {
	case !set:
	case value == "" || value == "-1" || strings.EqualFold(value, "NoDevFiles"):
		severity := Warning
		if len(s.Target.GPU) > 0 && s.usesGPU() {
			severity = Error
		}
		report(Finding{Severity: severity, Message: "CUDA_VISIBLE_DEVICES=" + quoteValue(value) + " hides every GPU from CUDA"})
	default:
		report(Finding{Message: "the image sets CUDA_VISIBLE_DEVICES=" + quoteValue(value)})
	}
	return nil
}

func lookNotSet(s *Subject, report func(Finding)) error {
	apptainer := s.Target.Runtime == cluster.Apptainer
	if !apptainer && !s.underEnroot() {
		return nil
	}
	for _, w := range runtimefiles.EnvironmentWarnings(v1.ConfigFile{Config: s.Config}, apptainer, s.underEnroot()) {
		report(Finding{Message: w.Text, Remedy: w.Hint})
	}
	return nil
}

func lookMultiline(s *Subject, report func(Finding)) error {
	if !s.underEnroot() {
		return nil
	}
	names := runtimefiles.LostByEnroot(v1.ConfigFile{Config: s.Config})
	if len(names) == 0 {
		return nil
	}
	rc, err := s.readSmallFile("etc/rc", 1<<20)
	if err != nil || strings.HasPrefix(string(rc), "# sconce:") { // which sets them
		return err
	}
	var seen []string
	for _, name := range names {
		value, _ := s.Env(name)
		seen = append(seen, setting{name, value}.String())
	}
	report(Finding{
		Message: "enroot will not set " + units.List(names, enough) + " as the image has it, for its line breaks, quotes or ${NAME}", Seen: seen,
	})
	return nil
}

// evaluated are variables that a shell does evaluate, when it uses them.
var evaluated = lazyregexp.New(`^(PS[0-9]|PROMPT_COMMAND|BASH_ENV|ENV|LESSOPEN|LESSCLOSE|.*_OPTS|.*_PROMPT)$`)

// unevaluated is what only a shell would replace.
var unevaluated = lazyregexp.New("\\$\\([^)]|`[^`]+`|\\$\\{[A-Za-z_][A-Za-z0-9_]*(:?[-+=?][^}]*)?\\}")

// bareVariable stands in a search path without braces. Elsewhere a dollar may mean anything.
var bareVariable = lazyregexp.New(`(^|[:/])\$[A-Za-z_][A-Za-z0-9_]*($|[:/])`)

// loaderTokens are replaced by the dynamic loader (ld.so(8)).
var loaderTokens = lazyregexp.New(`\$(\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)\b)`)

func lookNotEvaluated(s *Subject, report func(Finding)) error {
	for _, v := range s.environment() {
		if evaluated.MatchString(v.name) {
			continue
		}
		value := v.value
		if strings.HasPrefix(v.name, "LD_") {
			value = loaderTokens.ReplaceAllString(value, "")
		}
		found := unevaluated.FindString(value)
		if found == "" && strings.HasSuffix(v.name, "PATH") {
			found = strings.Trim(bareVariable.FindString(value), ":/")
		}
		if found == "" {
			continue
		}
		if strings.HasPrefix(found, "$(") {
			found = "$(…)"
		}
		report(Finding{Message: fmt.Sprintf("%s has %s in its value, which is not evaluated", v.name, found), Seen: []string{v.String()}})
	}
	return nil
}

// searchPaths are variables with lists of directories.
var searchPaths = []string{"PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH", "PYTHONPATH"}

// notYetThere are directories that images name for a runtime to fill, and that need not be there before.
var notYetThere = []string{"/usr/local/nvidia", "/.singularity.d/libs", "/root", "/home"}

func lookSearchPath(s *Subject, report func(Finding)) error {
	for _, name := range searchPaths {
		value, _ := s.Env(name)
		dirs := elements(value)
		var loose, missing []string
		here := 0
		for _, d := range dirs {
			switch {
			case !strings.HasPrefix(d, "/"):
				if !strings.Contains(d, "$") { // which another rule is about
					loose = append(loose, quoteValue(d))
				}
			case s.isDir(d):
				here++
			case !slices.ContainsFunc(notYetThere, func(p string) bool { return isBelow(d, p) }):
				missing = append(missing, d)
			}
		}
		if name == "PATH" && here == 0 && len(dirs) > 0 {
			report(Finding{
				Severity: Warning, Message: "none of the directories of PATH exists in the image: no program is found by its name",
				Seen: []string{setting{name, value}.String()},
			})
			continue
		}
		if len(loose) > 0 {
			report(Finding{
				Message: fmt.Sprintf("%s has %s without an absolute path", name, units.Number(len(loose), "element")),
				Seen:    []string{setting{name, value}.String()},
			})
		}
		if len(missing) > 0 && !isDefaultPath(name, missing) {
			s.reportMissing(name, missing, report)
		}
	}
	return nil
}

// isDefaultPath reports whether what is missing belongs to the PATH that every image has, needed or not.
func isDefaultPath(name string, missing []string) bool {
	usual := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/games", "/usr/local/games"}
	return name == "PATH" && !slices.ContainsFunc(missing, func(d string) bool { return !slices.Contains(usual, strings.TrimRight(d, "/")) })
}

// otherMultiarch are directories of Debian for another processor than the platform's.
var otherMultiarch = map[string]string{"linux/amd64": "aarch64-linux-gnu", "linux/arm64": "x86_64-linux-gnu"}

func (s *Subject) reportMissing(name string, missing []string, report func(Finding)) {
	f := Finding{Message: fmt.Sprintf("%s names %s that the image does not have", name, units.Number(len(missing), "directory")), Seen: missing}
	if len(missing) > 1 {
		f.Message = fmt.Sprintf("%s names %d directories that the image does not have", name, len(missing))
	}
	other := otherMultiarch[s.Platform]
	if other != "" && slices.ContainsFunc(missing, func(d string) bool { return strings.Contains(d, other) }) {
		f.Severity = Warning
		f.Message = fmt.Sprintf("%s names directories for another processor, %s, in an image for %s", name, other, s.Platform)
	}
	report(f)
}

// isBelow reports whether a path is a directory or lies in it.
func isBelow(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func lookPythonPath(s *Subject, report func(Finding)) error {
	if home, set := s.Env("PYTHONHOME"); set && home != "" {
		prefix, _, _ := strings.Cut(home, ":")
		f := Finding{Severity: Warning, Message: "PYTHONHOME=" + quoteValue(home) + " is set for every Python of the image"}
		if strings.HasPrefix(prefix, "/") && !s.exists(path.Join(prefix, "lib")) && !s.exists(path.Join(prefix, "lib64")) {
			f.Severity = Error
			f.Message = "PYTHONHOME=" + quoteValue(home) + " has no Python library: no Python of the image starts"
		}
		report(f)
	}
	value, _ := s.Env("PYTHONPATH")
	var dirs []string
	for _, d := range elements(value) {
		if strings.HasPrefix(d, "/") && s.isDir(d) {
			dirs = append(dirs, path.Clean(d))
		}
	}
	if len(dirs) == 0 {
		return nil
	}
	f := Finding{Message: "PYTHONPATH=" + quoteValue(value) + " comes before the packages of every Python in the image"}
	for _, d := range dirs {
		f.Seen = append(f.Seen, s.shadowedBy(d)...)
	}
	if len(f.Seen) > 0 {
		f.Severity = Warning
		f.Message = fmt.Sprintf("PYTHONPATH puts %s in front of the same in a virtual environment", units.Number(len(f.Seen), "package"))
	}
	report(f)
	return nil
}

// shadowedBy lists the packages that a directory of PYTHONPATH has and a site directory elsewhere has too.
func (s *Subject) shadowedBy(dir string) []string {
	mine := map[string]string{}
	for _, p := range s.Pythons {
		if "/"+p.Dir == dir {
			for _, d := range p.Distributions {
				mine[d.Name] = d.Version
			}
		}
	}
	var seen []string
	for _, p := range s.Pythons {
		if "/"+p.Dir == dir {
			continue
		}
		for _, d := range p.Distributions {
			if v, ok := mine[d.Name]; ok {
				seen = append(seen, fmt.Sprintf("%s %s of %s hides %s of /%s", d.Name, v, dir, d.Version, p.Dir))
			}
		}
	}
	return seen
}

func lookUserSite(s *Subject, report func(Finding)) error {
	value, _ := s.Env("PYTHONNOUSERSITE")
	if s.Target.Runtime != cluster.Apptainer || value != "" {
		return nil
	}
	// Debian's own Python serves the system; what matters are those with what users would install too.
	const enough = 5
	for _, p := range s.Pythons {
		if (p.System || p.SystemSite) && len(p.Distributions) >= enough && p.Version != "" {
			report(Finding{
				Message: fmt.Sprintf("~/.local/lib/python%s of the user comes before the %d packages of /%s", p.Version, len(p.Distributions), p.Dir),
				Path:    p.Dir,
			})
		}
	}
	return nil
}

func lookPreload(s *Subject, report func(Finding)) error {
	value, _ := s.Env("LD_PRELOAD")
	var missing []string
	for _, name := range strings.FieldsFunc(value, func(r rune) bool { return r == ':' || r == ' ' }) {
		switch {
		case strings.Contains(name, "$"), s.injects(path.Base(name)):
		case strings.HasPrefix(name, "/") && s.exists(name):
		case !strings.Contains(name, "/") && slices.ContainsFunc(s.Objects, func(o facts.Object) bool {
			return path.Base(o.Path) == name || o.Soname == name
		}):
		default:
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		report(Finding{Message: "LD_PRELOAD names " + units.List(missing, enough) + ", which the image does not have", Seen: []string{setting{"LD_PRELOAD", value}.String()}})
	}
	return nil
}

// debugSettings are variables by what their values are when they are for debugging.
var debugSettings = map[string]func(value string) bool{
	"CUDA_LAUNCH_BLOCKING":    isOn,
	"HIP_LAUNCH_BLOCKING":     isOn,
	"AMD_SERIALIZE_KERNEL":    func(v string) bool { return v != "" && v != "0" },
	"NCCL_DEBUG":              oneOf("TRACE"),
	"TORCH_DISTRIBUTED_DEBUG": oneOf("DETAIL"),
	"TORCH_CPP_LOG_LEVEL":     oneOf("INFO"),
	"FI_LOG_LEVEL":            oneOf("DEBUG", "TRACE"),
	"UCX_LOG_LEVEL":           oneOf("DEBUG", "TRACE", "DATA", "FUNC", "POLL"),
	"OFI_NCCL_TRACE":          isOn,
	"PYTHONMALLOC":            oneOf("DEBUG", "MALLOC_DEBUG", "PYMALLOC_DEBUG"),
	"PYTHONDEVMODE":           isOn,
	"MALLOC_CHECK_":           func(v string) bool { return v != "" && v != "0" },
	"LD_DEBUG":                func(v string) bool { return v != "" },
	"CUDA_DISABLE_PTX_JIT":    isOn,
	"CUDA_FORCE_PTX_JIT":      isOn,
	"TORCHDYNAMO_DISABLE":     isOn,
	"TORCH_COMPILE_DEBUG":     isOn,
}

func oneOf(values ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(values, strings.ToUpper(v)) }
}

func lookDebug(s *Subject, report func(Finding)) error {
	for _, v := range s.environment() {
		if is, ok := debugSettings[v.name]; ok && is(v.value) {
			report(Finding{Message: "the image sets " + v.String()})
		}
	}
	return nil
}

// deadFlags are of PyTorch's build, and left it together with Caffe2.
var deadFlags = []string{"BUILD_CAFFE2", "BUILD_CAFFE2_OPS", "BUILD_CAFFE2_MOBILE", "USE_OPENCV", "USE_LEVELDB", "USE_LMDB", "USE_FFMPEG"}

// maxJobs is the number of compilers at once beyond which the memory of ordinary nodes does not do: an nvcc of a large
// extension needs some 5 GB for each of its threads.
const maxJobs = 64

func lookBuildFlags(s *Subject, report func(Finding)) error {
	for _, v := range s.environment() {
		switch {
		case slices.Contains(deadFlags, v.name):
			report(Finding{Message: "the image sets " + v.String() + ", which the build of PyTorch no longer knows"})
		case v.name == "MAX_JOBS":
			n, err := strconv.Atoi(v.value)
			if err != nil || n < 1 {
				report(Finding{Message: "the image sets " + v.String() + ", which is no number of jobs"})
			} else if n > maxJobs {
				report(Finding{Message: fmt.Sprintf("the image sets MAX_JOBS=%d: as many compilers at once may need %d GB", n, 5*n)})
			}
		}
	}
	return nil
}

// secretName is what variables with secrets are called.
var secretName = lazyregexp.New(`(?i)(^|_)(TOKEN|PASSWORD|PASSWD|SECRET|SECRET_KEY|API_KEY|APIKEY|ACCESS_KEY|PRIVATE_KEY)$`)

// credentials stand in a URL, before the host's name.
var credentials = lazyregexp.New(`[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s:@$]+@`)

func lookEnvironmentSecrets(s *Subject, report func(Finding)) error {
	const shortest = 8 // bytes; no token is shorter, but many switches are
	for _, v := range s.environment() {
		switch {
		case secretName.MatchString(v.name) && len(v.value) >= shortest && !strings.ContainsAny(v.value, "/$ "):
			report(Finding{Message: fmt.Sprintf("%s is in the image's environment, %d characters", v.name, len(v.value))})
		case credentials.MatchString(v.value):
			report(Finding{Message: v.name + " has a URL with a user's name and password"})
		}
	}
	return nil
}

// interfaceSettings name interfaces or adapters of a machine.
var interfaceSettings = []string{
	"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_OOB_NET_IFNAME", "UCX_NET_DEVICES",
	"NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "NVSHMEM_HCA_LIST", "OMPI_MCA_btl_tcp_if_include", "FI_CXI_DEVICE_NAME", "FI_TCP_IFACE",
}

func lookInterfaces(s *Subject, report func(Finding)) error {
	for _, name := range interfaceSettings {
		// What begins with ^ only leaves some out, which is right on any machine.
		if value, _ := s.Env(name); value != "" && value != "all" && !strings.HasPrefix(value, "^") {
			report(Finding{Message: "the image sets " + setting{name, value}.String()})
		}
	}
	return nil
}

func lookNCCLWorkarounds(s *Subject, report func(Finding)) error {
	for _, name := range []string{"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"} {
		if value, _ := s.Env(name); isOn(value) {
			report(Finding{Message: "the image sets " + name + "=" + value})
		}
	}
	value, _ := s.Env("NCCL_IB_DISABLE")
	if isOn(value) && (s.Target.Fabric == cluster.InfiniBand || s.Target.Fabric == cluster.RoCE) {
		report(Finding{Message: fmt.Sprintf("the image sets NCCL_IB_DISABLE=%s: NCCL will use TCP although the nodes have %s", value, fabricName(s.Target.Fabric))})
	}
	return nil
}
