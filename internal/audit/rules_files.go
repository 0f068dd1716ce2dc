package audit

import (
	"bytes"
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/runtimefiles"
	"sconce.dev/sconce/internal/units"
)

// fileRules are about names, permissions and sizes of files.
var fileRules = []Rule{
	{
		ID: "files-hidden", Severity: Warning,
		Title: "Files where the runtime mounts something",
		Why: "The runtime mounts something of the host, or an empty directory, over these: a container does not see what the image has there, " +
			"and each copy of the image still carries it.",
		Remedy: "put what is needed elsewhere, such as /opt, and remove the rest from the image",
		look:   lookHidden,
	},
	{
		ID: "files-setuid", Severity: Warning,
		Title: "Programs that take another user's rights",
		Why: "Container runtimes on clusters mount images without setuid, so that these programs do not work there. Where they do work, each " +
			"is a way to root in the container.",
		Remedy: "remove the bit if the program is not needed: chmod u-s,g-s FILE",
		look:   lookSetuid,
	},
	{
		ID: "files-world-writable", Severity: Warning,
		Title: "Files and directories that everybody may change",
		Why: "In a container that is shared or writable, any user can replace what others run. Directories for everybody need the sticky bit, " +
			"as /tmp has it.",
		Remedy: "chmod o-w FILE, or chmod +t for a directory that must stay open",
		look:   lookWorldWritable,
	},
	{
		ID: "files-unreadable", Severity: Warning,
		Title:  "Files that users cannot read",
		Why:    "In this runtime a user stays that user, and files of root that only root may read end in \"Permission denied\".",
		Remedy: "chmod -R a+rX DIRECTORY; software for all users belongs in /opt or /usr/local, not in /root",
		look:   lookUnreadable,
	},
	{
		ID: "files-devices", Severity: Note,
		Title:  "Device files in the image",
		Why:    "No runtime lets them be used: /dev is the host's. Extracting them without root fails or leaves them out.",
		Remedy: "remove them from the image",
		look:   lookDevices,
	},
	{
		ID: "files-caches", Severity: Note,
		Title:  "Caches of package managers",
		Why:    "Nothing reads them in a container; they only make the image larger to fetch and to store.",
		Remedy: "remove them in the step that makes them: pip --no-cache-dir, apt-get clean, conda clean -afy, uv cache clean",
		look:   lookCaches,
	},
	{
		ID: "files-static", Severity: Note,
		Title:  "Large static libraries",
		Why:    "Static libraries are read by linkers only. Those of the CUDA toolkit have several GB.",
		Remedy: "remove them, or take a runtime variant of the base image instead of the devel one, unless programs are compiled in the container",
		look:   lookStatic,
	},
	{
		ID: "files-secrets", Severity: Warning,
		Title:  "Keys and passwords in files",
		Why:    "Whoever may pull the image or read the file has them, also when a later layer removes the file.",
		Remedy: "revoke the secret; build the image anew without the file",
		look:   lookSecrets,
	},
}

// tally counts files under some heading.
type tally struct {
	name  string
	files int
	size  int64
}

// tallies are in the order of their first files.
type tallies struct{ list []*tally }

func (t *tallies) add(name string, size int64) {
	i := slices.IndexFunc(t.list, func(x *tally) bool { return x.name == name })
	if i < 0 {
		i = len(t.list)
		t.list = append(t.list, &tally{name: name})
	}
	t.list[i].files++
	t.list[i].size += size
}

// lines are the evidence, the largest first.
func (t *tallies) lines() []string {
	list := slices.Clone(t.list)
	slices.SortStableFunc(list, func(a, b *tally) int { return cmp.Compare(b.size, a.size) })
	var lines []string
	for _, x := range list {
		lines = append(lines, fmt.Sprintf("/%s: %s, %s", x.name, units.Number(x.files, "file"), units.Size(x.size)))
	}
	return lines
}

