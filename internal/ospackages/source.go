package ospackages

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// SourceFile is a file of a source package.
type SourceFile struct {
	Name   string
	URL    string
	Size   int64 // bytes
	SHA256 store.Digest
}

// aptSourceScript asks apt for the files of a source package. The base's package sources count, as sources of source packages, which
// most bases do not have. What a source says of its keys stays: apt believes the lists of source packages by the same signatures as
// those of packages, and the files by the hashes in the lists.
const aptSourceScript = `set -u
umask 022
cd ` + workDir + `
mkdir -p archives/partial parts
sed -n 's/^deb[ \t]/deb-src /p' /etc/apt/sources.list /etc/apt/sources.list.d/*.list > parts/all.list 2> /dev/null
for f in /etc/apt/sources.list.d/*.sources; do
	[ ! -e "$f" ] || sed 's/^Types:.*/Types: deb-src/' "$f" > "parts/$(basename "$f")"
done
ca=; [ ! -e ` + caFile + ` ] || ca=-oAcquire::https::CAInfo=` + workDir + `/` + caFile + `
apt() {
	command=$1; shift
	"$command" -oAPT::Sandbox::User=root -oDir::State::Lists=` + listsDir + `/ -oDir::Cache::Archives=` + workDir + `/archives/ \
		-oDir::Etc::sourcelist=/dev/null -oDir::Etc::sourceparts=` + workDir + `/parts/ \
		-oDir::Cache::pkgcache=` + workDir + `/packages.bin -oDir::Cache::srcpkgcache= \
		-oAcquire::Languages=none -oAcquire::GzipIndexes=true \
		-oAcquire::Retries=3 -oAPT::Update::Error-Mode=any $ca "$@"
}
apt apt-get -q update > updated 2>&1; code=$?
cat updated
[ $code = 0 ] || exit 12
if apt apt-get -q=0 --only-source -oAcquire::ForceHash=sha256 --print-uris source "$1" > uris 2> errors; then exit 0; fi
apt apt-cache showsrc --only-source "${1%%=*}" 2> /dev/null | sed -n 's/^Version: //p' > versions
exit 13
`

// Source names the files of a source package of the base's distribution, NAME or NAME=VERSION, and says which version that is. Only
// apt is asked; it runs in the base, of which nothing stays changed.
func Source(ctx context.Context, st *store.Store, on []layer.Descriptor, platform v1.Platform, offline bool, asked string) (files []SourceFile, version string, err error) {
	if offline {
		return nil, "", errors.New("cannot look for a source package with --offline: the base's package sources have to be asked")
	}
	task := progress.Begin(ctx, "resolve", "source package "+asked, 0)
	files, version, err = source(ctx, task, st, on, platform, asked)
	return files, version, task.End(err)
}

func source(ctx context.Context, task *progress.Task, st *store.Store, on []layer.Descriptor, platform v1.Platform, asked string) ([]SourceFile, string, error) {
	tree, err := image.NewTree(ctx, st, on)
	if err != nil {
		return nil, "", err
	}
	m, err := managerOf(tree)
	if err != nil {
		return nil, "", err
	}
	if _, ok := m.(apt); !ok {
		return nil, "", fault.Hint(errors.New("source packages are taken from distributions with apt, and the base has another package manager"),
			"name the archive itself: url = \"…\" and sha256 = \"…\"")
	}
	sources, err := m.sources(tree)
	if err != nil {
		return nil, "", err
	}
	dirs, err := sandbox.Layers(ctx, st, on)
	if err != nil {
		return nil, "", err
	}
	work, err := st.TempDir("resolve-*")
	if err != nil {
		return nil, "", err
	}
	defer store.RemoveAll(work)
	q := &question{task: task, store: st, tree: tree, on: on, layers: dirs, work: work, platform: platform}
	lists, done, err := q.lists(ctx, "apt-source", platform.String()+"\n"+sources)
	if err != nil {
		return nil, "", err
	}
	defer done()
	if err := q.put(ctx, m, lists, aptSourceScript, []string{asked}, func() error { return noSource(q, asked) }); err != nil {
		return nil, "", err
	}
	text, err := q.answer("uris")
	if err != nil {
		return nil, "", err
	}
	return readSource(asked, text)
}

func noSource(q *question, asked string) error {
	complaints, err := q.answer("errors")
	if err != nil {
		return err
	}
	err = fmt.Errorf("the base's apt has no source package %s:\n%s", asked, aptComplaints(complaints))
	if versions, readErr := q.answer("versions"); readErr == nil && strings.TrimSpace(versions) != "" {
		name, _, _ := strings.Cut(asked, "=")
		return fault.Hint(err, fmt.Sprintf("the base's sources have %s %s", name, strings.Join(strings.Fields(versions), ", ")))
	}
	return fault.Hint(err, "the base's own sources (/etc/apt) decide what there is; source packages are often called otherwise than what is built from them")
}

// aptSourceLine is a line of apt-get source --print-uris: 'URL' FILE SIZE SHA256:HEX.
var aptSourceLine = lazyregexp.New(`(?m)^'([^']+)' (\S+) (\d+) SHA256:([0-9a-f]{64})$`)

// dscName is the name of the file that describes a source package; its version has no epoch.
var dscName = lazyregexp.New(`^([a-z0-9][a-z0-9+.-]*)_([0-9A-Za-z.+~-]+)\.dsc$`)

// readSource reads what apt answered.
func readSource(asked, text string) ([]SourceFile, string, error) {
	var files []SourceFile
	version := ""
	for _, m := range aptSourceLine.FindAllStringSubmatch(text, -1) {
		name, err := url.PathUnescape(m[2])
		if err != nil || name != path.Base(name) || !nameForm.MatchString(strings.ReplaceAll(name, "~", "-")) {
			return nil, "", fmt.Errorf("apt names a file of the source package %s that cannot be: %q", asked, m[2])
		}
		if !strings.HasPrefix(m[1], "http://") && !strings.HasPrefix(m[1], "https://") {
			return nil, "", fmt.Errorf("the source package %s comes from %s, and only http and https are supported", asked, m[1])
		}
		size, err := strconv.ParseInt(m[3], 10, 64)
		if err != nil {
			return nil, "", fmt.Errorf("size of %s: %w", name, err)
		}
		if d := dscName.FindStringSubmatch(name); d != nil {
			version = d[2]
		}
		files = append(files, SourceFile{Name: name, URL: m[1], Size: size, SHA256: store.Digest("sha256:" + m[4])})
	}
	if version == "" {
		return nil, "", fmt.Errorf("apt names no files with a SHA-256 for the source package %s", asked)
	}
	if _, wanted, given := strings.Cut(asked, "="); given {
		version = wanted // with its epoch
	}
	return files, version, nil
}
