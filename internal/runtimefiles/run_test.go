package runtimefiles

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/image"
)

// awkward are texts that scripts get wrong.
var awkward = []string{
	"plain", "", " ", "  two  spaces ", "it's", `"quoted"`, `'single'`, `"`, `'`, "`date`", "$(date)", "$HOME", "${HOME}", "$", "$$", `\`, `\\`, `\n`,
	"a\nb", "\n", "\ttab", "*", "?", "[a]", "~", "~root", "#no comment", "a;b", "a&b", "a|b", "a>b", "!x", "{a,b}", "}", "\"}", "${", "é ✓ 漢字", "-e", "--",
	`{"a":1,"b":[2,{"c":"d"}]}`, "=", "a=b", "%s", `\'`, `\"`, "\\`", "\r", "\x01\x7f", `"a" b "c"`, "it's \"$x\" `y` \\ }\n}",
}

func configured(entrypoint, cmd, env []string) Image {
	return Image{Config: v1.ConfigFile{Config: v1.Config{Entrypoint: entrypoint, Cmd: cmd, Env: env, WorkingDir: "/new/work dir"}}}
}

func eachShell(t *testing.T, test func(t *testing.T, shell string)) {
	for _, shell := range shells {
		t.Run(shell, func(t *testing.T) { test(t, shell) })
	}
}

func TestArguments(t *testing.T) {
	show := []string{"/bin/show"}
	verbatim := append([]string{"/bin/show", "entry"}, awkward...)
	eachShell(t, func(t *testing.T, shell string) {
		for _, c := range []struct {
			name                  string
			entrypoint, cmd, args []string
			want                  []string
		}{
			{"entrypoint", verbatim, nil, nil, verbatim[1:]},
			{"entrypoint and arguments", verbatim, nil, awkward, append(slices.Clone(verbatim[1:]), awkward...)},
			{"entrypoint and command", verbatim, awkward, nil, append(slices.Clone(verbatim[1:]), awkward...)},
			{"all three", show, []string{"not this"}, awkward, awkward},
			{"command", nil, verbatim, nil, verbatim[1:]},
			{"command and arguments", nil, []string{"/bin/false"}, verbatim, verbatim[1:]},
			{"arguments alone", nil, nil, verbatim, verbatim[1:]},
		} {
			r := newRoot(t, shell, configured(c.entrypoint, c.cmd, nil))
			out, code := r.enroot(shell, nil, c.args...)
			if diff := cmp.Diff(c.want, split(out)); diff != "" || code != 0 {
				t.Errorf("enroot, %s: exit code %d\n%s", c.name, code, diff)
			}
			for _, variable := range []string{"APPTAINER_NO_EVAL=1", "SINGULARITY_NO_EVAL=1"} {
				out, code = r.action([]string{variable}, "run", c.args...)
				if diff := cmp.Diff(c.want, split(out)); diff != "" || code != 0 {
					t.Errorf("apptainer run, %s, %s: exit code %d\n%s", c.name, variable, code, diff)
				}
			}
			if c.args == nil {
				out, code = r.action(nil, "run")
				if diff := cmp.Diff(c.want, split(out)); diff != "" || code != 0 {
					t.Errorf("apptainer run, %s: exit code %d\n%s", c.name, code, diff)
				}
			}
		}
		r := newRoot(t, shell, configured(nil, nil, nil))
		out, _ := r.action(nil, "exec", verbatim...)
		if diff := cmp.Diff(verbatim[1:], split(out)); diff != "" {
			t.Errorf("apptainer exec: %s", diff)
		}
	})
}

// TestEvaluation is what Apptainer documents of its runscripts: arguments go through a shell once more.
func TestEvaluation(t *testing.T) {
	eachShell(t, func(t *testing.T, shell string) {
		r := newRoot(t, shell, configured([]string{"/bin/show", "$A"}, []string{"not this"}, []string{"A=1 2"}))
		out, code := r.action(nil, "run", "$A", "two  words", "-e", `\$A`, "it's")
		if diff := cmp.Diff([]string{"$A", "1 2", "two  words", "-e", "$A", "it's"}, split(out)); diff != "" || code != 0 {
			t.Errorf("exit code %d\n%s", code, diff)
		}
	})
}

func awkwardEnv() (env []string, want map[string]string) {
	want = map[string]string{"PATH": "/opt/it's $bin:/bin", "LD_LIBRARY_PATH": "/opt/lib"}
	env = []string{"PATH=" + want["PATH"], "LD_LIBRARY_PATH=" + want["LD_LIBRARY_PATH"]}
	for i, v := range awkward {
		name := "V" + strings.Repeat("_", i)
		want[name] = v
		env = append(env, name+"="+v)
	}
	return env, want
}

