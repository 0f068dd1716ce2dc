package sandbox

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/tooltest"
	"sconce.dev/sconce/internal/users"
)

// needEmulator skips on a machine that is not amd64, or cannot have an emulator of arm64 for a sandbox.
func needEmulator(t *testing.T) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("this machine is no amd64")
	}
	if onMachine("arm64") {
		t.Skip("this machine has an emulator registered for everybody")
	}
	tooltest.Path(t, "qemu-aarch64-static")
	if host.ReleaseBefore(host.KernelRelease(), foreignRelease) {
		tooltest.Missing(t, "a kernel from Linux %s on", foreignRelease)
	}
}

// armProgram is a program for arm64, without a library: it gives the file /mine to user 33 and group 44, prints "arm64" and ends with code 7.
// When the file cannot be given away it ends with the error, negative.
func armProgram() []byte {
	code := []uint32{
		0x92800c60, // mov  x0, #-100: AT_FDCWD
		0x100001e1, // adr  x1, path
		0xd2800422, // mov  x2, #33
		0xd2800583, // mov  x3, #44
		0xd2800004, // mov  x4, #0
		0xd28006c8, // mov  x8, #54: fchownat
		0xd4000001, // svc  #0
		0xb50000e0, // cbnz x0, end
		0xd2800020, // mov  x0, #1
		0x10000121, // adr  x1, text
		0xd28000c2, // mov  x2, #6
		0xd2800808, // mov  x8, #64: write
		0xd4000001, // svc  #0
		0xd28000e0, // mov  x0, #7
		0xd2800ba8, // end: mov x8, #93: exit
		0xd4000001, // svc  #0
	}
	const headers, address = 64 + 56, 0x400000
	data := "/mine\x00\x00\x00" + "arm64\n"
	size := uint64(headers + 4*len(code) + len(data))
	file := bytes.NewBufferString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	for _, v := range []any{
		uint16(elf.ET_EXEC), uint16(elf.EM_AARCH64), uint32(elf.EV_CURRENT), uint64(address + headers), uint64(64), uint64(0), uint32(0),
		[]uint16{64, 56, 1, 64, 0, 0},
		uint32(elf.PT_LOAD), uint32(elf.PF_R | elf.PF_X), uint64(0), uint64(address), uint64(address), size, size, uint64(0x1000),
		code, []byte(data),
	} {
		_ = binary.Write(file, binary.LittleEndian, v)
	}
	return file.Bytes()
}

// armImage is an image with that program, and with a shell of this machine.
func armImage(t *testing.T) []string {
	t.Helper()
	arm := filepath.Join(t.TempDir(), "arm")
	write(t, filepath.Join(arm, "bin/arm"), string(armProgram()))
	if err := os.Chmod(filepath.Join(arm, "bin/arm"), 0o755); err != nil {
		t.Fatal(err)
	}
	return []string{busyboxLayer(t), arm}
}

// A program for another architecture runs by an emulator that is on PATH, which nobody has registered with this machine: in a step its
// calls are root's, and programs of this machine run as well.
func TestForeignPrograms(t *testing.T) {
	needEmulator(t)
	if err := CheckArchitecture("arm64"); err != nil {
		t.Fatal(err)
	}
	before := registered(t)
	var out bytes.Buffer
	var owners rootemu.Owners
	dir := t.TempDir()
	o := Options{
		Layers: armImage(t), Arch: "arm64", Args: []string{"sh", "-c", `touch /mine; arm; echo "$?"; (: >/proc/sys/vm/swappiness) || echo refused`}, Env: []string{"PATH=/bin"},
		UpperDir: dir, Owners: &owners, NoMounts: true, NoNetwork: true, MaxProcesses: DefaultProcesses(), Stdout: &out,
	}
	if code, err := Run(t.Context(), o); code != 0 || err != nil || out.String() != "arm64\n7\nrefused\n" {
		t.Fatalf("code %d, %v: %q", code, err, out.String())
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, Upper, "mine"), &st); err != nil {
		t.Fatal(err)
	}
	given := rootemu.IDs{UID: int(st.Uid), GID: int(st.Gid)}
	if !ownsFiles() {
		r, _ := owners.Of(filepath.Join(dir, Upper), "mine", &st)
		given = r.Owner(given)
	}
	if want := (rootemu.IDs{UID: 33, GID: 44}); given != want {
		t.Errorf("the file belongs to %v, want %v", given, want)
	}
	o.Args, o.UpperDir, o.Owners = []string{"arm"}, "", nil
	if code, err := Run(t.Context(), o); code&^0xff != 0 || code == 0 || err != nil { // ENOENT: there is no file to give away
		t.Errorf("as the command itself: code %d, %v", code, err)
	}
	if after := registered(t); after != before {
		t.Errorf("on the machine: %q, and then %q", before, after)
	}
}

