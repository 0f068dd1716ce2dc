package lint

import (
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/lazyregexp"
)

// filesKnown reports whether the files of an image are there to look at, and not its configuration alone.
func (o *opened) filesKnown() bool { return o != nil && o.Facts != nil && o.Root != nil }

// known reports whether anything is known of an image.
func (o *opened) known() bool { return o != nil && o.Facts != nil }

var (
	cudart     = lazyregexp.New(`^libcudart(?:-[0-9a-f]+)?\.so\.(\d+)`)
	torchCUDA  = lazyregexp.New(`(?m)^cuda\b[^=\n]*=\s*['"](\d+)\.`)
	muslLoader = lazyregexp.New(`^(usr/)?lib/ld-musl-[a-z0-9_]+\.so\.1$`)
)

// cudaMajors are the major versions of CUDA that an image has, each with how that is known.
func (o *opened) cudaMajors() map[string]string {
	all := map[string]string{}
	if v, ok := o.Env("CUDA_VERSION"); ok {
		major, _, _ := strings.Cut(v, ".")
		all[major] = "CUDA_VERSION=" + v
	}
	for _, p := range o.Paths {
		base := path.Base(p.Path)
		if m := cudart.FindStringSubmatch(base); m != nil {
			all[m[1]] = "/" + p.Path
		}
		if base == "version.py" && strings.HasSuffix(path.Dir(p.Path), "-packages/torch") {
			if m := torchCUDA.FindSubmatch(facts.ReadText(o.Root, p.Path)); m != nil {
				all[string(m[1])] = "/" + p.Path
			}
		}
	}
	delete(all, "")
	return all
}

// has reports whether an image has a path that matches.
func (o *opened) has(matches func(name string) bool) (string, bool) {
	for _, p := range o.Paths {
		if matches(p.Path) {
			return "/" + p.Path, true
		}
	}
	return "", false
}

// musl is the loader of musl, where an image's programs are linked with that.
func (o *opened) musl() (string, bool) { return o.has(muslLoader.MatchString) }

// arch is an image's processor, "" when it is not known.
func (o *opened) arch() string {
	parts := strings.Split(o.Platform, "/")
	if len(parts) < 2 {
		return ""
	}
	return parts[1]
}

// reference is the name of an image in a registry: [USER@][REGISTRY#]IMAGE[:TAG][@DIGEST].
type reference struct{ image, tag, digest string }

func parseReference(text string) reference {
	text = strings.TrimPrefix(text, "docker://")
	var r reference
	text, r.digest, _ = strings.Cut(text, "@sha256:")
	if i := strings.LastIndexAny(text, "/#@"); i >= 0 {
		text = text[i+1:]
	}
	r.image, r.tag, _ = strings.Cut(text, ":")
	return r
}

// isMusl reports whether an image's name says that it is Alpine's.
func (r reference) isMusl() bool {
	return r.image == "alpine" || slices.Contains(strings.FieldsFunc(r.tag, func(c rune) bool { return c == '-' || c == '.' }), "alpine")
}
