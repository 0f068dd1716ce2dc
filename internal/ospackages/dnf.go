package ospackages

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/store"
)

// dnf is the package manager of Fedora and what comes of it, in its version 4.
type dnf struct{}

// dnfName is Pinned.Manager of dnf.
const dnfName = "dnf"

// dnfResolve lets dnf download what an installation would fetch, since it tells no hashes of its own accord: rpm packages are
// known by their files. The build finds them in the store. Signatures are checked on the way, where the base's configuration says
// so.
const dnfResolve = `set -u
umask 022
cd ` + workDir + `
mkdir packages
ca=; [ ! -e ` + caFile + ` ] || ca=--setopt=sslcacert=` + workDir + `/` + caFile + `
ask() {
	dnf -y --setopt=install_weak_deps=False --setopt=cachedir=` + listsDir + ` --setopt=keepcache=False --setopt=logdir=` + workDir + ` $ca "$@"
}
ask makecache > updated 2>&1; code=$?
cat updated
[ $code = 0 ] || exit 12
if ! ask install --downloadonly --destdir=` + workDir + `/packages "$@" > said 2> errors; then
	ask -q repoquery --qf '%{name}' > names
	exit 13
fi
cat said
cd packages
for file in *.rpm; do
	[ -e "$file" ] || continue
	rpm -qp --nosignature --qf "%{NAME} %{EVR} %{ARCH} $file\n" "$file" || exit 14
done > ../found
[ -s ../found ] || exit 0
ask -q repoquery --location $(rpm -qp --nosignature --qf '%{NAME}-%{EVR}.%{ARCH} ' *.rpm) > ../locations
`

