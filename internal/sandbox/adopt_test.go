package sandbox

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/store"
)

// What becomes of an upper directory is to the last attribute what unpacking its layer gives.
func TestAdopt(t *testing.T) {
	base := stepBase(t)
	scripts := map[string]string{
		"devices and owners": `mknod /null c 1 3; mkdir /srv; echo x >/srv/x; busybox chown -R 7:8 /srv; busybox chown 5 /d/file; chmod 2755 /srv; chmod 4755 /srv/x`,
		"attributes":         `echo x >>/d/xattr; echo x >>/d/cap; chmod 400 /d/xattr; chmod 500 /d/sub; echo y >>/d/closed; echo z >>/d/names/one`,
	}
	for _, test := range stepTests {
		scripts[test.name] = test.script
	}
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := base.options(t, "sh", "-ec", script)
			o.UpperDir = storeDir(t, base.st)
			o.Owners, o.WorkDir = &rootemu.Owners{}, "/made/on/the/way"
			o.Mounts = []Mount{{Target: "/data"}, {Target: "/one", Content: []byte{}}}
			started := time.Now()
			if code, _ := run(t, o); code != 0 {
				t.Fatalf("exit code %d", code)
			}
			upper := filepath.Join(o.UpperDir, Upper)
			up := base.upperOptions(t, started)
			up.Owner = Owner(o.Owners)
			d, err := layer.FromUpper(t.Context(), base.st, upper, up)
			if err != nil {
				t.Fatal(err)
			}
			unpacked := storeDir(t, base.st)
			if err := layer.Unpack(t.Context(), base.st, d, unpacked, Unpacked()); err != nil {
				t.Fatal(err)
			}
			if err := layer.Adopt(t.Context(), base.st, d, upper, Unpacked()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(onDisk(t, unpacked), onDisk(t, upper)); diff != "" {
				t.Errorf("-unpacked +adopted:\n%s", diff)
			}
		})
	}
}

func storeDir(t *testing.T, st *store.Store) string {
	t.Helper()
	dir, err := st.TempDir("test-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// onDisk tells everything about the files below dir but when they were read.
func onDisk(t *testing.T, dir string) map[string]string {
	t.Helper()
	all, first := map[string]string{}, map[uint64]string{}
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		var s unix.Stat_t
		if err := unix.Lstat(name, &s); err != nil {
			return err
		}
		p, _ := filepath.Rel(dir, name)
		text := fmt.Sprintf("%o %d:%d %d", s.Mode, s.Uid, s.Gid, s.Rdev)
		if s.Mode&unix.S_IFMT == unix.S_IFCHR && s.Rdev == 0 { // a whiteout; the kernel makes all of them names of one file
			all[p] = text
			return err
		}
		text += fmt.Sprint(" ", s.Mtim)
		if s.Mode&unix.S_IFMT != unix.S_IFDIR {
			if _, ok := first[s.Ino]; !ok {
				first[s.Ino] = p
			}
			text += fmt.Sprintf(" %d names, %s", s.Nlink, first[s.Ino])
		}
		if s.Mode&unix.S_IFMT == unix.S_IFREG {
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %.100q", b)
		}
		if s.Mode&unix.S_IFMT == unix.S_IFLNK {
			link, _ := os.Readlink(name)
			text += " -> " + link
		}
		names := make([]byte, 4096)
		n, err2 := unix.Llistxattr(name, names)
		if err2 != nil {
			return err2
		}
		value := make([]byte, 4096)
		for _, k := range splitNames(names[:n]) {
			if k == "security.selinux" {
				continue
			}
			m, _ := unix.Lgetxattr(name, k, value)
			text += fmt.Sprintf(" %s=%q", k, value[:max(m, 0)])
		}
		all[p] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func splitNames(list []byte) []string {
	var names []string
	for start, i := 0, 0; i < len(list); i++ {
		if list[i] == 0 {
			names = append(names, string(list[start:i]))
			start = i + 1
		}
	}
	return names
}

// A layer that was adopted is one that the next step runs on; one that was changed behind our back is not.
func TestAdoptedLayer(t *testing.T) {
	base := stepBase(t)
	step := func(script string) (layer.Descriptor, string) {
		o := base.options(t, "sh", "-ec", script)
		o.UpperDir = storeDir(t, base.st)
		if code, _ := run(t, o); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		return base.layer(t, o, time.Time{}), filepath.Join(o.UpperDir, Upper)
	}
	d, upper := step("echo new >/d/file; rm /d/link")
	if err := Adopt(t.Context(), base.st, d, upper); err != nil {
		t.Fatal(err)
	}
	if err := Adopt(t.Context(), base.st, d, upper); err != nil {
		t.Error("a second time:", err)
	}
	base.layers = append(base.layers, d)
	o := base.options(t, "sh", "-c", "cat /d/file; ls /d/link")
	if code, out := run(t, o); code == 0 || out != "new\n" {
		t.Errorf("exit code %d, output %q", code, out)
	}
	for name, change := range map[string]func(upper string) error{
		"longer": func(upper string) error {
			return os.WriteFile(filepath.Join(upper, "d/other"), []byte("much longer than before"), 0o644)
		},
		"missing": func(upper string) error { return os.Remove(filepath.Join(upper, "d/other")) },
		"other": func(upper string) error {
			return os.Rename(filepath.Join(upper, "d/other"), filepath.Join(upper, "d/another"))
		},
		"kind": func(upper string) error {
			return os.Rename(filepath.Join(upper, "d"), filepath.Join(upper, "e"))
		},
	} {
		d, upper := step("echo " + name + " >/d/other")
		if err := change(upper); err != nil {
			t.Fatal(err)
		}
		if err := Adopt(t.Context(), base.st, d, upper); err == nil {
			t.Errorf("%s: adopted", name)
		}
		dirs, err := Layers(t.Context(), base.st, []layer.Descriptor{d})
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(dirs[0], "d/other")); err != nil || string(b) != name+"\n" {
			t.Errorf("%s: unpacked %q, %v", name, b, err)
		}
	}
}
