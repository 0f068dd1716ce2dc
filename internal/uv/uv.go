// Package uv finds uv, which resolves Python packages, and brings it when the machine has none.
//
// uv is on the Python index as a wheel that holds one static program, so it comes from where the user's packages come from, by the
// same mirrors and logins. Release and hashes are pinned here: an index can withhold it, and cannot replace it.
package uv

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/store"
)

// Version is the release of uv that comes by itself.
const Version = "0.13.8"

// wheel is a file of the index: the one for musl, whose program is static.
type wheel struct {
	file   string
	digest store.Digest
	size   int64
}

var wheels = map[string]wheel{
	"amd64": {
		"uv-0.13.8-py3-none-musllinux_1_1_x86_64.whl",
		"sha256:29451c60f5e8b07403e0a175d5229efc36b0289b34143ff4aaa499a5dd52553a", 19_139_972,
	},
	"arm64": {
		"uv-0.13.8-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
		"sha256:0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d", 17_953_056,
	},
}

// Finder says where uv may come from.
type Finder struct {
	Store   *store.Store
	Fetch   *fetch.Client
	Indexes func() []string                  // addresses of the user's indexes, the one to ask first first
	Header  func(address string) http.Header // with which an address is asked for; nil: none
}

// Path returns the program: the one on PATH, else the pinned one from the store, which is brought there first.
func (f Finder) Path(ctx context.Context) (string, error) {
	if path, err := exec.LookPath("uv"); err == nil {
		return path, nil
	}
	w, ok := wheels[runtime.GOARCH]
	if !ok {
		return "", missing(errors.New("uv is not on PATH"))
	}
	dir, err := f.Store.Tree(ctx, TreeName(), func(dir string) error {
		if err := f.bring(ctx, w); err != nil {
			return missing(fmt.Errorf("uv is not on PATH, and uv %s could not be brought: %w", Version, err))
		}
		return f.unpack(w, dir)
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "uv"), nil
}

// TreeName is what the store calls the directory of the pinned program.
func TreeName() string { return "uv-" + Version + "-" + runtime.GOARCH }

// Stored returns the pinned program in the store, if it has come.
func Stored(st *store.Store) (path string, ok bool) {
	dir, ok := st.FindTree(TreeName())
	return filepath.Join(dir, "uv"), ok
}

func missing(err error) error {
	return fault.Hint(err,
		"name a package index that has it in UV_DEFAULT_INDEX; or get uv yourself, `python3 -m venv ~/.uv && ~/.uv/bin/pip install uv`, and put ~/.uv/bin on PATH; "+
			"or bring your own lock: pylock.toml with `lock = \"pylock.toml\"` under [python]")
}

// bring downloads the wheel from the first index that has it.
func (f Finder) bring(ctx context.Context, w wheel) error {
	if f.Store.HasBlob(w.digest) {
		return nil
	}
	if f.Fetch.Offline() {
		return fetch.ErrOffline
	}
	var failures []error
	for _, index := range f.Indexes() {
		address, err := f.addressOf(ctx, w, index)
		if err == nil {
			err = f.Fetch.Blob(ctx, fetch.Request{
				URL: address, Digest: w.digest, Size: w.size, Name: "uv " + Version, Header: f.header(address),
			})
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		failures = append(failures, err)
	}
	if len(failures) == 0 {
		return errors.New("no package index is configured (UV_DEFAULT_INDEX, or index-url in pip.conf), and there is no pip that knows one")
	}
	return errors.Join(failures...)
}

func (f Finder) header(address string) http.Header {
	if f.Header == nil {
		return nil
	}
	return f.Header(address)
}

// unpack takes the program out of its wheel.
func (f Finder) unpack(w wheel, dir string) error {
	blob, err := f.Store.OpenBlob(w.digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	archive, err := zip.NewReader(blob, w.size)
	if err != nil {
		return fmt.Errorf("read %s: %w", w.file, err)
	}
	for _, member := range archive.File {
		if strings.HasSuffix(member.Name, ".data/scripts/uv") {
			return unpackMember(member, filepath.Join(dir, "uv"))
		}
	}
	return fmt.Errorf("%s holds no program", w.file)
}

func unpackMember(member *zip.File, to string) error {
	r, err := member.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, r) //nolint:gosec // its hash is known
	return errors.Join(err, out.Close())
}
