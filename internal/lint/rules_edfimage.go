package lint

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/edf"
	"sconce.dev/sconce/internal/lazyregexp"
)

// edfImageRules are about an environment's image, and about hooks that have to fit it.
var edfImageRules = []Rule{
	{
		Rule: audit.Rule{
			ID: "edf-image-missing", Severity: audit.Error,
			Title:  "Environments without an image, or with one that is not there",
			Why:    "The job does not start, or starts outside of any container.",
			Remedy: "write image = with a path that begins with / or ./, or with the name of an image in a registry",
		},
		edf: lookImageMissing,
	},
	{
		Rule: audit.Rule{
			ID: "edf-image-mutable", Severity: audit.Warning,
			Title:  "Images that may be others tomorrow",
			Why:    "Without a tag, or with the tag latest, the name stands for whatever was pushed last: two runs of a job may use two images.",
			Remedy: "name a version, a digest, or a .sqsh file",
		},
		edf: lookImageMutable,
	},
	{
		Rule: audit.Rule{
			ID: "edf-image-arch", Severity: audit.Error,
			Title:  "Images for another processor",
			Why:    `No program of the image starts there: "Exec format error".`,
			Remedy: "take the image for the cluster's processor",
		},
		edf: lookImageArch,
	},
	{
		Rule: audit.Rule{
			ID: "edf-variant-cuda", Severity: audit.Error,
			Title: "NCCL plugins for another CUDA",
			Why: "The plugin of aws-ofi-nccl is linked with the CUDA that its variant names. In an image with another it does not load, and NCCL " +
				"falls back to TCP, many times slower.",
			Remedy: `write com.hooks.aws_ofi_nccl.variant = "cuda-dl", which takes the image's CUDA, or the variant of that CUDA`,
		},
		edf: lookVariant,
	},
	{
		Rule: audit.Rule{
			ID: "edf-cudart-link", Severity: audit.Error,
			Title:  "Images without libcudart.so for the variant cuda-dl",
			Why:    `The plugin looks for libcudart.so without a version; where the image has it with one only, NCCL says "libcudart.so could not be found" and uses TCP.`,
			Remedy: "add a link libcudart.so beside libcudart.so.12 in the image, or name the variant of its CUDA",
		},
		edf: lookCudartLink,
	},
	{
		Rule: audit.Rule{
			ID: "edf-hook-env-override", Severity: audit.Warning,
			Title: "Variables that the NCCL hook sets itself",
			Why: "The hook sets NCCL's and libfabric's variables to what fits the network of today. Values that were copied by hand go before " +
				"them, and stay when the network's software changes.",
			Remedy: "take the variable out, and leave it to com.hooks.aws_ofi_nccl",
		},
		edf: lookHookEnv,
	},
	{
		Rule: audit.Rule{
			ID: "edf-ssh-key", Severity: audit.Error,
			Title:  "The ssh hook without a key",
			Why:    "No login into the container is possible: the hook takes the public key from the file that it is told of.",
			Remedy: `write com.hooks.ssh.authorize_ssh_key = "/absolute/path/of/key.pub"`,
		},
		edf: lookSSHKey,
	},
	{
		Rule: audit.Rule{
			ID: "edf-ssh-home", Severity: audit.Warning,
			Title:  "The ssh hook with the home mounted",
			Why:    "The hook writes .ssh into the container's home. Where the host's home is mounted over it, it changes the files there, or fails.",
			Remedy: "mount the directories below the home that the job needs",
		},
		edf: lookSSHHome,
	},
	{
		Rule: audit.Rule{
			ID: "edf-hook-writable", Severity: audit.Error,
			Title:  "Hooks that need a writable container",
			Why:    "The hooks for ssh and MPS write files into the container's root, and fail where that is read-only.",
			Remedy: "write writable = true, or leave the hook out",
		},
		edf: lookHookWritable,
	},
	{
		Rule: audit.Rule{
			ID: "edf-musl", Severity: audit.Error,
			Title:  "Hooks that need glibc in an image with musl",
			Why:    "The hooks for Slingshot and Slurm call ldconfig and mount libraries that are linked with glibc; in an Alpine image the start fails in them.",
			Remedy: `write com.hooks.cxi.enabled = "false" under [annotations] and ENROOT_SLURM_HOOK = "0" under [env], or take an image with glibc`,
		},
		edf: lookMusl,
	},
}