// registered lists the emulators of this machine.
func registered(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("/proc/sys/fs/binfmt_misc")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// Without an emulator the error says what is missing; one that needs libraries is none, as they are not in the image.
func TestForeignProgramsWithoutAnEmulator(t *testing.T) {
	needEmulator(t)
	image, dir := armImage(t), t.TempDir()
	o := Options{Layers: image, Arch: "arm64", Args: []string{"/bin/arm"}}
	t.Setenv("PATH", dir)
	refused := func(t *testing.T, want string) {
		t.Helper()
		code, err := Run(t.Context(), o)
		if code != codeNotExecutable || !errors.Is(err, unix.ENOEXEC) {
			t.Errorf("code %d, %v", code, err)
		}
		for _, err := range []error{err, CheckArchitecture("arm64")} {
			if !strings.Contains(fmt.Sprint(err), "programs for linux/arm64 do not run on this machine, which is linux/amd64") || !strings.Contains(fault.HintOf(err), want) {
				t.Errorf("%v\nhint: %s", err, fault.HintOf(err))
			}
		}
	}
	refused(t, "put qemu-aarch64-static on PATH, of Debian's package qemu-user-static")
	if err := os.Symlink(testDynamic(t), filepath.Join(dir, "qemu-aarch64-static")); err != nil {
		t.Fatal(err)
	}
	refused(t, "/qemu-aarch64-static is not linked statically")
	if err := CheckArchitecture("riscv64"); !strings.Contains(fault.HintOf(err), "a machine of that kind") {
		t.Errorf("%v\nhint: %s", err, fault.HintOf(err))
	}
}

// testDynamic is a program of this machine that needs libraries.
func testDynamic(t *testing.T) string {
	t.Helper()
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil || isStatic(sh) {
		t.Skipf("/bin/sh is linked statically: %v", err)
	}
	return sh
}

// The tasks of the host's root have a sandbox without a user name space, and so without an emulator. Those of others have one.
func TestForeignTasks(t *testing.T) {
	needEmulator(t)
	h, err := Hold(t.Context(), Options{Layers: armImage(t), Arch: "arm64"})
	if err == nil {
		h.Close()
	}
	if root := ownsFiles(); root != errors.Is(err, unix.ENOEXEC) || !root && err != nil || root && !strings.Contains(fault.HintOf(err), "binfmt_misc") {
		t.Errorf("%v\nhint: %s", err, fault.HintOf(err))
	}
}

// Who runs as himself has nobody in the sandbox whose list of emulators it could be, and is told so.
func TestForeignProgramsAsOneself(t *testing.T) {
	needEmulator(t)
	if os.Getuid() == 0 {
		t.Skip("for an ordinary user")
	}
	o := Options{Layers: armImage(t), Arch: "arm64", Args: []string{"/bin/arm"}, Self: &users.Account{Name: "ada", Group: "ada", UID: os.Getuid(), GID: os.Getgid(), Home: "/"}}
	if h, err := Hold(t.Context(), o); !errors.Is(err, unix.ENOEXEC) || !strings.Contains(fault.HintOf(err), "--user root") {
		t.Errorf("held: %v, %v\nhint: %s", h, err, fault.HintOf(err))
	}
	if _, err := Run(t.Context(), o); !errors.Is(err, unix.ENOEXEC) || !strings.Contains(fault.HintOf(err), "--user root") {
		t.Errorf("%v\nhint: %s", err, fault.HintOf(err))
	}
}

// The emulator is a file of the host, and the program of all that it runs. It cannot be changed through that.
func TestEmulatorIsNotChanged(t *testing.T) {
	needEmulator(t)
	dir := t.TempDir() // of who runs the test, as a user's own emulator is
	copyFile(t, tooltest.Path(t, "qemu-aarch64-static"), filepath.Join(dir, "qemu-aarch64-static"), 0o755)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "qemu-aarch64-static"), &st); err != nil {
		t.Fatal(err)
	}
	// Sooner or later the program waits, as nobody reads what is written.
	o := stepOf(t, fmt.Sprintf(`touch /mine; (cat /dev/zero & while arm; [ $? = 7 ]; do :; done) | { i=0
		until found=$(reach %d %d); [ "$found" != "nothing reached" ] || [ $i -gt 600 ]; do sleep 0.1; i=$((i+1)); done
		echo "$found"; }`, st.Dev, st.Ino), compile(t, "reach", reachSource))
	o.Layers, o.Arch = append(o.Layers, armImage(t)[1]), "arm64"
	if _, out := run(t, o); !strings.Contains(out, "reached /proc/") || strings.Contains(out, "changed") {
		t.Errorf("output %q, want one that has reached the emulator and not changed it", out)
	}
}
