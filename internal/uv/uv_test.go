package uv

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// finder returns one with an empty store.
func finder(t *testing.T, offline bool, indexes ...string) Finder {
	t.Helper()
	st := storetest.New(t)
	client := fetch.New(st, fetch.Options{Offline: offline, Attempts: 1})
	return Finder{Store: st, Fetch: client, Indexes: func() []string { return indexes }}
}

// wheelOf is the name of the wheel of a release for this machine.
func wheelOf(version string) string {
	return "uv-" + version + "-py3-none-manylinux_2_28_" + machines[runtime.GOARCH] + ".musllinux_1_1_" + machines[runtime.GOARCH] + ".whl"
}

func TestPathFirst(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "uv")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if got, err := finder(t, true).Path(t.Context()); err != nil || got != program {
		t.Errorf("%q, %v", got, err)
	}
}

// What an index says of a file is where it is, and never what is in it.
func TestIndexes(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	w := Pinned.Wheels[runtime.GOARCH]
	file := wheelOf(Version)
	var logins []string
	mux := http.NewServeMux()
	page := func(where, text string) {
		mux.HandleFunc(where+"/uv/", func(rw http.ResponseWriter, r *http.Request) {
			logins = append(logins, r.Header.Get("Authorization"))
			fmt.Fprint(rw, text)
		})
	}
	page("/html", `<!DOCTYPE html><a href="uv-1.whl">uv-1.whl</a><A class="x" href="../../files/`+file+`#sha256=00&amp;x">`+file+`</A>`)
	page("/json", `{"files": [{"filename": "`+file+`", "url": "/files/`+file+`"}]}`)
	page("/other", `{"files": []}`)
	mux.HandleFunc("/files/", func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = rw.Write(make([]byte, w.Size)) // as long as uv, and something else
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	for _, index := range []string{"/html", "/json/"} {
		f := finder(t, false, srv.URL+index)
		f.Header = func(string) http.Header { return http.Header{"Authorization": {"Basic x"}} }
		_, err := f.Path(t.Context())
		var wrong *store.MismatchError
		if !errors.As(err, &wrong) {
			t.Errorf("%s: %v", index, err)
		}
	}
	if logins[0] != "Basic x" {
		t.Errorf("asked with %q", logins)
	}
	_, err := finder(t, false, srv.URL+"/other", srv.URL+"/missing").Path(t.Context())
	if err == nil || !strings.Contains(err.Error(), "does not have uv "+Version+" for musl") || !strings.Contains(err.Error(), "404") ||
		!strings.Contains(fault.HintOf(err), "pip install uv") {
		t.Errorf("%v; %s", err, fault.HintOf(err))
	}
	if _, err := finder(t, true, srv.URL+"/html").Path(t.Context()); !errors.Is(err, fetch.ErrOffline) {
		t.Errorf("offline: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := finder(t, false, srv.URL+"/html").Path(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Only the wheel for musl on this machine is the one whose hash is known.
func TestIsWheel(t *testing.T) {
	m := machines[runtime.GOARCH]
	for file, want := range map[string]bool{
		wheelOf("1.2"): true,
		"uv-1.2-py3-none-musllinux_1_1_" + m + ".whl":   true,
		"uv-1.2-py3-none-manylinux_2_17_" + m + ".whl":  false,
		"uv-1.2-py3-none-musllinux_1_1_riscv64.whl":     false,
		"uv-1.2.1-py3-none-musllinux_1_1_" + m + ".whl": false,
		"uv-1.2.tar.gz": false,
	} {
		if isWheel(file, "1.2") != want {
			t.Errorf("%s: %t", file, !want)
		}
	}
}

// asked offers a wheel of a release that nobody knows, and returns the release.
func asked(t *testing.T, program string) (*Release, string) {
	t.Helper()
	var data bytes.Buffer
	z := zip.NewWriter(&data)
	w, err := z.Create("uv-9.9.9.data/scripts/uv")
	if err == nil {
		_, err = io.WriteString(w, program)
	}
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/simple/uv/", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"files": [{"filename": %q, "url": "/file"}]}`, wheelOf("9.9.9"))
	})
	mux.HandleFunc("/file", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data.Bytes()) })
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return &Release{
		Version: "9.9.9", By: "/etc/sconce/config.toml",
		Wheels: map[string]Wheel{runtime.GOARCH: {Digest: store.Digest(fmt.Sprintf("sha256:%x", sha256.Sum256(data.Bytes())))}},
	}, srv.URL + "/simple"
}

// A release that a configuration asks for is used although another is on PATH, comes once, and is there without a network.
func TestAskedFor(t *testing.T) {
	onPath := t.TempDir()
	if err := os.WriteFile(filepath.Join(onPath, "uv"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", onPath)
	r, index := asked(t, "the program")
	f := finder(t, false, index)
	f.Asked = r
	if path, version, ok := Stored(f.Store, r); ok {
		t.Errorf("an empty store has uv %s, %s", version, path)
	}
	path, err := f.Path(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "the program" {
		t.Errorf("%s holds %q, %v", path, got, err)
	}
	f.Fetch, f.Indexes = fetch.New(f.Store, fetch.Options{Offline: true}), nil
	if again, err := f.Path(t.Context()); err != nil || again != path {
		t.Errorf("offline: %q, %v", again, err)
	}
	if stored, version, ok := Stored(f.Store, r); !ok || stored != path || version != "9.9.9" {
		t.Errorf("stored: %q, %q, %t", stored, version, ok)
	}

	// Another hash is another program, though the release is called the same.
	other := *r
	other.Wheels = map[string]Wheel{runtime.GOARCH: {Digest: "sha256:" + store.Digest(strings.Repeat("0", 64))}}
	f.Asked = &other
	if path, err := f.Path(t.Context()); !errors.Is(err, fetch.ErrOffline) {
		t.Errorf("with another hash: %q, %v", path, err)
	}
}

// What is not what the configuration says is refused, and the hint leads to the line that says it.
func TestAskedForWrongly(t *testing.T) {
	r, index := asked(t, "the program")
	right := r.Wheels
	for name, c := range map[string]struct {
		wheels map[string]Wheel
		want   string
	}{
		"the hash":         {map[string]Wheel{runtime.GOARCH: {Digest: "sha256:" + store.Digest(strings.Repeat("0", 64))}}, "compare the hash under [uv] in /etc/sconce/config.toml"},
		"the architecture": {map[string]Wheel{"riscv64": right[runtime.GOARCH]}, "add `sha256 = { " + runtime.GOARCH},
	} {
		f := finder(t, false, index)
		r.Wheels = c.wheels
		f.Asked = r
		path, err := f.Path(t.Context())
		if err == nil || !strings.Contains(fault.HintOf(err), c.want) {
			t.Errorf("%s: %q, %v; %s", name, path, err, fault.HintOf(err))
		}
		if _, _, ok := Stored(f.Store, r); ok {
			t.Errorf("%s: it is in the store", name)
		}
	}
}

func FuzzFindLink(f *testing.F) {
	f.Add([]byte(`<a href="x">x</a>`), "x")
	f.Add([]byte(`{"files":[{"filename":"x","url":"y"}]}`), "x")
	f.Fuzz(func(_ *testing.T, page []byte, file string) {
		findLink(page, func(name string) bool { return name == file || isWheel(name, Version) })
	})
}