// imageAt is the image's setting, and whether there is one.
func (s *subject) imageAt() (edf.Setting, bool) {
	at, ok := s.env.Top[edf.Image]
	return at, ok && at.Value.Kind == edf.String && at.Value.Text != ""
}

func lookImageMissing(s *subject) {
	image, ok := s.imageAt()
	if !ok {
		s.noImage()
		return
	}
	name, undefined := edf.Expand(image.Value.Text, s.linter.Lookup)
	switch {
	case s.dialect == edf.Sarus || len(undefined) > 0 || strings.Contains(name, "$"):
	case !isPath(name) && (strings.HasSuffix(name, ".sqsh") || strings.HasSuffix(name, ".squashfs")):
		s.tell(of(image), "%s has no slash in it, so it is taken for an image of Docker Hub", quote(name)).Remedy = "write the path of the file, or ./ in front of it"
	case filepath.IsAbs(name):
		if s.linter.lacks(name) {
			s.tell(of(image), "there is no file %s", name)
		}
	}
}

// lacks reports whether an image's file is not there, in a directory that is, and nobody will copy it there.
func (l *linter) lacks(name string) bool {
	if _, coming := l.Coming[name]; coming {
		return false
	}
	_, err := os.Stat(name)
	return os.IsNotExist(err) && isDir(filepath.Dir(name))
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// noImage tells of an environment without one. A file may be a base for others; one that a job names is none.
func (s *subject) noImage() {
	other, written := s.env.Top[edf.Image]
	switch {
	case written && other.Value.Kind != edf.String || len(s.problems) > 0:
	case s.dialect == edf.Sarus:
		if s.edf.Find(edf.Base) == nil {
			s.tell(s.in(0), "there is neither image nor base_environment, and the Sarus Suite refuses such a file also as a base")
		}
	case s.usedBy != nil:
		f := s.tell(s.in(0), "%s starts a job with this environment, and it names no image", filepath.Base(s.usedBy.path))
		f.Severity = audit.Warning
		f.Why = "The Container Engine starts the job outside of any container."
	}
}

func lookImageMutable(s *subject) {
	image, ok := s.imageAt()
	if !ok || isPath(image.Value.Text) || strings.HasSuffix(image.Value.Text, ".sqsh") || strings.Contains(image.Value.Text, "$") {
		return
	}
	switch r := parseReference(image.Value.Text); {
	case r.digest != "":
	case r.tag == "":
		s.tell(of(image), "%s has no tag", quote(image.Value.Text))
	case r.tag == "latest":
		s.tell(of(image), "%s has the tag latest", quote(image.Value.Text))
	}
}

func lookImageArch(s *subject) {
	image, ok := s.imageAt()
	_, wanted, known := strings.Cut(s.linter.Target.Platform, "/")
	if !ok || !known || !s.image.known() || s.image.arch() == "" || s.image.arch() == wanted {
		return
	}
	s.tell(of(image), "the image is for %s, and %s has %s", s.image.arch(), s.target(), wanted)
}

// target is what the target is called in a sentence.
func (s *subject) target() string {
	if name := s.linter.Target.Name; name != "" {
		return name
	}
	return "the target"
}

// hookTakesVariant reports whether the hook for NCCL is on and looks at its variant: with netstack's artifacts it does not.
func (s *subject) hookTakesVariant() (edf.Setting, bool) {
	variant, ok := s.env.Annotations["com.hooks.aws_ofi_nccl.variant"]
	off := s.env.Annotation("com.hooks.aws_ofi_nccl.enabled") == "false"
	return variant, ok && !off && s.dialect != edf.Sarus && s.env.Annotation("com.hooks.netstack.source") != "artifact"
}

var cudaVariant = lazyregexp.New(`^cuda(\d+)$`)

func lookVariant(s *subject) {
	variant, ok := s.hookTakesVariant()
	m := cudaVariant.FindStringSubmatch(variant.Value.Text)
	if !ok || m == nil || !s.image.known() {
		return
	}
	majors := s.image.cudaMajors()
	if len(majors) == 0 || majors[m[1]] != "" {
		return
	}
	versions := slices.Sorted(maps.Keys(majors))
	f := s.tell(of(variant), "the variant is %s, and the image has CUDA %s", variant.Value.Text, strings.Join(versions, " and "))
	for _, v := range versions {
		f.Seen = append(f.Seen, "CUDA "+v+": "+majors[v])
	}
}

func lookCudartLink(s *subject) {
	variant, ok := s.hookTakesVariant()
	if !ok || variant.Value.Text != "cuda-dl" || !s.image.filesKnown() {
		return
	}
	if _, there := s.image.has(func(name string) bool { return path.Base(name) == "libcudart.so" }); there {
		return
	}
	f := s.tell(of(variant), "the variant is cuda-dl, and the image has no libcudart.so")
	if at, there := s.image.has(func(name string) bool { return cudart.MatchString(path.Base(name)) }); there {
		f.Seen = []string{at}
	}
}

// ofHook are the variables that the hook for NCCL sets.
var ofHook = lazyregexp.New(`^(NCCL_NET|NCCL_NET_PLUGIN|NCCL_NET_GDR_LEVEL|NCCL_CROSS_NIC|NCCL_PROTO|FI_(CXI|MR|HMEM|PROVIDER|OFI_RXM).*)$`)

func lookHookEnv(s *subject) {
	if !s.env.On("aws_ofi_nccl") {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.env.Env)) {
		if v := s.env.Env[name]; ofHook.MatchString(name) && v.Value.Text != "" {
			s.tell(of(v), "%s=%s goes before what the hook sets", name, v.Value.Text)
		}
	}
}

