package test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// unpackings are the ways in which an image's files come to a command: unpacked before, and served by FUSE from their layers.
var unpackings = []string{"first", "never"}

// A working directory that a link of the image leads out of its root to is made within the root, never on the host
// (podman CVE-2026-55686): in a run, in steps, by COPY, and as an image's own.
func TestWorkdirThroughLinks(t *testing.T) {
	asBoth(t, func(t *testing.T, p *place) {
		p.write("host/kept", "kept")
		want := map[string]string{"kept": "kept"}
		links := map[string]string{
			"absolute": p.path("host"), "upwards": "../../../../../../../.." + p.path("host"), "magic": "/proc/self/root" + p.path("host"), "cwd": "/proc/self/cwd", "twice": "absolute",
		}
		p.tiny("tiny", func(root string) {
			for name, target := range links {
				if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
					p.t.Fatal(err)
				}
			}
		})
		for name := range links {
			for _, how := range unpackings {
				// One that leads through /proc may be refused, and must not be followed.
				if r := p.sconce("run", "--unpack", how, "-w", "/"+name+"/made", "tiny:1", "sh", "-c", "pwd && echo x >written"); r.code != 0 && name != "magic" && name != "cwd" {
					p.t.Errorf("%v", r)
				}
				p.wantUnchanged("host", want)
			}
		}
		p.write("file/Containerfile", "FROM tiny:1\nWORKDIR /absolute/made\nRUN pwd && echo x >written\nCOPY Containerfile /upwards/copied/\nCOPY Containerfile here\n"+
			"ADD Containerfile /twice/added/\nWORKDIR /upwards/again\nRUN echo x >written\nWORKDIR /twice/last\n")
		p.build("file")
		p.wantUnchanged("host", want)
		p.write("recipe/sconce.toml", "name = \"r\"\nversion = \"1\"\n[base]\nimage = \"tiny:1\"\n[[step]]\ncopy = [\"sconce.toml:/absolute/copied/\"]\n"+
			"[[step]]\nworkdir = \"/upwards/step\"\nrun = \"echo x >written\"\n[image]\nworkdir = \"/twice/image\"\n")
		p.build("recipe")
		for _, how := range unpackings {
			p.must("run", "--unpack", how, "r:1", "sh", "-c", "echo x >written")
		}
		p.wantUnchanged("host", want)
	})
}

// statusLines are what /proc/self/status says of a command's rights.
const statusLines = "grep -E '^(NoNewPrivs|Seccomp|CapEff):' /proc/self/status"

