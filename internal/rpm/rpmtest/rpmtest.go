// Package rpmtest makes RPM packages and repositories for tests, with real signatures, by rpmbuild, rpmsign, gpg and createrepo_c; and a
// small distribution, Testland, of this machine's own programs.
package rpmtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// Tools are the programs that it takes.
var Tools = []string{"rpm", "rpmbuild", "rpmsign", "rpmkeys", "gpg", "gpgconf", "createrepo_c", "ldd"}

// Package is a package to be built.
type Package struct {
	Name    string
	Version string // "" is 1
	Release string // "" is 1
	Head    string // more lines of the spec's beginning
	Payload string // how files are packed, as the macro _binary_payload has it; "" is gzip
	Install string // a shell script that puts files into the current directory, the package's root
	Files   string // lines of %files
	Scripts string // %pre, %post and others, or what else the spec has
}

// spec is the package's, with the absolute path of its script.
func (p Package) spec(script string) string {
	or := func(s, otherwise string) string {
		if s == "" {
			return otherwise
		}
		return s
	}
	return fmt.Sprintf(`%%global debug_package %%{nil}
%%global __os_install_post %%{nil}
%%global _build_id_links none
%%global _binary_payload %s
Name: %s
Version: %s
Release: %s
Summary: made for a test
License: none
%s
%%description
Made for a test.
%%install
mkdir -p %%{buildroot}
cd %%{buildroot}
. %s
%%files
%%defattr(-,root,root)
%s
%s
`, or(p.Payload, "w6.gzdio"), p.Name, or(p.Version, "1"), or(p.Release, "1"), p.Head, script, p.Files, p.Scripts)
}

// Build builds packages into dir.
func Build(t testing.TB, dir string, packages ...Package) {
	t.Helper()
	for _, tool := range Tools {
		tooltest.Path(t, tool)
	}
	work := t.TempDir()
	args := []string{
		"-bb", "--quiet", "--nodeps", "-D", "_topdir " + work, "-D", "_rpmdir " + dir, "-D", "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
		"-D", "_buildhost testland", "-D", "use_source_date_epoch_as_buildtime 1", "-D", "clamp_mtime_to_source_date_epoch 1",
	}
	for i, p := range packages {
		spec, script := filepath.Join(work, fmt.Sprintf("%d.spec", i)), filepath.Join(work, fmt.Sprintf("%d.sh", i))
		write(t, script, "set -e\numask 022\n"+p.Install)
		write(t, spec, p.spec(script))
		args = append(args, spec)
	}
	cmd := exec.CommandContext(t.Context(), "rpmbuild", args...)
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
	Run(t, cmd)
}

// Run runs a command, and ends the test if it fails.
func Run(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Signer signs with a key of its own.
type Signer struct {
	home string
	File string // the public key, as text
}

// NewSigner makes a key.
func NewSigner(t testing.TB) *Signer {
	t.Helper()
	for _, tool := range Tools {
		tooltest.Path(t, tool)
	}
	home, err := os.MkdirTemp("", "gpg-*") // sockets have short names
	if err != nil {
		t.Fatal(err)
	}
	s := &Signer{home: home, File: filepath.Join(t.TempDir(), "RPM-GPG-KEY-testland")}
	t.Cleanup(func() {
		_ = s.command("gpgconf", "--kill", "all").Run()
		os.RemoveAll(home)
	})
	Run(t, s.command("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", "Testland <t@example.org>", "rsa2048", "sign", "never"))
	Run(t, s.command("gpg", "--batch", "--quiet", "--armor", "--output", s.File, "--export"))
	return s
}

func (s *Signer) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "GNUPGHOME="+s.home)
	return cmd
}

// SignPackages signs the packages in a directory.
func (s *Signer) SignPackages(t testing.TB, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.rpm"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d packages in %s, %v", len(files), dir, err)
	}
	Run(t, s.command("rpmsign", append([]string{"-D", "__gpg " + tooltest.Path(t, "gpg"), "-D", "_gpg_name Testland", "-D", "_gpg_digest_algo sha256", "--addsign"}, files...)...))
}

