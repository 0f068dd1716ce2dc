package sandbox

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/child/childtest"
	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/store"
)

//go:embed testdata/calls.c
var callsSource string

// emulated returns options that run a script with root emulated, on top of busybox and testdata/calls.c.
func emulated(t *testing.T, script string) (Options, string) {
	t.Helper()
	if ownsFiles() {
		t.Skip("root needs no emulation")
	}
	layer := compile(t, "calls", callsSource)
	write(t, filepath.Join(layer, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nuser:x:70:71:user:/:/bin/sh\n")
	write(t, filepath.Join(layer, "etc/group"), "root:x:0:\nstaff:x:71:user\n")
	write(t, filepath.Join(layer, "old/file"), "of the image")
	for _, name := range []string{"chown", "chgrp", "chmod", "ln", "mkfifo", "mv", "sed", "su", "usleep", "xargs", "seq", "dirname"} {
		if err := os.Symlink("busybox", filepath.Join(layer, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	o := shell(t, script, layer)
	o.ScratchDir, o.UpperDir, o.Owners = "", t.TempDir(), &rootemu.Owners{}
	t.Cleanup(func() { store.RemoveAll(o.UpperDir) }) // where the caller was killed
	return o, filepath.Join(o.UpperDir, Upper)
}

// recorded describes what is in upper, by path: the owner, "-" for an id without a record, and the device.
func recorded(t *testing.T, o *rootemu.Owners, upper string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(upper, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(upper, name)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		if r, ok := o.Of(upper, rel, &st); ok {
			found[rel] = describe(r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func describe(r rootemu.Record) string {
	text := strings.ReplaceAll(fmt.Sprintf("%d:%d", r.UID, r.GID), "-1", "-")
	switch r.Device {
	case unix.S_IFCHR:
		text += fmt.Sprintf(" c%d.%d", unix.Major(r.Rdev), unix.Minor(r.Rdev))
	case unix.S_IFBLK:
		text += fmt.Sprintf(" b%d.%d", unix.Major(r.Rdev), unix.Minor(r.Rdev))
	}
	return text
}

// wantRecords runs o and compares what it printed and recorded.
func wantRecords(t *testing.T, o Options, upper, output string, want map[string]string) {
	t.Helper()
	wantOutput(t, o, output)
	if diff := cmp.Diff(want, recorded(t, o.Owners, upper)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

func TestOwnersAreRecorded(t *testing.T) {
	o, upper := emulated(t, `cd /root
touch file && chown 5:6 file
mkdir dir && chgrp 9 dir
ln -s nowhere link && chown -h 7:8 link
mkfifo fifo && chown 70 fifo
chown user:staff /old/file
touch a && chown 1:1 a && mv a b && ln b c          # follows the file
touch d && chown 1:1 d && rm d && touch d           # and ends with it
mkdir -p deep/er && cd deep/er && touch f && chown 2:2 ../er/./f && cd /root && mv deep deeper
touch give && chown 3:3 give && chown 0:0 give
touch over && chown 4:4 over && echo x >new && chown 0:0 new && mv new over
touch mode && chmod 6755 mode && chown 0 mode && stat -c %a mode && chmod 6755 mode && stat -c %a mode
stat -c %u:%g file
chown 1:1 missing 2>/dev/null || echo no such file
chown 1:1 link 2>/dev/null || echo nowhere
chown 1:1 /dev/null && chown 1:1 /proc/self/fd/1 && echo the host\'s, but no matter
`)
	wantRecords(t, o, upper, "755\n6755\n5:6\nno such file\nnowhere\nthe host's, but no matter\n", map[string]string{
		"root/file": "5:6", "root/dir": "0:9", "root/link": "7:8", "root/fifo": "70:0", "old/file": "70:71",
		"root/b": "1:1", "root/c": "1:1", "root/deeper/er/f": "2:2", "root/give": "0:0", "root/over": "0:0", "root/mode": "0:0", // busybox asks for the id that it knows when only one is to change
	})
}

func TestDevicesAreRecorded(t *testing.T) {
	o, upper := emulated(t, `cd /root && umask 027
mknod null c 1 3 && mknod disk b 259 1048575 && mknod pipe p && chown 5:6 disk
mknod null c 1 3 2>/dev/null || echo exists
mknod missing/null c 1 3 2>/dev/null || echo no directory
mknod slash/ c 1 3 2>/dev/null || echo no directory
mknod whiteout c 0 0
stat -c '%F %a' null disk pipe
mknod /dev/extra c 1 3 && echo in a directory that is in no layer
`)
	wantRecords(t, o, upper,
		"exists\nno directory\nno directory\ncharacter special file 640\nblock special file 640\nfifo 640\nin a directory that is in no layer\n",
		map[string]string{"root/null": "-:- c1.3", "root/disk": "5:6 b259.1048575", "root/whiteout": "-:- c0.0"})
}

func TestIdentities(t *testing.T) {
	o, upper := emulated(t, `id
su user -c 'id; sh -c id & wait; chown 9:9 /tmp/x 2>/dev/null || echo refused; su root -c id 2>&1 | head -n1'
id -u`)
	o.Args[2] = "touch /tmp/x; " + o.Args[2]
	root, user := "uid=0(root) gid=0(root) groups=0(root)\n", "uid=70(user) gid=71(staff) groups=71(staff)\n"
	wantRecords(t, o, upper, root+user+user+"refused\nsu: must be suid to work properly\n0\n", map[string]string{})
}

// What is made by who has become somebody else belongs to that one.
func TestFilesOfOthers(t *testing.T) {
	o, upper := emulated(t, `cd /root; chmod 777 .; touch before
mkdir shared && chown 5:6 shared && chmod 2777 shared && mkdir plain && chmod 2777 plain
su user -c 'umask 027
	echo x >file; echo x >>before || echo refused; mkdir dir; ln -s nowhere link; mkfifo fifo; mknod device c 1 3
	mv file renamed; ln renamed name; sed -i s/x/y/ renamed; cat renamed; stat -c %a renamed dir fifo
	echo x >shared/a; mkdir shared/b; echo x >plain/a
	chown 0:0 dir; chgrp 71 dir; set -C; echo new >only; echo again >only || echo is there; set +C
	echo x >nowhere/x || echo no directory; echo x >/dev/shm/x; echo x >link; cat nowhere; test -O file || echo moved' 2>/dev/null
touch after`)
	wantRecords(t, o, upper, "refused\ny\n640\n750\n640\nis there\nno directory\nx\nmoved\n", map[string]string{
		"root/renamed": "70:71", "root/name": "70:71", "root/dir": "70:71", "root/link": "70:71", "root/fifo": "70:71",
		"root/device": "-:- c1.3", "root/shared": "5:6", "root/shared/a": "70:6", "root/shared/b": "70:6", "root/plain/a": "70:0",
		"root/only": "70:71",
	})
}

// A command may start as somebody else than root.
func TestInitialIdentity(t *testing.T) {
	o, upper := emulated(t, `id; id -u; sh -c 'id -G'; touch /home/file; mkdir /home/dir; chown 9:9 /home/file 2>/dev/null || echo refused`)
	home := filepath.Join(o.Layers[1], "home")
	if err := errors.Join(os.Mkdir(home, 0o777), os.Chmod(home, 0o777)); err != nil {
		t.Fatal(err)
	}
	o.UID, o.GID, o.Groups = 70, 71, []int{71, 80}
	wantRecords(t, o, upper, "uid=70(user) gid=71(staff) groups=71(staff),80\n70\n71 80\nrefused\n",
		map[string]string{"home/file": "70:71", "home/dir": "70:71"})
	o, _ = emulated(t, `sed -n 's/^[UG]id:.//p; s/^Groups:.//p' /proc/self/status; sed -n 's/Uid/uid/p' </proc/$$/status; test $(wc -l </proc/self/status) -gt 20`)
	o.UID, o.GID, o.Groups = 70, 71, []int{71, 80}
	wantOutput(t, o, "70\t70\t70\t70\n71\t71\t71\t71\n71 80 \nuid:\t70\t70\t70\t70\n")
	o, upper = emulated(t, `id -u; id -g; touch /root/file`)
	o.GID = 71
	wantRecords(t, o, upper, "0\n71\n", map[string]string{"root/file": "0:71"})
}

// stat(2) shows what was asked for, and what files of the image had that an ordinary user has unpacked.
func TestStatShowsOwners(t *testing.T) {
	o, _ := emulated(t, `cd /root; touch f; chown 5:6 f; mkdir d; chown 7:8 d; ln -s f l; chown -h 9:10 l; touch u
stat -c '%n %u:%g %a' f d l u /old/file; stat -L -c %u l; stat -L -c %u:%g /dev/stdin <f; cp -a f g; stat -c %u:%g g
mv /old/file h; stat -c %u:%g:%a h; chown 0:0 h; stat -c %u:%g h; stat -c %u:%g:%a /old/closed`)
	for _, name := range []string{"cp"} {
		if err := os.Symlink("busybox", filepath.Join(o.Layers[1], "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(o.Layers[1], "old/closed"), "x")
	for name, value := range map[string]string{"old/file": "70 71 4755 0 ", "old/closed": "70 0 40 0 "} {
		name = filepath.Join(o.Layers[1], name)
		if err := errors.Join(os.Chmod(name, os.ModeSetuid|0o755), unix.Setxattr(name, "user.sconce.original", []byte(value), 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(o.Layers[1], "old/closed"), 0o440); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, o, "f 5:6 644\nd 7:8 755\nl 9:10 777\nu 0:0 644\n/old/file 70:71 4755\n5\n5:6\n5:6\n70:71:4755\n0:0\n70:0:40\n")
}

// Who is not root may do what owners and modes of files permit.
func TestPermissions(t *testing.T) {
	o, _ := emulated(t, `cd /root; chmod 755 .; mkdir own team; chown 70 own; chgrp 71 team; chmod 775 team
echo x >roots; echo x >theirs; chown 70:71 theirs; chmod 600 theirs; echo x >teams; chgrp 71 teams; chmod 660 teams
su user -c '
for f in roots theirs teams own team . missing; do
	for how in r w; do test -$how $f && echo $f -$how; done
done
for f in roots theirs teams; do echo y >>$f && echo wrote $f; done
for d in own team .; do touch $d/new && echo made $d/new; mkdir $d/sub && echo made $d/sub; ln -s x $d/link && echo made $d/link; done
chgrp 71 own/new && echo gave; chgrp 5 own/new || chown 70 roots || echo kept' 2>/dev/null`)
	wantOutput(t, o, "roots -r\ntheirs -r\ntheirs -w\nteams -r\nteams -w\nown -r\nown -w\nteam -r\nteam -w\n. -r\nwrote theirs\nwrote teams\n"+
		"made own/new\nmade own/sub\nmade own/link\nmade team/new\nmade team/sub\nmade team/link\ngave\nkept\n")
}

// Programs with the setuid or setgid bit run as their owner.
func TestSetuidPrograms(t *testing.T) {
	o, _ := emulated(t, `cd /bin; for n in root mail group; do cat calls >$n; chmod 755 $n; done
chmod 4755 root; chown 8 mail; chmod 4755 mail; chgrp 9 group; chmod 2755 group
su user -c 'calls whoami; root whoami; mail whoami; group whoami'; root whoami`)
	wantOutput(t, o, "70 70 71 71\n70 0 71 71\n70 8 71 71\n70 70 71 9\n0 0 0 0\n")
}

// Each call under each of its numbers, of threads, after vfork, in another root, by every way to name a file.
func TestEveryCall(t *testing.T) {
	for _, test := range []struct {
		args    string
		records map[string]string
	}{
		{"native", map[string]string{
			"root/chown": "10:20", "root/lchown": "11:21", "root/fchown": "12:22", "root/fchownat": "13:23", "root/link": "14:24",
			"root/empty": "15:25", "root/follow": "16:26", "root/magic": "17:27", "root/mknod": "-:- c1.5", "root/mknodat": "-:- b7.1",
		}},
		{"i386", map[string]string{
			"root/chown": "10:20", "root/lchown": "11:21", "root/chown16": "12:-", "root/fchownat": "13:23", "root/fchown": "14:24",
			"root/mknod": "-:- c1.5",
		}},
		{"identity", map[string]string{}},
		{"keep", map[string]string{}},
		{"stats", map[string]string{"root/file": "70:71"}},
		{"vfork", map[string]string{"root/vfork": "30:31"}},
		{"chroot", map[string]string{"root/jail/a": "40:41", "root/jail/b": "42:43", "root/jail/c": "44:45"}},
		{"threads", nil},
		{"exclusive", map[string]string{}},
		{"bad", map[string]string{}},
	} {
		t.Run(test.args, func(t *testing.T) {
			o, upper := emulated(t, "")
			o.WorkDir, o.Args = "/root", []string{"calls", test.args}
			code, out := run(t, o)
			if strings.HasPrefix(out, "skip") {
				t.Skipf("this kernel has no such call: %s", out)
			}
			if code != 0 {
				t.Errorf("exit code %d:\n%s", code, out)
			}
			got := recorded(t, o.Owners, upper)
			if test.args == "threads" { // 8 times 250 files, the owner is the number
				test.records = map[string]string{}
				for i := range 2000 {
					test.records[fmt.Sprintf("root/%d", i)] = fmt.Sprintf("%d:%d", i, i+1)
				}
			}
			if diff := cmp.Diff(test.records, got); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}

// Processes that are killed while they wait for an answer, and more of them than there is time for, harm nobody else.
func TestKilledWhileEmulated(t *testing.T) {
	o, upper := emulated(t, `cd /root; touch f g
for i in 1 2 3 4 5 6 7 8; do (while :; do chown 1:1 f; mknod n c 1 3; rm -f n; done) 2>/dev/null & done
for i in 1 2 3 4 5 6 7 8 9 10; do (seq 1000 | xargs -n 1 chown 2:2 f & p=$!; usleep 50000; kill -9 $p) 2>/dev/null; done
kill -9 -1 2>/dev/null & chown 5:6 g; echo alive; exit 3`)
	code, out := run(t, o)
	if code != 3 && code != 128+9 { // kill -1 spares init, but not always the shell
		t.Errorf("exit code %d: %s", code, out)
	}
	if got := recorded(t, o.Owners, upper)["root/g"]; out == "alive\n" && got != "5:6" {
		t.Errorf("g has the record %q", got)
	}
}

// When the caller is killed nobody waits for an answer for ever.
func TestEmulationEndsWithTheCaller(t *testing.T) {
	marker := fmt.Sprint("87655.", os.Getpid())
	o, _ := emulated(t, "exec 2>/dev/null; touch f; echo ready; while :; do chown 1:1 f; done & while chown 2:2 f; do :; done & sleep "+marker)
	cmd := helperCommand(t, "run", o)
	startHelper(t, cmd)
	childtest.Eventually(t, "start", func() bool { return len(processesWith(t, marker)) > 0 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	childtest.Eventually(t, "end of all processes", func() bool { return len(processesWith(t, marker)) == 0 })
}

// In a container parts of /proc are covered, and the /proc that is there numbers processes differently.
func TestEmulationWithCoveredProc(t *testing.T) {
	o, upper := emulated(t, "cd /root; umask 077; touch f; chown 5:6 f; mknod d c 1 3; stat -c %a d; su user -c 'id -u'")
	cmd := helperCommand(t, "covered", o)
	cmd.Env = append(cmd.Env, recordsEnv+"="+upper)
	inUserNamespace(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "600\n70\nroot/d -:- c1.3\nroot/f 5:6\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// recordsEnv makes the helper print the records of the directory that it names.
const recordsEnv = "SCONCE_TEST_RECORDS"

func printRecords(o *rootemu.Owners) {
	upper := os.Getenv(recordsEnv)
	if upper == "" {
		return
	}
	found := recorded(&testing.T{}, o, upper)
	var names []string
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Println(name, found[name])
	}
}