// What is asked for is in force, seen from inside: no network, a root that cannot be written to, no devices, no programs of other owners,
// no new privileges, and the filter of system calls (apptainer CVE-2025-65105, singularity CVE-2025-64750: options without effect).
func TestProtectionsHold(t *testing.T) {
	asBoth(t, func(t *testing.T, p *place) {
		p.tiny("tiny")
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			p.t.Fatal(err)
		}
		defer listener.Close()
		go func() {
			for c, err := listener.Accept(); err == nil; c, err = listener.Accept() {
				c.Close()
			}
		}()
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		reach := fmt.Sprintf("nc 127.0.0.1 %s </dev/null && echo REACHED; grep -c : /proc/net/dev; true", port)
		// Device numbers of /dev/zero, which is harmless where it opens. An ordinary user's mknod may fail, or make something else.
		devices := `for d in /dev /dev/shm /tmp / /work; do mknod $d/made c 1 5 2>/dev/null; [ -c $d/made ] && head -c 1 $d/made >/dev/null 2>&1 && echo OPENED $d/made; done; true`

		for _, how := range unpackings {
			run := func(flags []string, script string) string {
				p.t.Helper()
				args := append([]string{"run", "--unpack", how}, flags...)
				return p.sconce(append(args, "tiny:1", "sh", "-c", script)...).stdout
			}
			if out := run(nil, reach); !strings.Contains(out, "REACHED") {
				p.t.Errorf("the test's server cannot be reached where it may be: %s", out)
			}
			if out := run([]string{"--no-network"}, reach); strings.TrimSpace(out) != "1" {
				p.t.Errorf("--no-network: %s", out)
			}
			out := run([]string{"--read-only"}, `for d in / /bin /etc /sys /proc/sys /proc/sys/kernel; do touch $d/made 2>/dev/null && echo WROTE $d; done
				mount -o remount,rw / 2>/dev/null && echo REMOUNTED; echo x 2>/dev/null >/bin/busybox && echo WROTE busybox; chmod 777 /bin 2>/dev/null && echo CHANGED; true`)
			if out != "" {
				p.t.Errorf("--read-only: %s", out)
			}
			p.write("work/kept", "kept")
			p.write("devices/kept", "")
			out = run([]string{"-B", p.path("work") + ":/work:ro"}, `touch /work/made 2>/dev/null; mount -o remount,bind,rw /work 2>/dev/null && echo REMOUNTED; touch /work/made 2>/dev/null
				mount -o remount,rw /work 2>/dev/null && echo REMOUNTED; umount /work 2>/dev/null && echo UNMOUNTED; echo x 2>/dev/null >>/work/kept; true`)
			if out != "" {
				p.t.Errorf("a directory that is bound read-only: %s", out)
			}
			p.wantUnchanged("work", map[string]string{"kept": "kept"})
			if out := run([]string{"-B", p.path("devices") + ":/work"}, devices); out != "" {
				p.t.Errorf("devices that a command makes can be opened: %s", out)
			}
			if out := run(nil, statusLines); !strings.Contains(out, "NoNewPrivs:\t1") {
				p.t.Errorf("new privileges: %s", out)
			}
			if out := run(nil, "cat /proc/self/mountinfo"); !strings.Contains(out, " / / rw,nosuid,nodev") || !strings.Contains(out, " /dev rw,nosuid,nodev") {
				p.t.Errorf("the mounts lack nosuid or nodev: %s", out)
			}
		}
		r := p.stepOutput("network = false", reach+"; "+devices+"; "+statusLines+"; grep ' / / ' /proc/self/mountinfo")
		if strings.Contains(r, "REACHED") || !strings.Contains(r, "Seccomp:\t2") || !strings.Contains(r, "nodev") {
			p.t.Errorf("a step: %s", r)
		}
		if p.user == nil && strings.Contains(r, "OPENED") { // a user's emulated root makes files that are called devices
			p.t.Errorf("a step opened a device that it made: %s", r)
		}
		if p.user != nil && !strings.Contains(r, "NoNewPrivs:\t1") {
			p.t.Errorf("a user's step: %s", r)
		}
		if r := p.stepOutput("", reach); !strings.Contains(r, "1") {
			p.t.Errorf("a step with a network: %s", r)
		}
	})
}

// stepOutput is what a script prints as a step on tiny:1.
func (p *place) stepOutput(keys, script string) string {
	p.t.Helper()
	p.write("step/sconce.toml", fmt.Sprintf("name = \"step\"\nversion = \"1\"\n[base]\nimage = \"tiny:1\"\n[[step]]\n%s\nrun = %q\n", keys, "set +e; { "+script+"; true; } >/out 2>&1"))
	p.build("step")
	return p.must("run", "step:1", "cat", "/out").stdout
}