// dnfAsked is a package as dnf(8) takes it: NAME, NAME-VERSION or NAME.ARCHITECTURE. Groups, modules, files and patterns cannot be
// locked.
var dnfAsked = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9+._:~^-]*(=[0-9A-Za-z][0-9A-Za-z+._:~^-]*)?$`)

func (dnf) name() string { return dnfName }

func (dnf) check(packages []string) error {
	for _, p := range packages {
		if !dnfAsked.MatchString(p) {
			return fault.Usage(fault.Hint(fmt.Errorf("[system] packages: %q does not name a package as dnf does", p),
				"write NAME, NAME-VERSION or NAME.ARCHITECTURE"))
		}
	}
	return nil
}

func (dnf) sources(t *image.Tree) (string, error) { return sourceFiles(t, "etc/yum.repos.d/*.repo") }

func (dnf) question(_ string, packages []string) (script string, args []string) {
	for _, p := range packages {
		args = append(args, strings.Replace(p, "=", "-", 1))
	}
	return dnfResolve, args
}

func (dnf) listsError(text string) error {
	return fault.Hint(fmt.Errorf("the base's dnf cannot fetch the lists of its repositories:\n%s", dnfComplaints(text)),
		"the repositories are those of the base, in /etc/yum.repos.d; proxies are taken from http_proxy and https_proxy")
}

// maxSources bounds a file that names package sources, in bytes.
const maxSources = 1 << 20

// sourceFiles returns the text of all files of the base that name repositories: those that patterns, DIR/*.EXTENSION, say.
func sourceFiles(t *image.Tree, patterns ...string) (string, error) {
	var text strings.Builder
	for _, pattern := range patterns {
		dir := path.Dir(pattern)
		nodes, err := t.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		for _, n := range nodes {
			if path.Ext(n.Name()) != path.Ext(pattern) {
				continue
			}
			data, err := t.ReadFile(path.Join(dir, n.Name()), maxSources)
			if err != nil {
				return "", fmt.Errorf("read the base's repositories: %w", err)
			}
			text.Write(data)
			text.WriteByte('\n')
		}
	}
	if text.Len() == 0 {
		return "", fault.Hint(fmt.Errorf("the base names no package sources: /%s has none", path.Dir(patterns[0])),
			"take another base, or install the packages in a [[step]]")
	}
	return text.String(), nil
}

func dnfComplaints(text string) string {
	return complaints(text, func(line string) string {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "Last metadata") {
			return ""
		}
		return line
	})
}

// complaints lists what clean leaves of a manager's lines, each once: "" is one that says nothing.
func complaints(text string, clean func(line string) string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = clean(line); line != "" && !slices.Contains(lines, "  "+line) {
			lines = append(lines, "  "+line)
		}
	}
	return strings.Join(lines, "\n")
}

// dnfUnknown is dnf's sentence about names that it does not know.
var dnfUnknown = lazyregexp.New(`(?m)^Error: Unable to find a match: (.*)$`)

func (d dnf) explain(q *question, packages []string) error {
	complaints, err := q.answer("errors")
	if err != nil {
		return err
	}
	known, err := q.answer("names")
	if err != nil {
		return err
	}
	names := strings.Fields(known)
	slices.Sort(names)
	var hints []string
	if m := dnfUnknown.FindStringSubmatch(complaints); m != nil {
		for _, name := range strings.Fields(m[1]) {
			if near := nearestPackage(name, names); near != "" {
				hints = append(hints, fmt.Sprintf("instead of %q, did you mean %q?", name, near))
			}
		}
	}
	if len(hints) == 0 {
		hints = []string{"the base's own repositories (/etc/yum.repos.d) decide what there is; check the names under [system] packages"}
	}
	return fault.Hint(fmt.Errorf("the base's dnf cannot install %s:\n%s", strings.Join(packages, ", "), dnfComplaints(complaints)), strings.Join(hints, "; "))
}

// read makes the pins of what dnf has downloaded, and puts the files into the store.
func (d dnf) read(q *question, packages []string) (*Pinned, error) {
	found, err := q.answer("found")
	if err != nil {
		return nil, err
	}
	locations := ""
	if found != "" {
		if locations, err = q.answer("locations"); err != nil {
			return nil, err
		}
	}
	p := newPinned(dnfName, packages)
	addresses := map[string]string{} // by file name
	for _, address := range strings.Fields(locations) {
		addresses[path.Base(address)] = address
	}
	for line := range strings.Lines(found) {
		fields := strings.Fields(line)
		if len(fields) != 4 || addresses[fields[3]] == "" {
			return nil, fmt.Errorf("dnf does not say where the package comes from that rpm calls %q", strings.TrimSpace(line))
		}
		pkg := Package{Name: fields[0], Version: fields[1], Architecture: fields[2]}
		if pkg.URL, err = withoutLogin(addresses[fields[3]]); err != nil {
			return nil, err
		}
		if err := q.keep(filepath.Join("packages", fields[3]), &pkg); err != nil {
			return nil, err
		}
		if err := pkg.valid(); err != nil {
			return nil, err
		}
		p.Packages = append(p.Packages, pkg)
	}
	slices.SortFunc(p.Packages, comparePackages)
	return p, nil
}

// keep puts a file that the manager has downloaded to workDir into the store, and notes its size and hash.
func (q *question) keep(name string, pkg *Package) error {
	root, err := os.OpenRoot(q.work)
	if err != nil {
		return err
	}
	defer root.Close()
	in, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	w, err := q.store.NewBlob()
	if err != nil {
		return err
	}
	defer w.Close()
	h := sha256.New()
	if pkg.Size, err = io.Copy(io.MultiWriter(w, h), in); err != nil {
		return err
	}
	pkg.SHA256 = store.SumDigest(h)
	_, err = w.Commit(pkg.SHA256)
	return err
}

// rpmInstall is the command that installs the packages in dir. rpm sorts out their order by itself.
//
// rpm notes in its database when it has installed what, so that this layer, unlike one of apt's, differs from run to run.
func rpmInstall(dir string, p *Pinned) execop.Command {
	return installCommand(dir, rpmInstallScript, p)
}
