package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// installEverything installs packages whose scripts make users, give files away, set bits and capabilities, and become
// somebody else; changes what the base has of that kind; and has rpm and dnf do the like.
const installEverything = `set -e
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/fast # nothing here has to outlive a loss of power
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d # starts no services
again() { "$@" || { sleep 10; "$@"; } || { sleep 30; "$@"; }; } # a mirror has bad moments
again apt-get update -q
again apt-get install -qyd openssh-server postfix gcc ccache postgresql
apt-get install -qy openssh-server postfix gcc ccache postgresql
again apt-get install -qyd --no-install-recommends rpm dnf createrepo-c iputils-ping git sudo
apt-get install -qy --no-install-recommends rpm dnf createrepo-c iputils-ping git sudo

mv /usr/bin/passwd /usr/bin/passwd.real; chmod a-s /usr/bin/chsh; mv /usr/bin/ping /usr/bin/ping.real
cp -a /etc/shadow /etc/shadow.copy; cp -a /var/mail /var/mail.copy; sed -i s/x/x/ /etc/gshadow
tar -C / -cf - etc/ssh var/lib/postgresql run/sudo 2>/dev/null | tar -C /opt -xpf -
useradd -m -G mail builder; install -d -o builder -g mail -m 2775 /srv/team; : >/usr/bin/wall
su builder -c 'cd && touch mine && mkdir -p a/b && touch /srv/team/theirs && git init -q repository && cd repository &&
	git config user.email a@b && git config user.name c && git commit -q --allow-empty -m x && touch /etc/no' && exit 1
su builder -c 'pg=/usr/lib/postgresql/15/bin; $pg/initdb --no-sync -D ~/data >/dev/null && $pg/pg_ctl -D ~/data -o "-k /tmp" -w start >/dev/null && $pg/pg_ctl -D ~/data stop >/dev/null'

echo 'builder ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/builder; chmod 440 /etc/sudoers.d/builder
su builder -c 'sudo install -m 600 -o www-data /dev/null /etc/by-sudo; sudo -u postgres touch /tmp/x /var/lib/postgresql/mine'

mkdir -p /rpm && cd /rpm
cat >tool.spec <<'SPEC'
Name: tool
Version: 1
Release: 1
Summary: files that only root can make
License: none
BuildArch: noarch
Provides: /bin/sh
%description
%pre
getent group toolers >/dev/null || groupadd -r toolers
getent passwd tooler >/dev/null || useradd -r -g toolers -d /var/lib/tool -s /sbin/nologin tooler
%install
mkdir -p %{buildroot}/usr/bin %{buildroot}/var/lib/tool
echo x >%{buildroot}/usr/bin/tool; echo y >%{buildroot}/usr/bin/netter; echo z >%{buildroot}/var/lib/tool/data
%files
%attr(4750,tooler,toolers) /usr/bin/tool
%caps(cap_net_raw=ep) %attr(755,root,root) /usr/bin/netter
%dir %attr(2770,root,toolers) /var/lib/tool
%attr(640,tooler,toolers) /var/lib/tool/data
SPEC
sed 's/tool/other/g; s/netter/otherer/' tool.spec >other.spec
for p in tool other; do rpmbuild -bb --quiet --define "_topdir /rpm/build" $p.spec; done
mkdir repository; cp build/RPMS/noarch/*.rpm repository; createrepo_c -q repository
rpm --nodeps -i repository/tool-*.rpm
dnf -qy --releasever=1 --disablerepo='*' --repofrompath=here,file:///rpm/repository --nogpgcheck --setopt=install_weak_deps=0 install other
rm -rf /rpm /tmp/* /tmp/.s.*
`

// An ordinary user without subordinate ids builds what root builds: every file of the image has the same owner, mode,
// capabilities and type.
func TestOrdinaryUserInstallsAsRootDoes(t *testing.T) {
	begin(t)
	needRoot(t)
	p := newPlace(t, nil)
	p.must("copy", base(t).ref, "tar:"+p.path("base.tar"))
	if err := os.WriteFile(p.path("script"), []byte(installEverything), 0o644); err != nil {
		t.Fatal(err)
	}
	var byRoot, byUser map[string]string
	both := t.Run("installs", func(t *testing.T) { // beside each other, as this is the longest of all tests
		t.Run("root", func(t *testing.T) {
			t.Parallel()
			byRoot = installedByBuildah(t, p)
		})
		t.Run("an ordinary user", func(t *testing.T) {
			t.Parallel()
			byUser = installedByOrdinaryUser(t, p)
		})
	})
	if !both {
		return
	}
	if len(byRoot) < 10000 {
		t.Errorf("only %d files were installed", len(byRoot))
	}
	if diff := cmp.Diff(byRoot, byUser); diff != "" {
		t.Errorf("files (-root +ordinary user):\n%s", diff)
	}
}

// comparable leaves out what is not the image's, or differs from one run to the next.
func comparable(path, link string) bool {
	for _, dir := range []string{"dev", "proc", "sys"} { // those of the machine while the command runs
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return false
		}
	}
	if link == "ssl-cert-snakeoil.pem" { // named by a hash of a certificate with the machine's name
		return false
	}
	for _, name := range []string{
		"mnt/script", "etc/hosts", "etc/resolv.conf", "run/.containerenv", "run/secrets", // put there by who runs the command
	} {
		if path == name {
			return false
		}
	}
	for _, dir := range []string{
		"home/builder/repository/.git/objects/", // named by a hash with the time of the commit in it
		"home/builder/data/pg_wal/",             // as much as the server came to write
		"var/spool/postfix/maildrop/",           // what sudo writes to root where the host has no name, in files named by the time
		"var/lib/dnf/", "var/cache/dnf/",        // names with a hash of the time when the repository was made
	} {
		if strings.HasPrefix(path, dir) {
			return false
		}
	}
	return true
}