// values asks a container for its variables.
func values(names []string, start func(args ...string) (string, int)) []string {
	script := "for n do eval \"printf '%s\\\\0' \\\"\\${$n-unset}\\\"\"; done"
	out, _ := start(append([]string{"/bin/busybox", "sh", "-c", script, "sh"}, names...)...)
	return split(out)
}

func TestEnvironment(t *testing.T) {
	env, want := awkwardEnv()
	var names, wanted []string
	for _, v := range variables(env) {
		names, wanted = append(names, v.name), append(wanted, want[v.name])
	}
	libs := slices.Index(names, "LD_LIBRARY_PATH")
	eachShell(t, func(t *testing.T, shell string) {
		r := newRoot(t, shell, configured(nil, nil, env))
		got := values(names, func(args ...string) (string, int) { return r.enroot(shell, nil, args...) })
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Errorf("enroot: %s", diff)
		}
		// pyxis leaves the entrypoint out.
		r.write("etc/rc.local", "exec \"$@\"\n")
		got = values(names, func(args ...string) (string, int) { return r.enroot(shell, nil, args...) })
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Errorf("pyxis: %s", diff)
		}
		got = values([]string{"V", "V_________________", "V__________________"}, func(args ...string) (string, int) {
			return r.enroot(shell, []string{"V=user's", "V__________________=user's"}, args...)
		})
		if diff := cmp.Diff([]string{"user's", `\n`, "user's"}, got); diff != "" {
			t.Errorf("what the user asks enroot for: %s", diff)
		}
		inside := slices.Clone(wanted)
		inside[libs] += ":/.singularity.d/libs"
		got = values(names, func(args ...string) (string, int) { return r.action(nil, "exec", args...) })
		if diff := cmp.Diff(inside, got); diff != "" {
			t.Errorf("apptainer: %s", diff)
		}
		// A value that is there already wins, but for PATH.
		got = values([]string{"PATH", "V", "LD_LIBRARY_PATH"}, func(args ...string) (string, int) {
			return r.action([]string{"PATH=/host", "V=host's", "LD_LIBRARY_PATH=/host"}, "exec", args...)
		})
		if diff := cmp.Diff([]string{want["PATH"], "host's", "/host:/.singularity.d/libs"}, got); diff != "" {
			t.Errorf("values of the host: %s", diff)
		}
		got = values([]string{"PATH", "SING_USER_DEFINED_APPEND_PATH"}, func(args ...string) (string, int) {
			return r.action([]string{"SING_USER_DEFINED_PREPEND_PATH=/a", "SING_USER_DEFINED_APPEND_PATH=/z"}, "exec", args...)
		})
		if diff := cmp.Diff([]string{"/a:" + want["PATH"] + ":/z", "unset"}, got); diff != "" {
			t.Errorf("additions to PATH: %s", diff)
		}
	})
}

func TestStart(t *testing.T) {
	eachShell(t, func(t *testing.T, shell string) {
		r := newRoot(t, shell, configured([]string{"/bin/sh", "-c", `pwd; exit "${1:-41}"`, "sh"}, nil, []string{"PATH=/bin"}))
		for name, start := range map[string]func(args ...string) (string, int){
			"enroot":    func(args ...string) (string, int) { return r.enroot(shell, nil, args...) },
			"apptainer": func(args ...string) (string, int) { return r.action(nil, "run", args...) },
		} {
			want := map[string]string{"enroot": "/new/work dir\n", "apptainer": "/\n"}[name]
			for code, args := range map[int][]string{41: nil, 0: {"0"}, 7: {"7"}} {
				if out, got := start(args...); got != code || out != want {
					t.Errorf("%s %q: exit code %d, output %q", name, args, got, out)
				}
			}
		}
		if _, code := r.action(nil, "exec", "sh", "-c", "exit 9"); code != 9 {
			t.Errorf("apptainer exec: exit code %d", code)
		}
		if _, code := r.action(nil, "shell", "-c", "exit 8"); code != 8 {
			t.Errorf("apptainer shell: exit code %d", code)
		}
		if _, code := r.action(nil, "test"); code != 0 {
			t.Errorf("apptainer test: exit code %d", code)
		}
		if _, code := r.action(nil, "run", "exit"); code == 0 {
			t.Error("a failing program is not noticed")
		}
		// pyxis leaves the entrypoint out, and starts a shell that stops itself.
		r.write("etc/rc.local", "exec \"$@\"\n")
		if out, code := r.enroot(shell, nil, "sh", "-c", "pwd; exit 5"); out != "/new/work dir\n" || code != 5 {
			t.Errorf("pyxis: %q, exit code %d", out, code)
		}
		r.write("etc/rc.local", "export FROM_LOCAL=1\n")
		if out, code := r.enroot(shell, nil, `$(printf 6)`); out != "/new/work dir\n" || code == 6 {
			t.Errorf("enroot evaluates arguments: %q, exit code %d", out, code)
		}
		r.write("etc/rc.local", rcLocal)
		// Without its working directory there is nothing to start; enroot makes it when it can.
		dir := filepath.Join(r.dir, "new")
		r.must(os.RemoveAll(dir))
		if out, code := r.enroot(shell, nil); out != "/new/work dir\n" || code != 41 {
			t.Errorf("missing working directory: %q, exit code %d", out, code)
		}
		r.must(os.RemoveAll(dir))
		r.must(os.WriteFile(dir, nil, 0o644))
		if out, code := r.enroot(shell, nil); out != "" || code != 1 {
			t.Errorf("no working directory: %q, exit code %d", out, code)
		}
	})
}

