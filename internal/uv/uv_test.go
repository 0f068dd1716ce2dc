package uv

import (
	"context"
	"errors"
	"fmt"
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
)

// finder returns one with an empty store.
func finder(t *testing.T, offline bool, indexes ...string) Finder {
	t.Helper()
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	client := fetch.New(st, fetch.Options{Offline: offline, Attempts: 1})
	return Finder{Store: st, Fetch: client, Indexes: func() []string { return indexes }}
}

func TestPathFirst(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "uv")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil { //nolint:gosec // a program
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
	w := wheels[runtime.GOARCH]
	var logins []string
	mux := http.NewServeMux()
	page := func(where, text string) {
		mux.HandleFunc(where+"/uv/", func(rw http.ResponseWriter, r *http.Request) {
			logins = append(logins, r.Header.Get("Authorization"))
			fmt.Fprint(rw, text)
		})
	}
	page("/html", `<!DOCTYPE html><a href="uv-1.whl">uv-1.whl</a><A class="x" href="../../files/`+w.file+`#sha256=00&amp;x">`+w.file+`</A>`)
	page("/json", `{"files": [{"filename": "`+w.file+`", "url": "/files/`+w.file+`"}]}`)
	page("/other", `{"files": []}`)
	mux.HandleFunc("/files/", func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = rw.Write(make([]byte, w.size)) // as long as uv, and something else
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
	if err == nil || !strings.Contains(err.Error(), "does not have "+w.file) || !strings.Contains(err.Error(), "404") ||
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

func FuzzFindLink(f *testing.F) {
	f.Add([]byte(`<a href="x">x</a>`), "x")
	f.Add([]byte(`{"files":[{"filename":"x","url":"y"}]}`), "x")
	f.Fuzz(func(_ *testing.T, page []byte, file string) { findLink(page, file) })
}
