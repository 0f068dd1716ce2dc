// Package uv finds uv, which resolves Python packages, and brings it when the machine has none.
//
// uv is on the Python index as a wheel that holds one static program, so it comes from where the user's packages come from, by the
// same mirrors and logins. Release and hashes are pinned, here or by a site's configuration: an index can withhold it, and cannot
// replace it.
package uv

import (
	"archive/zip"
	"context"
	"crypto/x509"
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
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/store"
)

// Version is the release of uv that comes by itself.
const Version = "0.13.8"

// Release is a release of uv that can be brought.
type Release struct {
	Version string
	Wheels  map[string]Wheel // its wheels for musl, whose program is static, by architecture as Go names it
	By      string           // the file that asks for this release; "": it is the one that comes when nobody does
}

// Wheel is a file of an index, whatever its name.
type Wheel struct {
	Digest store.Digest
	Size   int64 // in bytes; 0 when not known
}

// Pinned is the release that comes when nobody asks for another.
var Pinned = Release{Version: Version, Wheels: map[string]Wheel{
	"amd64": {"sha256:29451c60f5e8b07403e0a175d5229efc36b0289b34143ff4aaa499a5dd52553a", 19_139_972},
	"arm64": {"sha256:0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d", 17_953_056},
}}

// machines are the architectures as wheels name them.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// Finder says where uv may come from.
type Finder struct {
	Store   *store.Store
	Fetch   *fetch.Client
	Asked   *Release                         // the release to take whatever PATH has; nil: nobody asks for one
	Indexes func() []string                  // addresses of the user's indexes, the one to ask first first
	Header  func(address string) http.Header // with which an address is asked for; nil: none
}

// Path returns the program: the release that was asked for, else the one on PATH, else the pinned one. What is not on PATH is
// brought into the store first.
func (f Finder) Path(ctx context.Context) (string, error) {
	r, why := f.release(), ""
	if f.Asked == nil {
		if path, err := exec.LookPath("uv"); err == nil {
			return path, nil
		}
		why = "uv is not on PATH, and "
	}
	w, ok := r.Wheels[runtime.GOARCH]
	if !ok {
		return "", f.missing(fmt.Errorf("%sno hash is known of uv %s for %s", why, r.Version, runtime.GOARCH))
	}
	dir, err := f.Store.Tree(ctx, r.TreeName(), func(dir string) error {
		if err := f.bring(ctx, w); err != nil {
			return f.missing(fmt.Errorf("%suv %s could not be brought: %w", why, r.Version, err))
		}
		return f.unpack(w, dir)
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "uv"), nil
}

// release is what is brought.
func (f Finder) release() Release {
	if f.Asked != nil {
		return *f.Asked
	}
	return Pinned
}

// TreeName is what the store calls the directory of the program of r for this machine.
func (r Release) TreeName() string {
	hash := strings.TrimPrefix(string(r.Wheels[runtime.GOARCH].Digest), "sha256:")
	return "uv-" + r.Version + "-" + runtime.GOARCH + "-" + hash[:min(len(hash), 12)]
}

// Stored returns the program in the store, if it has come, and its version. asked is as [Finder.Asked].
func Stored(st *store.Store, asked *Release) (path, version string, ok bool) {
	r := Finder{Asked: asked}.release()
	dir, ok := st.FindTree(r.TreeName())
	return filepath.Join(dir, "uv"), r.Version, ok
}

// missing says what to do where uv does not come.
func (f Finder) missing(err error) error {
	var wrong *store.MismatchError
	var signer x509.UnknownAuthorityError
	switch {
	case errors.As(err, &signer):
		return fault.Hint(err, host.UntrustedFix)
	case f.Asked != nil && errors.As(err, &wrong):
		return fault.Hint(err, fmt.Sprintf("compare the hash under [uv] in %s with that of the index; without [uv] there, it is uv %s", f.Asked.By, Version))
	case f.Asked != nil && f.Asked.Wheels[runtime.GOARCH].Digest == "":
		return fault.Hint(err, fmt.Sprintf("add `sha256 = { %s = \"…\" }` under [uv] in %s", runtime.GOARCH, f.Asked.By))
	}
	return fault.Hint(err,
		"name a package index that has it in UV_DEFAULT_INDEX; or get uv yourself, `python3 -m venv ~/.uv && ~/.uv/bin/pip install uv`, and put ~/.uv/bin on PATH; "+
			"or bring your own lock: pylock.toml with `lock = \"pylock.toml\"` under [python]")
}

// bring downloads the wheel from the first index that has it.
func (f Finder) bring(ctx context.Context, w Wheel) error {
	if f.Store.HasBlob(w.Digest) {
		return nil
	}
	if f.Fetch.Offline() {
		return fetch.ErrOffline
	}
	version := f.release().Version
	var failures []error
	for _, index := range f.Indexes() {
		address, err := f.addressOf(ctx, version, index)
		if err == nil {
			err = f.Fetch.Blob(ctx, fetch.Request{
				URL: address, Digest: w.Digest, Size: w.Size, Name: "uv " + version, Header: f.header(address),
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
func (f Finder) unpack(w Wheel, dir string) error {
	blob, err := f.Store.OpenBlob(w.Digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	size, err := blob.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	archive, err := zip.NewReader(blob, size)
	if err != nil {
		return fmt.Errorf("read the wheel of uv, %s: %w", w.Digest, err)
	}
	for _, member := range archive.File {
		if strings.HasSuffix(member.Name, ".data/scripts/uv") {
			return unpackMember(member, filepath.Join(dir, "uv"))
		}
	}
	return fmt.Errorf("the wheel of uv, %s, holds no program", w.Digest)
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
	_, err = io.Copy(out, r)
	return errors.Join(err, out.Close())
}