// SignIndex signs the index of the repository in a directory.
func (s *Signer) SignIndex(t testing.TB, dir string) {
	t.Helper()
	index := filepath.Join(dir, "repodata/repomd.xml")
	os.Remove(index + ".asc")
	Run(t, s.command("gpg", "--batch", "--quiet", "--armor", "--detach-sign", index))
}

// Repository writes the lists of the packages in a directory. The directory is one from then on.
func Repository(t testing.TB, dir string, args ...string) {
	t.Helper()
	Run(t, exec.CommandContext(t.Context(), "createrepo_c", append([]string{"--quiet", "--set-timestamp-to-revision", "--revision", "1710000000", dir}, args...)...))
}

// programs of this machine that Testland has, by the package that brings them.
var programs = map[string][]string{
	"bash":      {"bash"},
	"coreutils": {"cat", "chmod", "chown", "cp", "head", "id", "ln", "ls", "mkdir", "mv", "rm", "sort", "stat", "touch", "true", "uname", "env", "readlink", "mktemp", "tr"},
	"grep":      {"grep"},
	"rpm":       {"rpm", "rpmdb", "rpmkeys"},
}

// libc are the libraries of the package glibc.
var libc = []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libresolv.so.2", "libutil.so.1"}

// Testland is a small distribution that runs: with a shell, rpm, users of its own, scripts, links, capabilities, and files that
// several packages share.
func Testland(t testing.TB) []Package {
	t.Helper()
	libraries := map[string]string{} // by name
	loader := ""
	for _, names := range programs {
		for _, name := range names {
			for line := range strings.Lines(Run(t, exec.CommandContext(t.Context(), "ldd", tooltest.Path(t, name)))) {
				words := strings.Fields(line)
				switch {
				case len(words) >= 3 && words[1] == "=>":
					libraries[words[0]] = words[2]
				case len(words) >= 1 && strings.HasPrefix(words[0], "/"):
					loader = words[0]
				}
			}
		}
	}
	var glibc, others strings.Builder
	install := func(b *strings.Builder, name, path string) {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			t.Fatal(err)
		}
		// The loader looks beside where Debian has its libraries.
		dir := filepath.Dir(strings.Replace(real, "/usr/", "/", 1))
		fmt.Fprintf(b, "mkdir -p ./usr%[1]s && cp -L %[2]s ./usr%[1]s/%[3]s\n", dir, real, name)
	}
	for name, path := range libraries {
		if slices.Contains(libc, name) {
			install(&glibc, name, path)
		} else {
			install(&others, name, path)
		}
	}
	fmt.Fprintf(&glibc, "mkdir -p ./usr%s && cp -L %s ./usr%s\n", filepath.Dir(loader), loader, loader)
	everything := "/usr"
	script := func(names []string) string {
		text := "mkdir -p usr/bin\n"
		for _, name := range names {
			text += "cp -L " + tooltest.Path(t, name) + " usr/bin/\n"
		}
		return text
	}
	return []Package{
		{
			Name: "filesystem", Version: "3",
			Install: `mkdir -p usr/bin usr/sbin usr/lib usr/lib64 etc var/log var/tmp var/lib root tmp run dev proc sys
ln -s usr/bin bin; ln -s usr/sbin sbin; ln -s usr/lib lib; ln -s usr/lib64 lib64; ln -s /run var/run`,
			Files: "/bin\n/sbin\n/lib\n/lib64\n/usr\n/etc\n%dir /var\n/var/run\n%dir /var/log\n%dir /var/lib\n%attr(1777,root,root) /var/tmp\n%attr(1777,root,root) /tmp\n" +
				"%attr(0700,root,root) /root\n/run\n%attr(0755,root,root) /dev\n%attr(0555,root,root) /proc\n%attr(0555,root,root) /sys",
		},
		{
			Name: "setup", Head: "BuildArch: noarch\nRequires: filesystem",
			Install: `mkdir -p etc
printf 'root:x:0:0:root:/root:/bin/sh\n' > etc/passwd; printf 'root:x:0:\n' > etc/group; printf 'root:*:19000::::::\n' > etc/shadow`,
			Files: "%config(noreplace) /etc/passwd\n%config(noreplace) /etc/group\n%attr(0000,root,root) %config(noreplace) /etc/shadow",
		},
		{Name: "glibc", Version: "2.36", Release: "9", Payload: "w3.zstdio", Head: "Requires: setup\nProvides: rtld(GNU_HASH)", Install: glibc.String(), Files: everything},
		{Name: "testlibs", Payload: "w2.xzdio", Install: others.String(), Files: everything},
		{Name: "bash", Version: "5.2", Head: "Provides: /bin/sh", Install: script(programs["bash"]) + "ln -s bash usr/bin/sh\n", Files: everything},
		{
			Name: "coreutils", Version: "9.1", Head: "Conflicts: coreutils-single\nProvides: /usr/bin/cat", Install: script(programs["coreutils"]) + "ln usr/bin/true usr/bin/yes\n", Files: everything,
		},
		{Name: "coreutils-single", Version: "9.1", Head: "BuildArch: noarch\nProvides: coreutils = 9.1\nConflicts: coreutils"},
		{Name: "grep", Version: "3.8", Install: script(programs["grep"]), Files: everything},
		{
			Name: "rpm", Version: "4.18.0", Head: "Requires: (bash >= 5 or zsh)", Install: script(programs["rpm"]) + `mkdir -p usr/lib/rpm/macros.d
cp -L /usr/lib/rpm/macros /usr/lib/rpm/rpmrc /usr/lib/rpm/rpmpopt-* usr/lib/rpm/
mkdir -p usr/lib/rpm/platform && cp -a /usr/lib/rpm/platform/"$(uname -m)"-linux usr/lib/rpm/platform/
printf '%%_dbpath /usr/lib/sysimage/rpm\n%%_db_backend sqlite\n' > usr/lib/rpm/macros.d/macros.testland
`, Files: everything,
		},
		{
			Name: "testland-release", Version: "7", Head: "BuildArch: noarch\nProvides: system-release = 7",
			Install: "mkdir -p etc/yum.repos.d\nprintf 'ID=testland\\nVERSION_ID=7\\nPRETTY_NAME=\"Testland 7\"\\n' > etc/os-release\n" +
				"printf '[testland]\\nname=x\\nbaseurl=https://testland.example.org/\\nenabled=1\\n' > etc/yum.repos.d/testland.repo\n",
			Files: "/etc/os-release\n%config(noreplace) /etc/yum.repos.d/testland.repo",
		},
		{
			Name: "daemon", Version: "2.0~rc1", Head: "Epoch: 1\nRequires(pre): coreutils, grep\nRequires: /etc/os-release\nRequires: (tools if bash)\nRecommends: never",
			Install: "mkdir -p usr/sbin var/lib/daemon var/log etc\ncp -L /bin/true usr/sbin/daemon\nprintf 'a = 1\\n' > etc/daemon.conf\nprintf x > etc/daemon.log\n",
			Files:   "%attr(4750,root,daemon) %caps(cap_net_raw=ep) /usr/sbin/daemon\n%attr(0750,daemon,daemon) %dir /var/lib/daemon\n%config(noreplace) /etc/daemon.conf\n%ghost /etc/daemon.log",
			Scripts: `%pre
grep -q ^daemon: /etc/group || echo 'daemon:x:77:' >> /etc/group
grep -q ^daemon: /etc/passwd || echo 'daemon:x:77:77::/:/bin/sh' >> /etc/passwd
%post
echo "$1 $(id -u)" > /var/lib/daemon/ran
chown daemon:daemon /var/lib/daemon/ran
echo written 2>/dev/null >/dev/null
touch /var/log/daemon.log
%posttrans -p <lua>
local f = io.open("/var/lib/daemon/lua", "w"); f:write("ran\n"); f:close()`,
		},
		{Name: "tools", Head: "BuildArch: noarch", Install: "mkdir -p usr/share/tools\necho 1 > usr/share/tools/a\nln usr/share/tools/a usr/share/tools/b\n", Files: "/usr/share/tools"},
		{Name: "never", Head: "BuildArch: noarch"},
		{Name: "tools", Version: "0.9", Head: "BuildArch: noarch"},
	}
}
