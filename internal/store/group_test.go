package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/store"
)

// memberDir makes the test binary a member of the group whose store is in the directory named by it.
const memberDir = "SCONCE_TEST_MEMBER_DIR"

// actAsMember does one thing with a store, and prints what came of it.
func actAsMember(dir string, args []string) error {
	ctx := context.Background()
	unix.Umask(0o077) // the strictest that users have
	s, err := store.Open(ctx, dir)
	if err != nil {
		return err
	}
	defer s.Close()
	switch args[0] {
	case "put": // an image of one blob
		d, err := s.PutBlob([]byte(args[1]))
		if err == nil {
			err = s.PutImage(store.ImageRef{Name: args[1], Tag: "1", Digest: d}, []store.Digest{d})
		}
		return errors.Join(err, s.PutRecord("test", "made", []store.Digest{d}, args[1]))
	case "needs": // an image of a blob that is there
		d := store.DigestOf([]byte(args[1]))
		return s.PutImage(store.ImageRef{Name: d.Short(), Tag: "1", Digest: d}, []store.Digest{d})
	case "users":
		users, err := s.Users()
		for _, u := range users {
			fmt.Printf("%d %d images, needs %d, alone %d, brought %d\n", u.UID, len(u.Images), u.Needs, u.Alone, u.Blobs)
		}
		return err
	case "offer": // a blob that nobody needs
		_, err := s.PutBlob([]byte(args[1]))
		return err
	case "read":
		data, err := readAll(s, store.DigestOf([]byte(args[1])))
		fmt.Print(data)
		return err
	case "images":
		images, err := s.Images()
		for _, i := range images {
			fmt.Println(i.Name)
		}
		return err
	case "made":
		var text string
		_, err := s.GetRecord("test", "made", &text)
		fmt.Print(text)
		return err
	case "prune":
		r, err := s.Prune(ctx, store.PruneOptions{All: true})
		fmt.Print(r.Blobs)
		return err
	case "limit": // has all users, or with KeepWithin this one, keep within 2500 bytes
		r, err := s.Prune(ctx, store.PruneOptions{OfUser: most2500})
		fmt.Print(r.Blobs, r.Over)
		return err
	case "tidy":
		r, _, err := s.KeepWithin(ctx, store.Limits{Bytes: 1, OfUser: most2500})
		fmt.Print(r.Blobs, r.Over)
		return err
	case "verify":
		r, err := s.Verify(ctx, true)
		for _, d := range r.Damaged {
			fmt.Println(d.Problem, d.Removed)
		}
		return err
	case "readonly":
		fmt.Print(s.ReadOnly())
		return nil
	case "scribble":
		return scribbleInto(s)
	}
	return fmt.Errorf("no such act: %s", args[0])
}

func most2500(uid uint32) int64 {
	if uid == eve {
		return 0 // no limit
	}
	return 2500
}

func readAll(s *store.Store, d store.Digest) (string, error) {
	f, err := s.OpenBlob(d)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(f)
	return b.String(), err
}

// group is a store of a group in a test, with users who need no accounts.
type groupStore struct {
	dir, bin string
}

const (
	keeper = 64000
	ada    = 64001
	ben    = 64002
	eve    = 64003 // who means harm
	alien  = 64009 // who is not of the group
	gid    = 64100
)

