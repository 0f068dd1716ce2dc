package audit

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"sconce.dev/sconce/internal/cluster"
)

// TestRealStacks looks at directories of installed packages, SCONCE_TEST_SITES=DIR:DIR, each as the site-packages of a
// virtual environment in an image that is otherwise this machine: with SCONCE_TEST_PYTHON=PREFIX for its Python.
func TestRealStacks(t *testing.T) {
	sites, prefix := os.Getenv("SCONCE_TEST_SITES"), os.Getenv("SCONCE_TEST_PYTHON")
	if sites == "" || prefix == "" {
		t.Skip("SCONCE_TEST_SITES and SCONCE_TEST_PYTHON are not set")
	}
	for _, dir := range strings.Split(sites, ":") {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			base := t.TempDir()
			for link, target := range map[string]string{
				"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin", "opt/venv/bin/python3": prefix + "/bin/python3",
			} {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(base, link)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(target, filepath.Join(base, link)); err != nil {
					t.Fatal(err)
				}
			}
			version := "python3.12"
			f := factsOf(t, &remembered{dirRoot: dirRoot{base, map[string]string{
				"usr": "/usr", "etc": "/etc", strings.Trim(prefix, "/"): prefix, "opt/venv/lib/" + version + "/site-packages": dir,
			}}})
			f.Config.Env = []string{"PATH=/opt/venv/bin:" + defaultPath}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			start := time.Now()
			links, err := findLinks(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			t.Logf("%d objects, %d problems in %v, %d MB of memory besides the %d MB of facts", len(f.Objects), len(links), time.Since(start),
				(after.HeapSys-before.HeapInuse)>>20, before.HeapInuse>>20)
			f.Links = links
			for _, p := range links {
				t.Logf("%s %s %s: %s", p.Role, p.Kind, p.Path, p.Text)
			}
			for _, r := range linkRules {
				s := &Subject{Facts: f, Target: cluster.Profile{Platform: "linux/amd64", CPULevel: 3, Glibc: "2.31", Driver: "580.65.06"}, Context: t.Context()}
				err := r.look(s, func(found Finding) {
					found = r.complete(found)
					t.Logf("FINDING %s %s: %s %q", found.Severity, found.Rule, found.Message, found.Seen)
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// remembered is a root whose names are resolved once.
type remembered struct {
	dirRoot
	names sync.Map
}

func (r *remembered) Resolve(name string) (string, error) {
	if real, ok := r.names.Load(name); ok {
		if real == "" {
			return "", fs.ErrNotExist
		}
		return real.(string), nil
	}
	real, err := r.dirRoot.Resolve(name)
	r.names.Store(name, real)
	return real, err
}
