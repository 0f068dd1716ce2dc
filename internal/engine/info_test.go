package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/uv"
)

// The uv that sconce has brought is not called missing.
func TestInfoFindsTheStoresUV(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := filepath.Join(t.TempDir(), "store")
	var s *Session
	open := func(ctx context.Context) (_ *Session, err error) {
		if s == nil {
			s, err = New(ctx, Options{Dir: dir})
		}
		return s, err
	}
	found := func() host.Tool {
		tools := []host.Tool{{Name: "git"}, {Name: "uv", Install: "by itself"}}
		findUV(t.Context(), dir, tools, nil, open)
		return tools[1]
	}
	if got := found(); got.Path != "" {
		t.Errorf("there is no store, and uv is %+v", got)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("looking has made a store")
	}
	if _, err := open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := found(); got.Path != "" {
		t.Errorf("the store is empty, and uv is %+v", got)
	}
	tree, err := s.Store.Tree(t.Context(), uv.Pinned.TreeName(), func(dir string) error { return os.WriteFile(filepath.Join(dir, "uv"), nil, 0o700) })
	if err != nil {
		t.Fatal(err)
	}
	if got := found(); got.Path != filepath.Join(tree, "uv") || !strings.Contains(got.Version, uv.Version) {
		t.Errorf("uv is %+v, want that in %s", got, tree)
	}
}

// It is said which uv is used, and why: one that is asked for goes before that on PATH.
func TestInfoSaysWhichUV(t *testing.T) {
	asked := &config.UV{Version: "9.9.9", File: "/etc/sconce/config.toml", SHA256: map[string]string{"amd64": strings.Repeat("a", 64), "arm64": strings.Repeat("a", 64)}}
	dir := filepath.Join(t.TempDir(), "store")
	open := func(ctx context.Context) (*Session, error) { return New(ctx, Options{Dir: dir, UV: asked}) }
	found := func(asked *config.UV) host.Tool {
		tools := []host.Tool{{Name: "uv", Path: "/usr/bin/uv", Version: "uv 1"}}
		findUV(t.Context(), dir, tools, asked, open)
		return tools[0]
	}
	if got := found(nil); got.Path != "/usr/bin/uv" || got.Version != "uv 1" || got.Why != "the one on PATH" {
		t.Errorf("%+v", got)
	}
	if got := found(asked); got.Path != "" || !strings.HasPrefix(got.Install, "uv 9.9.9, as [uv] in /etc/sconce/config.toml says, comes by itself") {
		t.Errorf("%+v", got)
	}
	s, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	name := uv.Release{Version: "9.9.9", Wheels: map[string]uv.Wheel{runtime.GOARCH: {Digest: "sha256:" + store.Digest(strings.Repeat("a", 64))}}}.TreeName()
	if _, err := s.Store.Tree(t.Context(), name, func(dir string) error { return os.WriteFile(filepath.Join(dir, "uv"), nil, 0o700) }); err != nil {
		t.Fatal(err)
	}
	if got := found(asked); got.Path == "" || got.Version != "uv 9.9.9" || got.Why != "brought by sconce, as [uv] in /etc/sconce/config.toml says" {
		t.Errorf("%+v", got)
	}
}

func TestWithRemedy(t *testing.T) {
	refused := errors.New("open /dev/fuse: permission denied")
	if got := withRemedy(refused); got != refused.Error() {
		t.Errorf("an error alone: %q", got)
	}
	if got, want := withRemedy(fault.Hint(refused, "ask")), refused.Error()+"; ask"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	unnetworked := fmt.Errorf("step: %w", &sandbox.Error{What: "make a network of its own", Errno: unix.EPERM, Fix: "it takes /dev/net/tun"})
	if got := withRemedy(unnetworked); !strings.HasSuffix(got, "; it takes /dev/net/tun") {
		t.Errorf("a sandbox without a network: %q", got)
	}
}