// installedByBuildah runs the script as real root, by another program.
func installedByBuildah(t *testing.T, p *place) map[string]string {
	t.Helper()
	storage := []string{"--storage-driver", "vfs", "--root", p.path("buildah"), "--runroot", p.path("buildah-run")}
	buildah := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(tooltest.Path(t, "buildah"), append(slices.Clone(storage), args...)...)
		var out, errOut bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errOut
		if err := cmd.Run(); err != nil {
			t.Fatalf("buildah %s: %v\n%s\n%s", args[0], err, tail(out.String()), tail(errOut.String()))
		}
		return strings.TrimSpace(out.String())
	}
	name := buildah("from", "scratch")
	defer buildah("rm", name)
	root := buildah("mount", name)
	if out, err := exec.Command("tar", "-C", root, "-xpf", p.path("base.tar"), "--numeric-owner", "--xattrs", "--xattrs-include=*", "--exclude=./dev/*").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	args := []string{"run", "--isolation", "chroot", "--volume", p.path("script") + ":/mnt/script:ro"}
	for _, e := range stepEnv {
		args = append(args, "--env", e)
	}
	buildah(append(args, name, "--", "bash", "/mnt/script")...)
	files := map[string]string{}
	err := filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		link, _ := os.Readlink(name)
		if err != nil || rel == "." || !comparable(rel, link) {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFSOCK {
			return nil // means nothing without the process that listens: it is in no layer
		}
		attr := make([]byte, 64)
		n, err := unix.Lgetxattr(name, "security.capability", attr)
		if err != nil {
			n = 0
		}
		files[rel] = attributes(st.Mode, int(st.Uid), int(st.Gid), unix.Major(st.Rdev), unix.Minor(st.Rdev), string(attr[:n]))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func tail(s string) string { return s[max(0, len(s)-4000):] }

func attributes(mode uint32, uid, gid int, major, minor uint32, capability string) string {
	text := fmt.Sprintf("%06o %d:%d", mode, uid, gid)
	if kind := mode & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK {
		text += fmt.Sprintf(" device %d:%d", major, minor)
	}
	if capability != "" {
		text += fmt.Sprintf(" capability %x", capability)
	}
	return text
}

var stepEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}

// stepHelper makes this program run the script as a step and print the files of the image.
const stepHelper = "SCONCE_TEST_STEP"

// installedByOrdinaryUser runs the script as a step.
func installedByOrdinaryUser(t *testing.T, root *place) map[string]string {
	t.Helper()
	p := newPlace(t, ordinary(t))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{self: "program", root.path("base.tar"): "base.tar", root.path("script"): "script"} {
		if err := copyFile(from, p.path(to)); err != nil {
			t.Fatal(err)
		}
	}
	p.own()
	cmd := exec.Command(p.path("program"))
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), stepHelper+"="+p.dir, "HOME="+p.home(), "TMPDIR="+p.tmp())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: p.user.uid, Gid: p.user.gid}}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, tail(errOut.String()))
	}
	var files map[string]string
	if err := json.Unmarshal(out.Bytes(), &files); err != nil {
		t.Fatal(err)
	}
	return files
}

func init() {
	sandbox.Init()
	if dir := os.Getenv(stepHelper); dir != "" {
		files, err := runStep(context.Background(), dir)
		if err == nil {
			err = json.NewEncoder(os.Stdout).Encode(files)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%+v\n", err, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func runStep(ctx context.Context, dir string) (map[string]string, error) {
	st, err := store.Open(ctx, filepath.Join(dir, "store"))
	if err != nil {
		return nil, err
	}
	defer st.Close()
	tar, err := os.Open(filepath.Join(dir, "base.tar"))
	if err != nil {
		return nil, err
	}
	defer tar.Close()
	plain := layer.Options{Compression: layer.None} // of what is looked at and thrown away
	base, err := layer.FromTar(ctx, st, tar, plain)
	if err != nil {
		return nil, err
	}
	runner := execop.Runner{Store: st, Layer: plain}
	changed, err := runner.Run(ctx, "install", []layer.Descriptor{base}, execop.Command{
		Args: []string{"bash", "/mnt/script"}, Env: stepEnv,
		Mounts: []execop.Mount{{Kind: execop.Bind, Target: "/mnt/script", Dir: filepath.Join(dir, "script"), ReadOnly: true}},
	})
	if err != nil {
		var f *execop.Failure
		if errors.As(err, &f) {
			return nil, fmt.Errorf("%w\n%s", err, strings.Join(f.Tail, "\n"))
		}
		return nil, err
	}
	tree, err := image.NewTree(ctx, st, []layer.Descriptor{base, changed})
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	return files, tree.Walk(func(n *image.Node) error {
		if comparable(n.Path, n.Link) {
			files[n.Path] = attributes(fileType[n.Type]|n.Mode, n.UID, n.GID, n.Major, n.Minor, n.Xattrs["security.capability"])
		}
		return nil
	})
}

var fileType = map[layer.Type]uint32{
	layer.Regular: unix.S_IFREG, layer.Dir: unix.S_IFDIR, layer.Symlink: unix.S_IFLNK, layer.Char: unix.S_IFCHR,
	layer.Block: unix.S_IFBLK, layer.Fifo: unix.S_IFIFO,
}