func (t *tallies) total() (files int, size int64) {
	for _, x := range t.list {
		files += x.files
		size += x.size
	}
	return files, size
}

// hides returns the directories that the target's runtime covers, without a slash in front. Links are followed.
func (s *Subject) hides() []string {
	var dirs []string
	switch {
	case s.Target.Runtime == cluster.Apptainer:
		dirs = append(dirs, runtimefiles.HiddenByApptainer...)
	case s.underEnroot():
		dirs = append(dirs, runtimefiles.HiddenByEnroot...)
	case s.Target.Runtime == cluster.Podman:
		dirs = append(dirs, runtimefiles.HiddenByAll...)
	}
	for _, d := range s.Target.Hides {
		dirs = append(dirs, strings.Trim(d, "/"))
	}
	var real []string
	for _, d := range dirs {
		name, err := s.Root.Resolve("/" + d)
		if name = strings.Trim(name, "/"); err == nil && name != "" && !slices.Contains(real, name) {
			real = append(real, name)
		}
	}
	return real
}

func lookHidden(s *Subject, report func(Finding)) error {
	dirs := s.hides()
	if len(dirs) == 0 {
		return nil
	}
	var found tallies
	for _, i := range s.Paths {
		if i.Type != layer.Regular || i.Size == 0 || runtimefiles.Harmless(i.Path) {
			continue
		}
		for _, d := range dirs {
			if strings.HasPrefix(i.Path, d+"/") {
				found.add(d, i.Size)
				break
			}
		}
	}
	if files, size := found.total(); files > 0 {
		report(Finding{
			Message: fmt.Sprintf("%s will hide %s of %s that the image has in %s", s.runtimeName(), units.Number(files, "file"), units.Size(size), found.names()),
			Seen:    found.lines(), Path: found.list[0].name,
		})
	}
	return nil
}

func (t *tallies) names() string {
	var names []string
	for _, x := range t.list {
		names = append(names, "/"+x.name)
	}
	return units.List(names, enough)
}

// usualSetuid are programs of distributions.
var usualSetuid = []string{
	"at", "chage", "chfn", "chsh", "crontab", "dbus-daemon-launch-helper", "dotlockfile", "expiry", "fusermount", "fusermount3", "gpasswd",
	"mail-lock", "mail-touchlock", "mail-unlock", "mount", "mount.nfs", "newgidmap", "newgrp", "newuidmap", "ntfs-3g", "pam_extrausers_chkpwd",
	"pam_timestamp_check", "passwd", "ping", "ping6", "pkexec", "polkit-agent-helper-1", "screen", "ssh-agent", "ssh-keysign", "su", "sudo",
	"sudoedit", "umount", "unix_chkpwd", "unix_update", "userhelper", "utempter", "wall", "write", "write.ul", "bsd-write", "traceroute6.iputils",
	"chrome-sandbox", "Xorg.wrap", "snap-confine", "pppd", "vmware-user-suid-wrapper", "locate", "plocate", "mlocate", "ch-run", "exim4",
}

// NothingToDo begins the remedy of what is found in nearly every image and asks for nothing: it is worth a line, and no more.
const NothingToDo = "nothing needs to be done"

func lookSetuid(s *Subject, report func(Finding)) error {
	var usual, other []string
	for _, i := range s.Paths {
		if i.Type != layer.Regular || i.Mode&0o6000 == 0 || i.Mode&0o111 == 0 {
			continue
		}
		line := fmt.Sprintf("/%s: mode %04o, user %d, group %d", i.Path, i.Mode&0o7777, i.UID, i.GID)
		system := !strings.HasPrefix(i.Path, "opt/") && !strings.HasPrefix(i.Path, "home/") && !strings.HasPrefix(i.Path, "usr/local/")
		if system && slices.Contains(usualSetuid, path.Base(i.Path)) {
			usual = append(usual, line)
		} else {
			other = append(other, line)
		}
	}
	if len(other) > 0 {
		report(Finding{
			Message: units.Number(len(other), "program") + " with setuid or setgid that no distribution brings", Seen: other,
			Path: strings.TrimPrefix(strings.SplitN(other[0], ":", 2)[0], "/"),
		})
	}
	if len(usual) > 0 {
		report(Finding{
			Severity: Note, Message: units.Number(len(usual), "program") + " of the distribution with setuid or setgid, such as su", Seen: usual,
			Remedy: NothingToDo + "; they do not work in a container that is started without root",
		})
	}
	return nil
}

