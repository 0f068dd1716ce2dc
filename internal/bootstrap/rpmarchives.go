package bootstrap

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/spelling"
)

// rpmRepository is one of RPM packages.
type rpmRepository struct {
	name   string // in the image's configuration
	url    string // without a slash at the end
	signed bool   // its index is, by a key that counts: nobody has to ask its packages
}

// distribution is one whose packages are RPM's: where its releases lie below its mirrors' addresses, with $release and $arch.
type distribution struct {
	mirror   string
	paths    map[string]string // by the name of a repository
	releases []string          // those whose keys came with sconce
}

// distributions are those that are known by name. Their repositories are those that their own packages of configuration name.
var distributions = map[string]distribution{
	"rocky": {
		"https://dl.rockylinux.org/pub/rocky",
		map[string]string{"baseos": "$release/BaseOS/$arch/os", "appstream": "$release/AppStream/$arch/os"},
		[]string{"9", "10"},
	},
	"alma": {
		"https://repo.almalinux.org/almalinux",
		map[string]string{"baseos": "$release/BaseOS/$arch/os", "appstream": "$release/AppStream/$arch/os"},
		[]string{"9", "10"},
	},
	"fedora": {
		"https://dl.fedoraproject.org/pub/fedora/linux",
		map[string]string{"fedora": "releases/$release/Everything/$arch/os", "updates": "updates/$release/Everything/$arch"},
		[]string{"41", "42", "43", "44"},
	},
	"opensuse": {
		"https://download.opensuse.org",
		map[string]string{
			"repo-oss": "distribution/leap/$release/repo/oss", "repo-update": "update/leap/$release/oss",
			"repo-sle-update": "update/leap/$release/sle", "repo-backports-update": "update/leap/$release/backports",
		},
		[]string{"15.6"},
	},
}

// rpmArchitectures are rpm's names of Debian's architectures, which are Go's too.
var rpmArchitectures = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// isAddress tells the address of a repository from the name of a distribution.
func isAddress(dnf string) bool { return strings.Contains(dnf, "://") }

// repositoriesOf lists where the packages of r come from.
func repositoriesOf(r Request) ([]*rpmRepository, error) {
	var all []*rpmRepository
	if isAddress(r.Dnf) {
		all = []*rpmRepository{{name: r.repositoryName(0), url: r.Dnf}}
	} else {
		known, err := repositoriesOfRelease(r)
		if err != nil {
			return nil, err
		}
		all = known
	}
	for i, address := range r.Sources {
		all = append(all, &rpmRepository{name: r.repositoryName(i + 1), url: address})
	}
	for _, repo := range all {
		repo.url = strings.TrimRight(repo.url, "/")
	}
	return all, nil
}

// repositoryName is that of the nth address. Beside others, it is none that a distribution's package has, as CentOS's has base.
func (r Request) repositoryName(n int) string {
	switch {
	case r.Beside:
		return fmt.Sprintf("bootstrap-%d", n)
	case n == 0:
		return "base"
	}
	return fmt.Sprintf("source-%d", n)
}

func repositoriesOfRelease(r Request) ([]*rpmRepository, error) {
	name, release, _ := strings.Cut(r.Dnf, ":")
	d, ok := distributions[name]
	if !ok || !slices.Contains(d.releases, release) {
		return nil, unknownRelease(r.Dnf)
	}
	mirror, err := mirrorOf(name, r)
	if err != nil {
		return nil, err
	}
	var all []*rpmRepository
	for _, repo := range slices.Sorted(maps.Keys(d.paths)) {
		p := strings.NewReplacer("$release", release, "$arch", rpmArchitectures[r.Architecture]).Replace(d.paths[repo])
		all = append(all, &rpmRepository{name: repo, url: strings.TrimRight(mirror, "/") + "/" + p})
	}
	return all, nil
}

// mirrorOf is where a distribution is: as the recipe, or the configuration of site and user, says, else its own servers.
func mirrorOf(name string, r Request) (string, error) {
	if r.Mirror != "" {
		return r.Mirror, nil
	}
	c, err := config.Load()
	if err != nil {
		return "", err
	}
	return cmp.Or(c.Mirrors[name], distributions[name].mirror), nil
}

func unknownRelease(dnf string) error {
	var known []string
	for _, name := range slices.Sorted(maps.Keys(distributions)) {
		for _, release := range distributions[name].releases {
			known = append(known, name+":"+release)
		}
	}
	err := fmt.Errorf("there is no release %q that is known here: they are %s", dnf, strings.Join(known, ", "))
	hint := "dnf names the address of a repository for another one, and sources those of its others: the directory in which repodata is; keys, who signs it"
	if near := spelling.Nearest(dnf, known); near != "" {
		hint = fmt.Sprintf("instead of %q, did you mean %q? %s", dnf, near, hint)
	}
	return fault.Hint(err, hint)
}

// keyFile is where the image has the keys of the repositories that it was made from.
const keyFile = "etc/pki/rpm-gpg/RPM-GPG-KEY-bootstrap"

// configuration is that of the image's package manager, where the recipe says where packages come from: what was checked when the base
// was locked, it checks too: the index or each package, which dnf and zypper both understand where both keys are said. By gpgcheck=1 alone
// dnf wants packages to be signed, and zypper the index.
func configuration(r Request, all []*rpmRepository) string {
	if !isAddress(r.Dnf) && r.Mirror == "" && len(r.Sources) == 0 {
		return "" // the distribution's own
	}
	var text strings.Builder
	for i, repo := range all {
		if i > 0 {
			text.WriteByte('\n')
		}
		fmt.Fprintf(&text, "[%s]\nname=%s\nbaseurl=%s\nenabled=1\n", repo.name, path.Base(r.Dnf)+" "+repo.name, repo.url)
		if r.Beside { // where it cannot be reached, as a directory of this machine, the others are enough
			text.WriteString("skip_if_unavailable=1\n")
		}
		switch {
		case r.Trusted:
			text.WriteString("gpgcheck=0\n")
		case repo.signed:
			text.WriteString("gpgcheck=0\nrepo_gpgcheck=1\ngpgkey=file:///" + keyFile + "\n")
		default:
			text.WriteString("gpgcheck=1\nrepo_gpgcheck=0\ngpgkey=file:///" + keyFile + "\n")
		}
	}
	return text.String()
}
