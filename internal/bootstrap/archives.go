package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/spelling"
)

// archive is a suite of a mirror: a line of sources.list(5).
type archive struct {
	url        string // without a slash at the end
	suite      string
	components []string
	options    string // as sources.list(5) has them, "" for none
}

func (a archive) line() string {
	return debian.Source{Type: "deb", Options: a.options, URL: a.url, Suite: a.suite, Components: a.components}.String() + "\n"
}

// snapshotDate finds the time of a snapshot in its address.
var snapshotDate = lazyregexp.New(`/(\d{8}T\d{6}Z)(?:/|$)`)

// now is when the archive's indices have to be good: at the time of a snapshot, else today.
func (a archive) now(today time.Time) time.Time {
	if m := snapshotDate.FindStringSubmatch(a.url); m != nil {
		if t, err := time.Parse("20060102T150405Z", m[1]); err == nil {
			return t
		}
	}
	return today
}

// vendor is a distribution.
type vendor struct {
	name   string
	suites []string // by code name
	moving []string // of them, those that have neither updates nor security updates of their own
}

var vendors = []vendor{
	{
		"debian",
		[]string{"bullseye", "bookworm", "trixie", "forky", "sid", "stable", "oldstable", "testing", "unstable"},
		[]string{"forky", "sid", "testing", "unstable"},
	},
	{"ubuntu", []string{"focal", "jammy", "noble", "plucky", "questing"}, nil},
}

// archivesOf lists where the packages of r come from.
func archivesOf(r Request) ([]archive, error) {
	components := r.Components
	if len(components) == 0 {
		components = []string{"main"}
	}
	var all []archive
	if r.Mirror != "" {
		all = []archive{{url: r.Mirror, suite: r.Suite, components: components}}
	} else {
		var err error
		if all, err = usual(r.Suite, components); err != nil {
			return nil, err
		}
	}
	for _, s := range r.Sources {
		words := strings.Fields(s)
		if len(words) < 3 {
			return nil, fault.Usage(fmt.Errorf("base.bootstrap.sources: %q is not ADDRESS SUITE COMPONENT…", s))
		}
		all = append(all, archive{url: words[0], suite: words[1], components: words[2:]})
	}
	for i := range all {
		a := &all[i]
		a.url = strings.TrimRight(a.url, "/")
		var options []string
		if snapshotDate.MatchString(a.url) {
			options = append(options, "check-valid-until=no") // what apt would say of it later is known already
		}
		if r.Trusted {
			options = append(options, "trusted=yes")
		}
		a.options = strings.Join(options, " ")
	}
	return all, nil
}

// usual are the archives of a suite on its distribution's mirrors: with updates and security updates.
func usual(suite string, components []string) ([]archive, error) {
	v, err := vendorOf(suite)
	if err != nil {
		return nil, err
	}
	mirror, security, err := v.mirrors()
	if err != nil {
		return nil, err
	}
	all := []archive{{url: mirror, suite: suite, components: components}}
	if slices.Contains(v.moving, suite) {
		return all, nil
	}
	return append(all,
		archive{url: mirror, suite: suite + "-updates", components: components},
		archive{url: security, suite: suite + "-security", components: components}), nil
}

func vendorOf(suite string) (vendor, error) {
	var known []string
	for _, v := range vendors {
		if slices.Contains(v.suites, suite) {
			return v, nil
		}
		known = append(known, v.suites...)
	}
	err := fmt.Errorf("there is no suite %q of Debian or Ubuntu that is known here", suite)
	if near := spelling.Nearest(suite, known); near != "" {
		return vendor{}, fault.Hint(err, fmt.Sprintf("instead of %q, did you mean %q? base.bootstrap.mirror names where another one is", suite, near))
	}
	return vendor{}, fault.Hint(err, "base.bootstrap.mirror names where it is: for one that has left the mirrors, an archive of old releases")
}

// mirrors finds where the distribution is and where its security updates are: as the configuration of site and user says, else
// where this machine's own packages come from.
func (v vendor) mirrors() (mirror, security string, err error) {
	c, err := config.Load()
	if err != nil {
		return "", "", err
	}
	m := debian.Mirrors(c.Mirrors)
	if m[v.name] == "" {
		own := debian.OwnMirrors(debian.AptDir)
		maps.Copy(own, m)
		m = own
	}
	if m[v.name] == "" {
		return "", "", fault.Hint(fmt.Errorf("no mirror of %s is known on this machine", v.name),
			fmt.Sprintf("base.bootstrap.mirror names one, such as http://…/%[1]s; and for all that is built here, %[1]s = \"http://…/%[1]s\" under [mirrors] in %[2]s does",
				v.name, config.Own()))
	}
	return m[v.name], m.Of(v.name + "-security"), nil
}

// hostKeys are where a machine has the keys of archives: those that its own apt trusts, and the distributions' own.
var hostKeys = []string{
	"/etc/apt/trusted.gpg.d/*.gpg", "/etc/apt/trusted.gpg.d/*.asc",
	"/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
}

// maxKeys bounds a file of keys, in bytes.
const maxKeys = 4 << 20

// keyring is the keys that may sign: those that the request names, and no others, or those that came with sconce and are here.
func (x *indices) keyring(ctx context.Context) (*debian.Keyring, error) {
	if len(x.r.Keys) > 0 {
		k := &debian.Keyring{}
		for _, name := range x.r.Keys {
			data, err := x.readKeys(ctx, name)
			if err != nil {
				return nil, err
			}
			if err := k.Add(data); err != nil {
				return nil, fmt.Errorf("read the keys in %s: %w", name, err)
			}
		}
		return k, nil
	}
	k := debian.ArchiveKeys()
	for _, pattern := range hostKeys {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range files {
			if data, err := readSmall(name, maxKeys); err == nil {
				_ = k.Add(data) // a file that cannot be read signs nothing
			}
		}
	}
	return k, nil
}

// readKeys reads a file of keys, or what is at its address.
func (x *indices) readKeys(ctx context.Context, name string) (data []byte, err error) {
	if isAddress(name) {
		data, err = x.get(ctx, name)
	} else {
		data, err = readSmall(name, maxKeys)
	}
	if err != nil {
		return nil, fmt.Errorf("read the keys in %s: %w", fetch.Redact(name), err)
	}
	return data, nil
}

func readSmall(name string, limit int64) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%s: %w", name, errors.Join(errors.New("it is no file of a size that makes sense"), fs.ErrInvalid))
	}
	return os.ReadFile(name)
}