// What the image wants done at the start is, also where the entrypoint is left out: by pyxis, and by everything but run of Apptainer.
func TestStartScript(t *testing.T) {
	eachShell(t, func(t *testing.T, shell string) {
		im := configured([]string{"/opt/env/start"}, []string{"sh"}, []string{"PATH=/bin"})
		im.Config.Config.Labels = map[string]string{image.LabelStart: "/opt/env/start"}
		r := newRoot(t, shell, im)
		r.must(os.MkdirAll(filepath.Join(r.dir, "opt/env"), 0o755))
		r.write("opt/env/start.sh", "MINE=${MINE:-}started\nexport MINE\n")
		const show = `printf %s "$MINE"`
		if out, code := r.action(nil, "exec", "sh", "-c", show); out != "started" || code != 0 {
			t.Errorf("apptainer exec: %q, exit code %d", out, code)
		}
		r.write("etc/rc.local", "exec \"$@\"\n")
		if out, code := r.enroot(shell, nil, "sh", "-c", show); out != "started" || code != 0 {
			t.Errorf("pyxis: %q, exit code %d", out, code)
		}
		// An image that lost the file still starts.
		r.must(os.Remove(filepath.Join(r.dir, "opt/env/start.sh")))
		if out, code := r.action(nil, "exec", "sh", "-c", show); out != "" || code != 0 {
			t.Errorf("without the file: %q, exit code %d", out, code)
		}
	})
}

// TestNothingToRun starts a shell, which reads what to do.
func TestNothingToRun(t *testing.T) {
	eachShell(t, func(t *testing.T, shell string) {
		r := newRoot(t, shell, configured(nil, nil, []string{"ENV="}))
		if out, code := r.enroot(shell, nil); out != "" || code != 0 {
			t.Errorf("enroot: %q, exit code %d", out, code)
		}
		if out, code := r.action(nil, "run"); out != "" || code != 0 {
			t.Errorf("apptainer run: %q, exit code %d", out, code)
		}
		if out, code := r.enroot(shell, nil, "/bin/sh", "-c", "echo $0 $1", "a", "b"); out != "a b\n" || code != 0 {
			t.Errorf("enroot with a command: %q, exit code %d", out, code)
		}
	})
}

// TestProfile has a login shell read a profile that replaces PATH, as Debian's does.
func TestProfile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may mount /proc")
	}
	eachShell(t, func(t *testing.T, shell string) {
		r := newRoot(t, shell, configured(nil, nil, []string{"PATH=/opt/venv/bin:/bin", "A=B\nPATH=/wrong"}))
		proc := filepath.Join(r.dir, "proc")
		if err := syscall.Mount("/proc", proc, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
			t.Skipf("mount /proc: %v", err)
		}
		t.Cleanup(func() { r.must(syscall.Unmount(proc, syscall.MNT_DETACH)) })
		for _, c := range []struct{ profile, path, want string }{
			{"PATH=/usr/bin:/bin\nexport PATH\n", "", "/opt/venv/bin:/bin:/usr/bin:/bin"},
			{"PATH=/usr/bin:/bin\nexport PATH\n", "PATH=/mine:/bin", "/mine:/bin:/usr/bin:/bin"},
			{"PATH=/first:$PATH:/last\n", "", "/first:/opt/venv/bin:/bin:/last"},
			{":\n", "", "/opt/venv/bin:/bin"},
			{":\n", "PATH=/mine:/bin", "/mine:/bin"},
		} {
			r.write("etc/profile", c.profile)
			env := r.environment()
			if c.path != "" {
				env = append(slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }), c.path)
			}
			arg0 := map[string]string{"busybox": "-sh"}[shell]
			if arg0 == "" {
				arg0 = "-" + shell
			}
			out, _ := r.run(env, "/bin/sh", arg0, "/etc/rc", "/bin/sh", "-c", `printf %s "$PATH"`)
			if out != c.want {
				t.Errorf("profile %q, %s: PATH is %q, not %q", c.profile, c.path, out, c.want)
			}
		}
	})
}
