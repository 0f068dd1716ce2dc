package bootstrap

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tempdir"
)

// resolveHook runs inside mmdebstrap once its private root and sources are set up. It asks apt what an installation would
// fetch, keeps the answer, and stops mmdebstrap, which has nothing more to do. %[1]s is the directory for the answers,
// %[2]s the packages.
//
// usr-is-merged, where a suite has it, keeps apt from choosing usrmerge with all of perl; as a pattern (apt-patterns(7)) it
// may match nothing. The strong hash is asked for because apt prints MD5 otherwise, and the error mode because a mirror that
// cannot be reached is only a warning otherwise.
const resolveHook = `#!/bin/sh
set -eu
export APT_CONFIG="${MMDEBSTRAP_APT_CONFIG:-${APT_CONFIG:-}}"
apt-get update -qq -oAPT::Update::Error-Mode=any 2> %[1]s/update || { cat %[1]s/update >&2; exit 1; }
rm %[1]s/update
cat "$1"/var/lib/apt/lists/*Release | grep '^Date:' > %[1]s/dates
cat "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*.list "$1"/etc/apt/sources.list.d/*.sources 2>/dev/null > %[1]s/sources || :
if apt-get install --yes --no-install-recommends -oAcquire::ForceHash=sha256 --print-uris \
	'?exact-name(usr-is-merged)' apt %[2]s > %[1]s/uris 2> %[1]s/errors
then : > %[1]s/resolved; fi
exit 1
`

// Resolve asks the distribution's mirror which packages r needs today. It takes a second or two and changes nothing.
func Resolve(ctx context.Context, r Request) (*Pinned, error) {
	task := progress.Begin(ctx, "resolve", r.Suite+" packages", 0)
	p, err := resolve(ctx, task, r)
	return p, task.End(err)
}

func resolve(ctx context.Context, task *progress.Task, r Request) (*Pinned, error) {
	dir, remove, err := tempdir.Make("resolve")
	if err != nil {
		return nil, err
	}
	defer remove()
	if err := os.Chmod(dir, 0o755); err != nil { // apt reads its lists as a user of its own
		return nil, err
	}
	hook := filepath.Join(dir, "hook.sh")
	if err := os.WriteFile(hook, []byte(hookText(dir, slices.Concat(variants[r.Variant], r.Packages))), 0o755); err != nil {
		return nil, err
	}
	runErr := run(ctx, task, dir, r.Mirror, time.Unix(0, 0), resolveArgs(r, hook))
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if text, err := os.ReadFile(filepath.Join(dir, "errors")); err == nil && len(text) > 0 && !exists(filepath.Join(dir, "resolved")) {
		return nil, fault.Hint(fmt.Errorf("apt cannot resolve the base's packages for %s:\n%s", r.Suite, strings.TrimSpace(string(text))),
			"check the names under [base] bootstrap.packages")
	}
	if text, err := os.ReadFile(filepath.Join(dir, "update")); err == nil && len(text) > 0 {
		return nil, noLists(r, strings.TrimSpace(string(text)))
	}
	if !exists(filepath.Join(dir, "resolved")) {
		return nil, fmt.Errorf("resolve the packages of %s: %w", r.Suite, runErr)
	}
	return readAnswers(dir, r)
}

// releases are the suites that a suite is likely to be a misspelling of.
var releases = []string{
	"bullseye", "bookworm", "trixie", "forky", "sid", "stable", "testing", "unstable", "focal", "jammy", "noble",
}

// noLists explains why apt got no package lists, in the words of apt.
func noLists(r Request, complaints string) error {
	err := fmt.Errorf("apt cannot get the package lists of %s:\n%s", r.Suite, complaints)
	near := spelling.Nearest(r.Suite, releases)
	switch {
	case strings.Contains(complaints, "NO_PUBKEY"):
		return fault.Hint(err, "this machine lacks the keys that the packages are signed with: they are in Ubuntu's package ubuntu-keyring, or "+
			"Debian's debian-archive-keyring, and belong into /usr/share/keyrings; or set base.image to an image instead")
	case !strings.Contains(complaints, "does not have a Release file"):
		return fault.Hint(err, "base.bootstrap.mirror names another mirror")
	case near != "" && near != r.Suite:
		return fault.Hint(err, fmt.Sprintf("instead of %q, did you mean %q?", r.Suite, near))
	default:
		return fault.Hint(err, fmt.Sprintf("the mirror has no suite %q; base.bootstrap.mirror names another mirror", r.Suite))
	}
}

