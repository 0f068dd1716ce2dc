package rootemu

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var root = IDs{0, 0}

var allABIs = []abi{amd64ABI, i386ABI, arm64ABI}

// verdict runs the filter as the kernel would. The machine of package bpf reads big-endian numbers, as packets have them.
func verdict(t *testing.T, abis []abi, arch, number uint32, args ...uint32) uint32 {
	t.Helper()
	raw, err := program(abis, false)
	if err != nil {
		t.Fatal(err)
	}
	code := make([]bpf.Instruction, len(raw))
	for i, r := range raw {
		code[i] = r.Disassemble()
	}
	vm, err := bpf.NewVM(code)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[offNumber:], number)
	binary.BigEndian.PutUint32(data[offArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[offArgs+argSize*i:], a)
	}
	got, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(got)
}

func TestFilter(t *testing.T) {
	const x32 = 0x4000_0000
	for _, a := range allABIs {
		known := map[uint32]bool{}
		for _, c := range a.calls {
			if known[c.number] {
				t.Errorf("architecture %#x has call %d twice", a.arch, c.number)
			}
			known[c.number] = true
			want := uint32(unix.SECCOMP_RET_USER_NOTIF)
			args := []uint32{1, 2, 3}
			switch c.call {
			case callCapset:
				want = unix.SECCOMP_RET_ERRNO
			case callSetrlimit:
				want, args = unix.SECCOMP_RET_ERRNO, []uint32{rlimitLocks, 1}
			case callPrlimit:
				want, args = unix.SECCOMP_RET_ERRNO, []uint32{1, rlimitLocks, 4096}
			case callPrctl:
				args = []uint32{unix.PR_SET_KEEPCAPS, 1}
			case callOpen:
				args = []uint32{1, unix.O_CREAT | unix.O_RDWR, 0}
			case callOpenat:
				args = []uint32{1, 2, unix.O_CREAT | unix.O_EXCL}
			}
			if got := verdict(t, allABIs, a.arch, c.number, args...); got != want {
				t.Errorf("architecture %#x, call %d: %#x, want %#x", a.arch, c.number, got, want)
			}
			if got := verdict(t, allABIs, a.arch, c.number|x32, args...); got != unix.SECCOMP_RET_ALLOW {
				t.Errorf("architecture %#x, call %d of x32: %#x", a.arch, c.number, got)
			}
			if got := verdict(t, allABIs, unix.AUDIT_ARCH_S390X, c.number, args...); got != unix.SECCOMP_RET_ALLOW {
				t.Errorf("call %d of a foreign architecture: %#x", c.number, got)
			}
		}
		for n := range uint32(500) {
			if !known[n] && verdict(t, allABIs, a.arch, n) != unix.SECCOMP_RET_ALLOW {
				t.Errorf("architecture %#x, call %d is not let through", a.arch, n)
			}
		}
	}
}

// Files that are only read are the kernel's affair: it happens too often.
func TestFilterOfOpen(t *testing.T) {
	for _, flags := range []uint32{unix.O_RDONLY, unix.O_DIRECTORY | unix.O_CLOEXEC, unix.O_PATH} {
		if got := verdict(t, allABIs, unix.AUDIT_ARCH_X86_64, 257, 1, 2, flags); got != unix.SECCOMP_RET_ALLOW {
			t.Errorf("openat with flags %#o: %#x", flags, got)
		}
	}
}

// The rules are those of setuid(2), setreuid(2), setresuid(2) and setfsuid(2).
func TestIDs(t *testing.T) {
	user := ids{1, 1, 1, 1}
	for _, test := range []struct {
		name       string
		from       ids
		do         func(*ids, bool) error
		privileged bool
		want       ids
		err        error
	}{
		{"root becomes a user", ids{}, func(i *ids, p bool) error { return i.set(5, p) }, true, ids{5, 5, 5, 5}, nil},
		{"and cannot go back", user, func(i *ids, p bool) error { return i.set(0, p) }, false, user, unix.EPERM},
		{"not all the way", user, func(i *ids, p bool) error { return i.setRES(keep, 0, keep, p) }, false, user, unix.EPERM},
		{"nor by setreuid", user, func(i *ids, p bool) error { return i.setRE(0, keep, p) }, false, user, unix.EPERM},
		{"seteuid for a while", ids{}, func(i *ids, p bool) error { return i.setRES(keep, 5, keep, p) }, true, ids{0, 5, 0, 5}, nil},
		{"and back", ids{0, 5, 0, 5}, func(i *ids, p bool) error { return i.setRES(keep, 0, keep, p) }, false, ids{}, nil},
		{"setuid keeps the saved id of a user", ids{0, 5, 0, 5}, func(i *ids, p bool) error { return i.set(0, p) }, false, ids{}, nil},
		{"setreuid swaps", ids{1, 2, 2, 2}, func(i *ids, p bool) error { return i.setRE(2, 1, p) }, false, ids{2, 1, 1, 1}, nil},
		{"setreuid saves", ids{}, func(i *ids, p bool) error { return i.setRE(7, 8, p) }, true, ids{7, 8, 8, 8}, nil},
		{"setreuid of nothing", ids{1, 2, 3, 4}, func(i *ids, p bool) error { return i.setRE(keep, keep, p) }, false, ids{1, 2, 3, 2}, nil},
		{"-1 is no user", ids{}, func(i *ids, p bool) error { return i.set(keep, p) }, true, ids{}, unix.EINVAL},
		{"setfsuid", ids{}, func(i *ids, p bool) error { i.setFS(9, p); return nil }, true, ids{0, 0, 0, 9}, nil},
		{"setfsuid of a user", user, func(i *ids, p bool) error { i.setFS(0, p); return nil }, false, user, nil},
	} {
		got := test.from
		if err := test.do(&got, test.privileged); !errors.Is(err, test.err) || got != test.want {
			t.Errorf("%s: %v and %v, want %v and %v", test.name, got, err, test.want, test.err)
		}
	}
}