func lookSSHKey(s *subject) {
	if !s.env.On("ssh") {
		return
	}
	key, ok := s.env.Annotations["com.hooks.ssh.authorize_ssh_key"]
	text := key.Value.Text
	switch {
	case !ok || text == "":
		s.tell(of(s.env.Annotations["com.hooks.ssh.enabled"]), "the ssh hook is on, and has no authorize_ssh_key")
	case strings.HasPrefix(text, "ssh-") || strings.HasPrefix(text, "ecdsa-"):
		s.tell(of(key), "authorize_ssh_key is a key, and has to be the path of its file")
	case !strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "$"):
		s.tell(of(key), "authorize_ssh_key is %s, which is no absolute path", quote(text))
	}
}

func lookSSHHome(s *subject) {
	if !s.env.On("ssh") {
		return
	}
	for _, m := range s.env.Mounts {
		if source := edf.ParseMount(m.Value.Text).Source(); wholeHome(source) {
			s.tell(of(m), "the ssh hook is on, and %s is mounted", source)
		}
	}
}

func lookHookWritable(s *subject) {
	w, ok := s.env.Top[edf.Writable]
	if !ok || w.Value.Kind != edf.Bool || w.Value.Text != "false" {
		return
	}
	for _, hook := range []string{"ssh", "nvidia_cuda_mps"} {
		if s.env.On(hook) {
			s.tell(of(w), "writable is false, and com.hooks.%s is on", hook)
		}
	}
}

func lookMusl(s *subject) {
	image, ok := s.imageAt()
	if !ok || s.dialect == edf.Sarus {
		return
	}
	seen, musl := "", false
	if s.image.filesKnown() {
		seen, musl = s.image.musl()
	} else if !isPath(image.Value.Text) {
		musl = parseReference(image.Value.Text).isMusl()
	}
	var lacks []string
	if s.env.Annotation("com.hooks.cxi.enabled") != "false" {
		lacks = append(lacks, `com.hooks.cxi.enabled = "false"`)
	}
	if v, set := s.env.Env["ENROOT_SLURM_HOOK"]; !set || v.Value.Text != "0" {
		lacks = append(lacks, `ENROOT_SLURM_HOOK = "0"`)
	}
	if !musl || len(lacks) == 0 {
		return
	}
	f := s.tell(of(image), "the image is linked with musl, and the environment lacks %s", strings.Join(lacks, " and "))
	if seen != "" {
		f.Seen = []string{seen}
		return
	}
	f.Seen = []string{fmt.Sprintf("its name is %s", image.Value.Text)}
	f.Severity = audit.Warning
}