// Links and odd files where sconce itself mounts something: /proc, /dev and what is in it, names, the terminal. Nothing of the host is written
// to by them, and nothing that is hidden shows (runc CVE-2025-31133, CVE-2025-52565, CVE-2025-52881).
func TestMountsOverLinks(t *testing.T) {
	asBoth(t, func(t *testing.T, p *place) {
		files := map[string]string{"resolv.conf": "kept", "passwd": "kept", "null": "kept", "dir/kept": "kept"}
		want := map[string]string{"dir": "(not a file)"}
		for name, text := range files {
			p.write("host/"+name, text)
			want[name] = text
		}
		host := func(name string) string { return p.path("host", name) }
		for name, links := range map[string]map[string]string{
			"directories": {"proc": host("dir"), "dev": host("dir"), "sys": host("dir"), "tmp": host("dir")},
			"upwards":     {"proc": "../../../.." + host("dir"), "dev": "../../../.." + host("dir"), "sys": "..", "tmp": "../.."},
			"circles":     {"proc": "dev", "dev": "proc", "sys": "sys", "tmp": "/tmp"},
			"the root":    {"proc": "/", "dev": ".", "sys": "/", "tmp": "/"},
			"each other":  {"dev": "proc", "sys": "proc/self", "tmp": "dev/shm"},
			"magic":       {"dev": "/proc/self/cwd", "sys": "/proc/1/root/sys", "tmp": "/proc/self/fd/0"},
			"files of dev": {
				"dev/null": host("null"), "dev/console": host("null"), "dev/tty": host("null"), "dev/pts": host("dir"), "dev/shm": host("dir"), "dev/ptmx": host("null"), "dev/fd": host("dir"), "dev/mqueue": host("dir"),
			},
			"etc":          {"etc": host("")},
			"files of etc": {"etc/resolv.conf": host("resolv.conf"), "etc/passwd": host("passwd"), "etc/hosts": "/proc/self/mem", "etc/group": "/proc/1/environ"},
			"etc by proc":  {"etc/resolv.conf": "/proc/self/fd/1", "etc/hosts": "/proc/sys/kernel/core_pattern", "etc/passwd": "/dev/mem", "etc/group": "/proc/sysrq-trigger"},
		} {
			t.Run(name, func(t *testing.T) {
				q := p.in(t)
				image := strings.ReplaceAll(name, " ", "-")
				q.tiny(image, func(root string) {
					for at, target := range links {
						path := filepath.Join(root, at)
						if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
							t.Fatal(err)
						}
						_ = os.Remove(path)
						if err := os.Symlink(target, path); err != nil {
							t.Fatal(err)
						}
					}
				})
				for _, how := range unpackings {
					for _, flags := range [][]string{nil, {"--user", "self"}, {"--read-only"}} {
						args := append([]string{"run", "--unpack", how}, flags...)
						// It may refuse such an image, and say so. It must not write, crash or show.
						r := q.sconce(append(args, image+":1", "sh", "-c", "echo written >>/etc/resolv.conf; echo written >>/etc/hosts; echo written >/dev/null; echo written >/dev/console; echo written >/tmp/written; echo written >/dev/shm/written; true")...)
						if strings.Contains(r.stderr, "goroutine ") || r.code != 0 && !strings.Contains(r.stderr, "error: ") {
							t.Errorf("%v", r)
						}
						q.wantUnchanged("host", want)
					}
				}
				q.write(image+"/Containerfile", "FROM "+image+":1\nRUN echo written >>/etc/resolv.conf; echo written >/dev/null; echo written >/tmp/written; true\n")
				if r := q.sconce("build", image); strings.Contains(r.stderr, "goroutine ") {
					t.Errorf("%v", r)
				}
				q.wantUnchanged("host", want)
			})
		}
		// The parts of /proc by which root changes a host, or reads what no container should.
		p.tiny("tiny")
		for _, how := range unpackings {
			out := p.sconce("run", "--unpack", how, "tiny:1", "sh", "-c", `for f in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/irq/default_smp_affinity; do
				[ -e $f ] && (echo >>$f) 2>/dev/null && echo OPENED $f; done; head -c 1 /proc/kcore >/dev/null 2>&1 && echo READ kcore; head -c 1 /proc/1/exe >/dev/null 2>&1 && echo READ exe; true`).stdout
			if out != "" {
				p.t.Errorf("/proc: %s", out)
			}
		}
	})
}