// newGroup makes a store of a group, kept by an ordinary user or by root.
func newGroup(t *testing.T, by uint32) groupStore {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can be several users")
	}
	top, err := os.MkdirTemp("", "sconce-group-") // where every user may go
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	g := groupStore{dir: filepath.Join(top, "store"), bin: filepath.Join(top, "member")}
	self, err := os.ReadFile("/proc/self/exe")
	if err := errors.Join(err, os.Chmod(top, 0o755), os.WriteFile(g.bin, self, 0o755)); err != nil {
		t.Fatal(err)
	}
	old := unix.Umask(0o077)
	err = store.InitGroup(g.dir, gid)
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(g.dir, func(path string, _ fs.DirEntry, err error) error {
		st, statErr := os.Stat(path)
		if err = errors.Join(err, statErr); err != nil {
			return err
		}
		return errors.Join(os.Chown(path, int(by), -1), os.Chmod(path, st.Mode())) // chown takes setgid away
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (g groupStore) command(uid uint32, args ...string) *exec.Cmd {
	cmd := exec.Command(g.bin, args...)
	cmd.Dir = filepath.Dir(g.dir)
	cmd.Env = append(os.Environ(), memberDir+"="+g.dir)
	groups := []uint32{gid}
	if uid == alien {
		groups = nil
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
	return cmd
}

// try has a user do something.
func (g groupStore) try(uid uint32, args ...string) (string, error) {
	var out, complaint bytes.Buffer
	cmd := g.command(uid, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%d %v: %w: %s", uid, args, err, &complaint)
	}
	return out.String(), err
}

func (g groupStore) must(t *testing.T, uid uint32, args ...string) string {
	t.Helper()
	out, err := g.try(uid, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (g groupStore) blob(text string) string {
	d := store.DigestOf([]byte(text)).Hex()
	return filepath.Join(g.dir, "blobs-v1", "sha256", d[:2], d)
}

func (g groupStore) owner(t *testing.T, path string) uint32 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid
}

// Members share blobs, whatever their umask, and nothing that has to be taken on trust; what the keeper names is there for all.
func TestGroupSharesWhatProvesItself(t *testing.T) {
	for _, by := range []uint32{0, keeper} {
		g := newGroup(t, by)
		g.must(t, by, "put", "base")
		g.must(t, ada, "put", "adas")
		if out := g.must(t, ben, "read", "adas"); out != "adas" {
			t.Errorf("another member reads %q", out)
		}
		g.must(t, ben, "put", "adas") // the same bytes are not stored twice
		if owner := g.owner(t, g.blob("adas")); owner != ada {
			t.Errorf("the blob belongs to %d", owner)
		}
		if out := g.must(t, ben, "images"); out != "adas\nbase\n" {
			t.Errorf("ben's images, and the keeper's: %q", out)
		}
		if out := g.must(t, eve, "made"); out != "base" {
			t.Errorf("of all records a member believes %q, not the keeper's", out)
		}
		if out := g.must(t, ben, "made"); out != "adas" {
			t.Errorf("a member's own record goes behind the keeper's: %q", out)
		}
		if out := g.must(t, by, "images"); out != "base\n" {
			t.Errorf("the keeper's images: %q", out)
		}
		if _, err := g.try(alien, "images"); err == nil {
			t.Error("who is not of the group reads the store")
		}
		if err := os.Chmod(g.dir, 0o2755); err != nil { // opened for reading
			t.Fatal(err)
		}
		if err := store.InitGroup(g.dir, gid); err != nil { // root may, whoever keeps it; nothing changes
			t.Fatal(err)
		}
		if out := g.must(t, alien, "images") + g.must(t, alien, "readonly"); out != "base\ntrue" {
			t.Errorf("an open store says to others %q", out)
		}
	}
}

// Nothing of another's is used whose hash is wrong: not what was put there wrong, not what was changed later, not what leads elsewhere.
func TestGroupMemberWhoMeansHarm(t *testing.T) {
	g := newGroup(t, keeper)
	g.must(t, eve, "put", "good")
	g.must(t, ada, "read", "good")
	path := g.blob("good")
	spoilAs(t, path, "evil", eve)
	if out, err := g.try(ada, "read", "good"); err == nil || !strings.Contains(err.Error(), fmt.Sprint("which ", eve, " has put there")) {
		t.Errorf("a changed blob is read as %q: %v", out, err)
	}
	if _, err := g.try(ada, "put", "good"); err != nil { // it is only named: reading it tells
		t.Errorf("an image cannot be named: %v", err)
	}
	if out := g.must(t, ben, "verify"); !strings.Contains(out, "its hash is") || strings.Contains(out, "true") {
		t.Errorf("a member's verify says %q, and has removed it if that says true", out)
	}
	if out := g.must(t, keeper, "verify"); !strings.Contains(out, "true") {
		t.Errorf("the keeper's verify removes nothing: %q", out)
	}
	g.must(t, ada, "put", "good")
	if out := g.must(t, ben, "read", "good"); out != "good" {
		t.Errorf("read %q", out)
	}

	// Links, and directories in the way of others.
	secret := filepath.Join(filepath.Dir(g.dir), "secret")
	lock := filepath.Join(g.dir, "locks-v1", "x")
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o644), os.Symlink(secret, g.blob("wanted")), os.Lchown(g.blob("wanted"), eve, gid),
		os.Symlink(secret, lock), os.Lchown(lock, eve, gid)); err != nil {
		t.Fatal(err)
	}
	if out, err := g.try(ada, "read", "wanted"); err == nil {
		t.Errorf("a link is followed to %q", out)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(g.dir, "users-v1", "64042"), 0o777), os.Lchown(filepath.Join(g.dir, "users-v1", "64042"), eve, gid)); err != nil {
		t.Fatal(err)
	}
	if out, err := g.try(64042, "made"); err == nil || !strings.Contains(err.Error(), fmt.Sprint("belongs to ", eve)) {
		t.Errorf("a member works in a directory of another's: %q, %v", out, err)
	}

	// What the file system keeps from others.
	for _, args := range [][]string{{"rm", "-rf", g.blob("good")}, {"mv", filepath.Join(g.dir, "users-v1", fmt.Sprint(ada)), filepath.Join(g.dir, "users-v1", "gone")}} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: eve, Gid: eve, Groups: []uint32{gid}}}
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("%v works for another: %s", args, out)
		}
	}
}