func lookWorldWritable(s *Subject, report func(Finding)) error {
	var seen []string
	first := ""
	for _, i := range s.Paths {
		odd := i.Type == layer.Regular && i.Size > 0 || i.Type == layer.Dir && i.Mode&0o1000 == 0
		if !odd || i.Mode&0o002 == 0 || isVolatile(i.Path) {
			continue
		}
		if first == "" {
			first = i.Path
		}
		seen = append(seen, fmt.Sprintf("/%s: mode %04o", i.Path, i.Mode&0o7777))
	}
	if len(seen) > 0 {
		report(Finding{
			Message: fmt.Sprintf("everybody may write to %s, such as /%s", units.Number(len(seen), "object"), first),
			Path:    first, Seen: capped(seen),
		})
	}
	return nil
}

// isVolatile reports whether a path is in a directory for temporary files and devices.
func isVolatile(p string) bool {
	return slices.ContainsFunc([]string{"tmp", "var/tmp", "run", "dev", "proc", "sys", "var/lock", "var/crash"}, func(d string) bool { return isBelow(p, d) })
}

// maxSeen is how many lines of evidence a finding has.
const maxSeen = 20

func capped(lines []string) []string {
	if len(lines) <= maxSeen {
		return lines
	}
	return append(slices.Clone(lines[:maxSeen]), fmt.Sprintf("and %d more", len(lines)-maxSeen))
}

// usualPrivate is what distributions keep for root, and no program of a user needs. Of root's home only what an installer put
// there matters: the files that every home begins with do not.
var usualPrivate = lazyregexp.New(`^(tmp|run|dev|proc|sys|var|boot|lost\+found|root/\.[^/]*)(/|$)|` +
	`^etc/(g?shadow|(passwd|group|subuid|subgid)-|sudoers|ssl/private|security|polkit-1|ssh|\.pwd\.lock|crypt|cron|audit|at\.deny|cups|ppp|wpa_supplicant|NetworkManager|krb5|pam|` +
	`chatscripts|default/useradd|libaudit|selinux|firewalld|sssd|sysconfig)|^usr/(lib|libexec|share)/(dbus-1\.0|polkit-1|audit)(/|$)|^usr/lib/cups(/|$)`)

func lookUnreadable(s *Subject, report func(Finding)) error {
	r := s.Target.Runtime
	if r != cluster.Apptainer && r != cluster.ContainerEngine && r != cluster.Uenv {
		return nil
	}
	var found tallies
	var closed []string // directories that others may not enter
	for _, i := range s.Paths {
		in := slices.IndexFunc(closed, func(d string) bool { return strings.HasPrefix(i.Path, d+"/") })
		open := i.Mode&0o005 != 0 && (i.Type != layer.Dir || i.Mode&0o001 != 0)
		if in < 0 && open || i.Type == layer.Symlink || usualPrivate.MatchString(i.Path) {
			continue
		}
		switch {
		case i.Type == layer.Dir && in < 0 && i.Mode&0o001 == 0:
			closed = append(closed, i.Path)
		case i.Type == layer.Regular && i.Size > 0 && in >= 0:
			found.add(closed[in], i.Size)
		case i.Type == layer.Regular && i.Size > 0 && i.Mode&0o005 == 0:
			found.add(path.Dir(i.Path), i.Size)
		}
	}
	if files, size := found.total(); files > 0 {
		report(Finding{
			Message: fmt.Sprintf("users cannot read %s of %s in %s", units.Number(files, "file"), units.Size(size), found.names()),
			Path:    found.list[0].name, Seen: capped(found.lines()),
		})
	}
	return nil
}