func TestIdentitiesAreBounded(t *testing.T) {
	all := newIdentities()
	for n := range uint32(maxIdentities) {
		for range 2 {
			number, err := all.numberOf(&identity{users: ids{n, n, n, n}})
			if err != nil || number != uint64(n) {
				t.Fatalf("identity %d has number %d (%v)", n, number, err)
			}
		}
	}
	if _, err := all.numberOf(&identity{users: ids{real: 1 << 20}}); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("one too many: %v", err)
	}
}

func TestSplitLast(t *testing.T) {
	for _, test := range []struct{ name, dir, base string }{
		{"a", ".", "a"},
		{"/a", "/", "a"},
		{"a/b", "a/", "b"},
		{"/a/b//", "/a/", "b//"},
		{"/", "/", "."},
		{"//", "/", "."},
		{"..", ".", ".."},
	} {
		if dir, base := splitLast(test.name); dir != test.dir || base != test.base {
			t.Errorf("splitLast(%q) = %q, %q, want %q, %q", test.name, dir, base, test.dir, test.base)
		}
	}
}

// fileAt describes a file as the supervisor does.
func fileAt(t *testing.T, dir, rel string) (file, *unix.Stat_t) {
	t.Helper()
	var st unix.Stat_t
	name := filepath.Join(dir, rel)
	if err := unix.Lstat(name, &st); err != nil {
		t.Fatal(err)
	}
	return file{inode{st.Dev, st.Ino}, generation(unix.AT_FDCWD, name, 0)}, &st
}

func TestOwners(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"given", "back", "device", "plain"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	var inside, o Owners
	chown := func(name string, ids IDs) {
		f, _ := fileAt(t, dir, name)
		if err := inside.chown(f, ids); err != nil {
			t.Fatal(err)
		}
	}
	chown("given", IDs{5, Unset})
	chown("given", IDs{Unset, 6})
	chown("back", IDs{5, 5})
	chown("back", root)
	chown("link", IDs{Unset, 7})
	device, _ := fileAt(t, dir, "device")
	if err := inside.mknod(device, unix.S_IFCHR, 0x103); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(inside.Entries())
	if err != nil {
		t.Fatal(err)
	}
	var entries []Entry
	if err := json.Unmarshal(text, &entries); err != nil {
		t.Fatal(err)
	}
	o.Add(entries)
	for name, want := range map[string]*Record{
		"given":  {IDs: IDs{5, 6}},
		"back":   {IDs: root},
		"link":   {IDs: IDs{Unset, 7}},
		"device": {IDs: IDs{Unset, Unset}, Device: unix.S_IFCHR, Rdev: 0x103},
		"plain":  nil,
	} {
		_, st := fileAt(t, dir, name)
		got, ok := o.Of(dir, name, st)
		if ok != (want != nil) || ok && !cmp.Equal(got, *want) {
			t.Errorf("%s: %v, %t, want %v", name, got, ok, want)
		}
	}
}

// An inode number that is used again for another file does not bring the record of the first.
func TestOwnersOfAnInodeUsedAgain(t *testing.T) {
	dir := t.TempDir()
	var o Owners
	for range 100 {
		if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		f, st := fileAt(t, dir, "f")
		if r, ok := o.Of(dir, "f", st); ok {
			t.Fatalf("a new file has the record %v", r)
		}
		if err := o.chown(f, IDs{5, 5}); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, "f")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRecordOwner(t *testing.T) {
	for _, test := range []struct{ record, without, want IDs }{
		{IDs{7, 8}, IDs{5, 6}, IDs{7, 8}},
		{IDs{7, Unset}, IDs{5, 6}, IDs{7, 6}},
		{IDs{Unset, Unset}, IDs{5, 6}, IDs{5, 6}},
		{root, IDs{5, 6}, root},
	} {
		if got := (Record{IDs: test.record}).Owner(test.without); got != test.want {
			t.Errorf("record %v of a file of %v: %v, want %v", test.record, test.without, got, test.want)
		}
	}
}