// spoilAs changes a file as its owner can: with the times of before.
func spoilAs(t *testing.T, path, text string, uid uint32) {
	t.Helper()
	time.Sleep(20 * time.Millisecond) // the kernel's clock of files has moved on
	cmd := exec.Command("sh", "-c", `chmod u+w "$1" && touch -r "$1" "$1.times" && printf %s "$2" > "$1" && touch -r "$1.times" "$1" && chmod 0444 "$1" && rm "$1.times"`, "sh", path, text)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: []uint32{gid}}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// A blob that was hashed some seconds after it was written, when the clock of files has moved on, is not hashed again until it changes.
func TestGroupHashesOnce(t *testing.T) {
	g := newGroup(t, keeper)
	g.must(t, ada, "put", "old")
	g.must(t, ben, "read", "old")
	memo := filepath.Join(g.dir, "users-v1", fmt.Sprint(ben), "records-v1", "hashed")
	noted := func() bool {
		found, _ := filepath.Glob(filepath.Join(memo, "*", "*"))
		return len(found) > 0
	}
	for begin := time.Now(); !noted() && time.Since(begin) < 10*time.Minute; time.Sleep(200 * time.Millisecond) {
		g.must(t, ben, "read", "old")
	}
	if !noted() {
		t.Fatal("it is hashed each time")
	}
	spoilAs(t, g.blob("old"), "new", ada)
	if out, err := g.try(ben, "read", "old"); err == nil {
		t.Errorf("a blob that was hashed before it was changed is read as %q", out)
	}
}