func lookDevices(s *Subject, report func(Finding)) error {
	var seen []string
	for _, i := range s.Paths {
		if (i.Type == layer.Char || i.Type == layer.Block) && !isBelow(i.Path, "dev") {
			seen = append(seen, "/"+i.Path)
		}
	}
	if len(seen) > 0 {
		report(Finding{Message: "the image has " + units.Number(len(seen), "device file") + " outside /dev", Path: seen[0][1:], Seen: capped(seen)})
	}
	return nil
}

// caches are where package managers keep what they fetched.
var caches = lazyregexp.New(`^(((root|home/[^/]+)/\.(cache/(pip|uv|conda|huggingface|torch|ccache|bazel|go-build|yarn|mamba)|npm/_cacache|conda/pkgs|cargo/registry|nv/ComputeCache))|` +
	`var/cache/(apt|dnf|yum|apk|pacman|zypp)|var/lib/apt/lists|.*/(conda|mambaforge|miniforge3?|miniconda3?|anaconda3?|micromamba)/pkgs)/`)

// cacheOf returns the cache that a path is in. Most paths are in none, and the expression is slow.
func cacheOf(p string) string {
	if !strings.HasPrefix(p, "var/") && !strings.Contains(p, "/pkgs/") && !strings.HasPrefix(p, "root/.") && !strings.HasPrefix(p, "home/") {
		return ""
	}
	return strings.TrimSuffix(caches.FindString(p), "/")
}

// smallCache is the size in bytes below which a cache is not worth a word.
const smallCache = 5e6

func lookCaches(s *Subject, report func(Finding)) error {
	var found tallies
	for _, i := range s.Paths {
		if i.Type != layer.Regular {
			continue
		}
		if c := cacheOf(i.Path); c != "" {
			found.add(c, i.Size)
		}
	}
	if files, size := found.total(); size >= smallCache {
		report(Finding{
			Message: fmt.Sprintf("caches of package managers take %s in %s, in %s", units.Size(size), units.Number(files, "file"), found.names()),
			Path:    found.list[0].name, Seen: found.lines(),
		})
	}
	return nil
}

// largeStatic is the size in bytes from which a static library is worth a word, and manyStatic that of all together.
const (
	largeStatic = 10e6
	manyStatic  = 500e6
)

func isStatic(i facts.Info) bool {
	return i.Type == layer.Regular && i.Size >= largeStatic && strings.HasSuffix(i.Path, ".a")
}

func lookStatic(s *Subject, report func(Finding)) error {
	var found tallies
	for _, i := range s.Paths {
		if isStatic(i) {
			found.add(i.Path, i.Size)
		}
	}
	if files, size := found.total(); size >= manyStatic {
		lines := found.lines()
		report(Finding{
			Message: fmt.Sprintf("static libraries of more than %s take %s in %s", units.Size(largeStatic), units.Size(size), units.Number(files, "file")),
			Path:    found.list[0].name, Seen: capped(lines),
		})
	}
	return nil
}

// secretFile is a kind of file with secrets.
type secretFile struct {
	what    string
	name    *lazyregexp.Regexp // of the path, without a slash in front
	content *lazyregexp.Regexp // that makes it a secret
}

// maxSecret is the size in bytes of the largest file that is read.
const maxSecret = 64 << 10