// variants are mmdebstrap's package sets, as apt-patterns(7).
var variants = map[string][]string{
	"apt":       {"?essential"},
	"":          {"?essential", "?priority(required)"},
	"minbase":   {"?essential", "?priority(required)"},
	"important": {"?essential", "?priority(required)", "?priority(important)"},
	"standard":  {"?essential", "?priority(required)", "?priority(important)", "?priority(standard)"},
}

func hookText(dir string, packages []string) string {
	quoted := make([]string, len(packages))
	for i, p := range packages {
		quoted[i] = quote(p)
	}
	return fmt.Sprintf(resolveHook, quote(dir), strings.Join(quoted, " "))
}

func resolveArgs(r Request, hook string) []string {
	args := []string{"--variant=apt", "--format=null", "--architectures=" + r.Architecture, "--setup-hook=" + quote(hook) + ` "$1"`}
	if len(r.Components) > 0 {
		args = append(args, "--components="+strings.Join(r.Components, ","))
	}
	args = append(args, r.Suite, "-")
	if r.Mirror != "" {
		args = append(args, r.Mirror)
	}
	return args
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func readAnswers(dir string, r Request) (*Pinned, error) {
	p := &Pinned{Suite: r.Suite, Architecture: r.Architecture}
	sources, err := os.ReadFile(filepath.Join(dir, "sources"))
	if err != nil {
		return nil, err
	}
	p.Sources = string(sources)
	if p.Epoch, err = newestDate(filepath.Join(dir, "dates")); err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(dir, "uris"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "'") {
			continue // apt's own words around the list
		}
		pkg, err := parseURI(lines.Text())
		if err != nil {
			return nil, err
		}
		p.Packages = append(p.Packages, pkg)
	}
	slices.SortFunc(p.Packages, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return p, errors.Join(lines.Err(), nonEmpty(p))
}

func nonEmpty(p *Pinned) error {
	if len(p.Packages) == 0 {
		return fmt.Errorf("apt names no packages for %s", p.Suite)
	}
	return nil
}

// parseURI reads a line of apt-get --print-uris: 'URL' FILE SIZE SHA256:HEX, where FILE is NAME_VERSION_ARCH.deb.
func parseURI(line string) (Package, error) {
	bad := func() (Package, error) {
		return Package{}, fmt.Errorf("apt-get --print-uris printed a line that is not understood: %q", line)
	}
	fields := strings.Fields(line)
	if len(fields) != 4 {
		return bad()
	}
	name, err := url.PathUnescape(strings.TrimSuffix(fields[1], ".deb"))
	parts := strings.Split(name, "_")
	size, sizeErr := strconv.ParseInt(fields[2], 10, 64)
	hexed, hasHash := strings.CutPrefix(fields[3], "SHA256:")
	digest, digestErr := store.ParseDigest("sha256:" + hexed)
	if err != nil || sizeErr != nil || digestErr != nil || !hasHash || len(parts) != 3 {
		return bad()
	}
	return Package{
		Name: parts[0], Version: parts[1], Architecture: parts[2],
		URL: strings.Trim(fields[0], "'"), Size: size, SHA256: digest,
	}, nil
}

// newestDate reads "Date:" lines of Release files, which are in the form of RFC 1123 with the zone UTC.
func newestDate(file string) (time.Time, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}, err
	}
	var newest time.Time
	for line := range strings.Lines(string(data)) {
		t, err := time.Parse(time.RFC1123, strings.TrimSpace(strings.TrimPrefix(line, "Date:")))
		if err != nil {
			return time.Time{}, fmt.Errorf("the mirror's Release file has a bad date: %w", err)
		}
		if t.After(newest) {
			newest = t
		}
	}
	return newest.UTC(), nil
}