// Prune looks at what all need and takes away what is one's own; the keeper's and root's takes all away that nobody needs.
func TestGroupPrune(t *testing.T) {
	g := newGroup(t, keeper)
	g.must(t, ada, "offer", "bens")
	g.must(t, ben, "put", "bens")
	g.must(t, ada, "offer", "nobodys")
	g.must(t, ben, "offer", "bens-unneeded")
	broken := filepath.Join(g.dir, "users-v1", fmt.Sprint(eve), "records-v1", "image", "xx", "xxx") // eve cannot stop anyone's prune
	g.must(t, eve, "images")
	if err := errors.Join(os.MkdirAll(filepath.Dir(broken), 0o755), os.WriteFile(broken, []byte("{"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if out := g.must(t, ada, "prune"); out != "1" {
		t.Errorf("ada's prune removes %s blobs", out)
	}
	for text, want := range map[string]bool{"bens": true, "nobodys": false, "bens-unneeded": true} {
		if _, err := os.Stat(g.blob(text)); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	if out := g.must(t, keeper, "prune"); out != "1" {
		t.Errorf("the keeper's prune removes %s blobs", out)
	}
	if out := g.must(t, ben, "read", "bens"); out != "bens" {
		t.Errorf("ben's image reads %q", out)
	}
}

// Of each user who has more than they may, what they used longest ago goes, never what an image of anybody needs; a member's own commands
// keep to the member's limit, and leave the others and the store's alone.
func TestGroupLimitsOfUsers(t *testing.T) {
	g := newGroup(t, keeper)
	blob := func(name byte) string { return strings.Repeat(string(name), 1000) }
	offer := func(uid uint32, names string) {
		for _, name := range []byte(names) {
			g.must(t, uid, "offer", blob(name))
		}
	}
	have := func() (names string) {
		for _, name := range []byte("abcdefghijkl") {
			if _, err := os.Stat(g.blob(blob(name))); err == nil {
				names += string(name)
			}
		}
		return names
	}
	offer(ada, "abcd")
	offer(ben, "ef")
	offer(eve, "ghij")
	for i, name := range []byte("abcd") {
		age(t, g.blob(blob(name)), time.Duration(5-i)*time.Hour)
	}
	g.must(t, ben, "put", "x") // three more bytes of ben's, and a record
	if out := g.must(t, keeper, "limit"); out != "2 []" || have() != "cdefghij" {
		t.Errorf("the keeper's prune says %q and leaves %s", out, have())
	}
	offer(ada, "k")
	age(t, g.blob(blob('c')), 3*time.Hour)
	if out := g.must(t, ben, "tidy"); out != "0 []" || have() != "cdefghijk" {
		t.Errorf("ben, who has little: %q, %s", out, have())
	}
	if out := g.must(t, ada, "tidy"); out != "1 []" || have() != "defghijk" {
		t.Errorf("ada, who has too much: %q, %s", out, have())
	}
	g.must(t, ada, "needs", blob('d'))
	g.must(t, ada, "needs", blob('k'))
	g.must(t, ben, "needs", blob('k'))
	offer(ada, "l")
	g.must(t, ben, "needs", blob('l'))
	if out := g.must(t, keeper, "limit"); !strings.Contains(out, fmt.Sprintf("0 [{%d 30", ada)) || have() != "defghijkl" {
		t.Errorf("what images need: %q, %s", out, have())
	}
	users := g.must(t, ben, "users")
	for _, want := range []string{
		fmt.Sprint(ada, " 2 images, needs 2000, alone 1000, brought 3000\n"),
		fmt.Sprint(ben, " 3 images, needs 2001, alone 1001, brought 2001\n"),
		fmt.Sprint(eve, " 0 images, needs 0, alone 0, brought 4000\n"),
	} {
		if !strings.Contains(users, want) {
			t.Errorf("users:\n%slack %q", users, want)
		}
	}
}

// Members who are killed while all write, and prune, harm nobody.
func TestGroupKilledAnywhere(t *testing.T) {
	g := newGroup(t, keeper)
	g.must(t, eve, "put", "stays")
	for round := range 6 {
		var running []*exec.Cmd
		for _, uid := range []uint32{ada, ben, keeper} {
			cmd := g.command(uid, "scribble")
			out, err := cmd.StdoutPipe()
			if err := errors.Join(err, cmd.Start()); err != nil {
				t.Fatal(err)
			}
			if _, err := out.Read(make([]byte, 1)); err != nil {
				t.Errorf("user %d does not begin: %v", uid, err)
			}
			running = append(running, cmd)
		}
		if round%2 == 1 { // waits until the others are dead
			cmd := g.command(ada, "prune")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
		}
		time.Sleep(time.Duration(10*round) * time.Millisecond)
		for _, cmd := range running {
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	for _, uid := range []uint32{ada, ben, keeper, 0} {
		if out := g.must(t, uid, "verify"); out != "" {
			t.Errorf("to %d the store is damaged: %s", uid, out)
		}
	}
	if out := g.must(t, eve, "read", "stays"); out != "stays" {
		t.Errorf("an image of who did nothing reads %q", out)
	}
	g.must(t, 0, "prune")
	if left, _ := filepath.Glob(filepath.Join(g.dir, "users-v1", "*", "tmp-v1", "*")); len(left) > 0 {
		t.Errorf("root's prune leaves what the killed left: %v", left)
	}
}

// A store of one user is not made a group's, and one that others read has their modes whatever the umask of who writes.
func TestModesWhateverTheUmask(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	s := open(t, dir)
	put(t, s, "blob")
	record(t, s, "key")
	if _, err := s.QuickTree(t.Context(), "tree", func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || strings.Contains(path, "tmp-v1") || strings.Contains(path, "locks-v1/") || strings.HasSuffix(path, ".size") {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode()&0o004 == 0 {
			t.Errorf("%s: %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := store.InitGroup(dir, os.Getgid()); err == nil {
		t.Error("a store of one user becomes a group's")
	}
}