var secretFiles = []secretFile{
	{
		"a private key", lazyregexp.New(`(^|/)(id_(rsa|dsa|ecdsa|ed25519)|ssh_host_[a-z0-9]+_key|[^/]*\.(key|pem|ppk))$`),
		lazyregexp.New(`-----BEGIN ([A-Z]+ )*PRIVATE KEY-----\s+[A-Za-z0-9+/]`),
	},
	{"a password", lazyregexp.New(`(^|/)[._]netrc$`), lazyregexp.New(`(?i)\bpassword\s+[^\s$]+`)},
	{
		"the password of a registry", lazyregexp.New(`(^|/)(\.docker/config\.json|\.dockercfg|containers/auth\.json)$`),
		lazyregexp.New(`"(auth|identitytoken|password)"\s*:\s*"[^"]+"`),
	},
	{
		"a password in a URL", lazyregexp.New(`(^|/)(pip\.conf|\.pip/pip\.conf|uv\.toml|\.condarc|\.pypirc|\.git-credentials|\.gitconfig|apt/(sources\.list|auth\.conf)(\.d/[^/]*)?)$`),
		credentials,
	},
	{"a password of a package index", lazyregexp.New(`(^|/)\.pypirc$`), lazyregexp.New(`(?m)^\s*password\s*[:=]\s*\S+`)},
	{"a token of Hugging Face", lazyregexp.New(`(^|/)(\.cache/huggingface|\.huggingface)/(token|stored_tokens)$`), lazyregexp.New(`hf_[A-Za-z0-9]{20,}`)},
	{"a key of AWS", lazyregexp.New(`(^|/)\.aws/credentials$`), lazyregexp.New(`(?i)aws_secret_access_key\s*=\s*\S+`)},
	{"a token of Weights & Biases", lazyregexp.New(`(^|/)\.config/wandb/settings$`), lazyregexp.New(`api_key\s*=\s*\S{20,}`)},
	{"a token of npm", lazyregexp.New(`(^|/)\.npmrc$`), lazyregexp.New(`_authToken\s*=\s*[^\s$]+`)},
	{"a token of Kubernetes", lazyregexp.New(`(^|/)\.kube/config$`), lazyregexp.New(`(?m)^\s*(token|client-key-data|password):\s*\S+`)},
}

// testData is where packages keep keys that are no secret.
var testData = lazyregexp.New(`(^|/)(tests?|testing|testdata|test_data|examples?|samples?|docs?|demos?|fixtures|snakeoil)(/|$)|snakeoil|/site-packages/|/dist-packages/|^usr/share/|^var/lib/dpkg/`)

// mayBeSecret is what names of files with secrets have in common. All expressions on all paths would take long.
func mayBeSecret(p string) bool {
	base := path.Base(p)
	switch path.Ext(base) {
	case ".key", ".pem", ".ppk", ".conf", ".json", ".toml", ".list":
		return true
	}
	begins := func(prefix string) bool { return strings.HasPrefix(base, prefix) }
	return begins(".") || begins("_netrc") || begins("id_") || begins("ssh_host_") || strings.Contains(p, "/.") || strings.Contains(p, "/apt/")
}

func secretKind(i facts.Info) []secretFile {
	if i.Type != layer.Regular || i.Size == 0 || i.Size > maxSecret || !mayBeSecret(i.Path) || testData.MatchString(i.Path) {
		return nil
	}
	var kinds []secretFile
	for _, k := range secretFiles {
		if k.name.MatchString(i.Path) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

func lookSecrets(s *Subject, report func(Finding)) error {
	for _, i := range s.Paths {
		kinds := secretKind(i)
		if kinds == nil {
			continue
		}
		text, err := s.readSmallFile(i.Path, maxSecret)
		if err != nil {
			return err
		}
		for _, k := range kinds {
			if at := k.content.Regexp().FindIndex(text); at != nil {
				line := 1 + bytes.Count(text[:at[0]], []byte("\n"))
				report(Finding{Message: fmt.Sprintf("/%s has %s, on line %d", i.Path, k.what, line), Path: i.Path})
				break
			}
		}
	}
	return nil
}
