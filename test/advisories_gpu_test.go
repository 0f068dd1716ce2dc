package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/tooltest"
)

// Nothing of an image reaches a process of the host while GPUs are set up, nor is anything written through its links: no hook runs, its variables
// are the command's alone, and the driver's files lie within its root (NVIDIA CVE-2025-23266, CVE-2025-23267, CVE-2026-24260). The GPU is a
// made-up one: a specification of the Container Device Interface in a mount name space of the test's own.
func TestGPUSetupTakesNothingOfTheImage(t *testing.T) {
	unshare := tooltest.Path(t, "unshare")
	asBoth(t, func(t *testing.T, p *place) {
		locktest.Write(t, p.path("driver"), map[string]string{"libcuda.so.1": "driver", "gpu": ""})
		locktest.Write(t, p.path("host"), map[string]string{"kept": "kept"})
		kept := map[string]string{"kept": "kept"}
		hook := func(name string) string {
			return fmt.Sprintf(`{"hookName": %q, "path": %q, "args": ["hook", "update-ldcache", "--folder", "/usr/local/nvidia/lib64"]}`, name, p.path("hook"))
		}
		locktest.Write(t, p.path("cdi"), map[string]string{"made-up.json": fmt.Sprintf(`{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}}],
			"containerEdits": {"env": ["MADE_UP=1"], "hooks": [%s, %s], "mounts": [{"hostPath": %q, "containerPath": "/usr/local/nvidia/lib64/libcuda.so.1", "options": ["ro"]}]}}`,
			hook("createContainer"), hook("prestart"), p.path("driver/libcuda.so.1"))})
		// What the host may run tells the environment that it has: the hook, which is not run at all, and nvidia-smi.
		for _, name := range []string{"hook", "bin/nvidia-smi"} {
			p.write(name, fmt.Sprintf("#!/bin/sh\n{ echo %s; /usr/bin/env; } >>%q\n", name, p.path("ran")))
			if err := os.Chmod(p.path(name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		p.own()
		p.env = append(p.env, "PATH="+p.path("bin")+":"+filepath.Join(workshop, "bin")+":/usr/local/bin:/usr/bin:/bin")
		for name, target := range map[string]string{"none": "", "absolute": p.path("host"), "upwards": "../../../../../../.." + p.path("host"), "etc": "/etc", "magic": "/proc/1/root" + p.path("host")} {
			p.tiny(name+"-base", func(root string) {
				locktest.Write(t, root, map[string]string{"evil.so": "no library", "etc/ld.so.preload": "", "bin2/nvidia-smi": "evil"})
				if target != "" {
					p.link(name+"-base.root/usr/local/nvidia/lib64", target)
				}
				p.link(name+"-base.root/etc/ld.so.cache", p.path("host/kept"))
				p.link(name+"-base.root/etc/ld.so.conf", p.path("host/kept"))
				p.link(name+"-base.root/etc/ld.so.conf.d", p.path("host"))
			})
			image := p.path(name)
			locktest.Write(t, image, map[string]string{"Containerfile": "FROM " + name + "-base:1\nENV LD_PRELOAD=/evil.so LD_AUDIT=/evil.so GCONV_PATH=/evil LD_LIBRARY_PATH=/evil PATH=/bin2:/bin BASH_ENV=/evil ENV=/evil\n"})
			p.own()
			p.must("build", image, "-t", name+":1")
			for _, how := range unpackings {
				inner := *p
				flags := []string{"-m"}
				if p.user != nil || os.Getuid() != 0 {
					flags = []string{"-Urm"}
				}
				inner.program = append([]string{unshare}, append(flags, "/bin/sh", "-c", fmt.Sprintf(`mount -t tmpfs none /run && mkdir /run/cdi && cp %q/* /run/cdi/ && exec "$@"`, p.path("cdi")), "sh", filepath.Join(workshop, "bin", "sconce"))...)
				r := inner.sconce("run", "--unpack", how, "--gpu", name+":1", "sh", "-c", "echo $MADE_UP $LD_PRELOAD; cat /usr/local/nvidia/lib64/libcuda.so.1")
				if r.code != 0 && name == "none" || strings.Contains(r.stderr, "goroutine ") || r.code == 0 && !strings.HasPrefix(r.stdout, "1 /evil.so\ndriver") {
					t.Errorf("%s: %v", name, r)
				}
				p.wantUnchanged("host", kept)
			}
		}
		ran, err := os.ReadFile(p.path("ran"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if text := string(ran); strings.Contains(text, "hook\n") || strings.Contains(text, "evil") {
			t.Errorf("processes of the host had %s", text)
		}
		if _, err := os.Lstat("/etc/libcuda.so.1"); err == nil {
			t.Error("the driver's library lies in the host's /etc")
		}
	})
}
