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

	"sconce.dev/sconce/internal/facts/factstest"

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
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			start := time.Now()
			f := factstest.Of(t, &remembered{Dir: factstest.Dir{Path: base, Mounts: map[string]string{
				"usr": "/usr", "etc": "/etc", strings.Trim(prefix, "/"): prefix, "opt/venv/lib/" + version + "/site-packages": dir,
			}}}, "PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
			runtime.ReadMemStats(&after)
			t.Logf("%d objects, %d problems in %v, %d MB of memory", len(f.Objects), len(f.Links), time.Since(start),
				(after.HeapSys-before.HeapInuse)>>20)
			for _, p := range f.Links {
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
	factstest.Dir
	names sync.Map
}

func (r *remembered) Resolve(name string) (string, error) {
	if real, ok := r.names.Load(name); ok {
		if real == "" {
			return "", fs.ErrNotExist
		}
		return real.(string), nil
	}
	real, err := r.Dir.Resolve(name)
	r.names.Store(name, real)
	return real, err
}
