package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/store"
)

// Limits, in bytes. Debian's InRelease has 150 kB, its largest index 60 MB.
const (
	maxRelease = 16 << 20
	maxIndex   = 1 << 30
)

// indices reads the signed indices of archives.
type indices struct {
	store *store.Store
	fetch *fetch.Client
	keys  *debian.Keyring // of archives of Debian's kind
	signs rpmKeys         // of repositories of RPM packages
	r     Request
}

// release fetches an archive's index of indices, and believes it when it is signed by a known key, for the suite, and not too old.
func (x *indices) release(ctx context.Context, a archive) (*debian.Release, error) {
	text, err := x.signed(ctx, a)
	if err != nil {
		return nil, err
	}
	r, err := debian.ParseRelease(text)
	if err == nil {
		err = r.Check(a.suite, a.now(x.r.Now))
	}
	if err != nil {
		return nil, explainRelease(err, a)
	}
	return r, nil
}

// signed returns the text of the Release file: of InRelease, which has its signature in it, or of Release with Release.gpg.
func (x *indices) signed(ctx context.Context, a archive) ([]byte, error) {
	dir := a.url + "/dists/" + a.suite + "/"
	text, err := x.get(ctx, dir+"InRelease")
	if err == nil {
		if x.r.Trusted {
			return debian.Unsigned(text), nil
		}
		var plain []byte
		err := x.checked(a, func(now time.Time) (err error) {
			plain, err = x.keys.OpenSigned(text, now)
			return err
		})
		return plain, err
	}
	if !missing(err) {
		return nil, noRelease(err, a)
	}
	if text, err = x.get(ctx, dir+"Release"); err != nil {
		if missing(err) {
			return nil, noSuite(err, a)
		}
		return nil, noRelease(err, a)
	}
	if x.r.Trusted {
		return text, nil
	}
	signature, err := x.get(ctx, dir+"Release.gpg")
	if missing(err) {
		return nil, explainRelease(debian.ErrUnsigned, a)
	}
	if err != nil {
		return nil, noRelease(err, a)
	}
	return text, x.checked(a, func(now time.Time) error { return x.keys.Verify(text, signature, now) })
}

// checked checks a signature today, and that of a snapshot at its time as well: keys do not last as long as snapshots.
func (x *indices) checked(a archive, check func(now time.Time) error) error {
	err := check(x.r.Now)
	if then := a.now(x.r.Now); err != nil && !then.Equal(x.r.Now) && check(then) == nil {
		return nil
	}
	if err != nil {
		return explainRelease(err, a)
	}
	return nil
}

// get reads a small file of a mirror.
func (x *indices) get(ctx context.Context, address string) ([]byte, error) {
	if u, err := url.Parse(address); err == nil && u.Scheme == "file" {
		return readSmall(u.Path, maxRelease)
	}
	var data []byte
	err := x.fetch.Retry(ctx, func(ctx context.Context, _ bool) (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
		if err != nil {
			return false, err
		}
		resp, err := x.fetch.DoOfRecipe(req)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return false, fetch.NewStatusError(resp)
		}
		data, err = ctxio.ReadAtMost(resp.Body, maxRelease)
		if err == nil {
			err = fetch.ErrDone
		}
		return false, err
	})
	if err != nil {
		return nil, fmt.Errorf("download %s: %w", fetch.Redact(address), err)
	}
	return data, nil
}

// missing reports whether a mirror said that it has no such file.
func missing(err error) bool {
	var status *fetch.StatusError
	return errors.As(err, &status) && (status.Code == http.StatusNotFound || status.Code == http.StatusGone) || errors.Is(err, fs.ErrNotExist)
}

func noRelease(err error, a archive) error {
	return fault.Hint(fmt.Errorf("the index of %s cannot be read: %w", a.suite, err), "base.bootstrap.mirror names another mirror; proxies are taken from http_proxy and https_proxy")
}

func noSuite(err error, a archive) error {
	var known []string
	for _, v := range vendors {
		known = append(known, v.suites...)
	}
	err = fmt.Errorf("the mirror %s has no suite %s: %w", fetch.Redact(a.url), a.suite, err)
	if near := spelling.Nearest(a.suite, known); near != "" && near != a.suite {
		return fault.Hint(err, fmt.Sprintf("instead of %q, did you mean %q?", a.suite, near))
	}
	return fault.Hint(err, "base.bootstrap.mirror names another mirror")
}

// explainRelease says what may be done about an index that is not to be believed.
func explainRelease(err error, a archive) error {
	var unknown *debian.UnknownKeyError
	var expired *debian.ExpiredError
	hint := "the mirror may be damaged, or be another's: take another one with base.bootstrap.mirror"
	switch {
	case errors.As(err, &unknown):
		hint = "base.bootstrap.keys names the files with the keys of an archive that is not Debian's or Ubuntu's own"
	case errors.Is(err, debian.ErrUnsigned):
		hint = "an archive of your own that nobody signs is believed with trusted = true under [base] bootstrap"
	case errors.As(err, &expired):
		hint = "the mirror stands still: take another one with base.bootstrap.mirror; the date in the address of a snapshot is when it has to be good"
	}
	return fault.Hint(fmt.Errorf("the index of %s at %s is not to be believed: %w", a.suite, fetch.Redact(a.url), err), hint)
}

// packages adds the packages of an archive to all there are.
func (x *indices) packages(ctx context.Context, a archive, r *debian.Release, number int, u *debian.Universe) error {
	for _, component := range a.components {
		paths, err := indexPaths(a, r, component, x.r.Architecture)
		if err != nil {
			return err
		}
		for _, p := range paths {
			if err := x.read(ctx, a, r, p, number, u); err != nil {
				return fmt.Errorf("read %s of %s: %w", p, a.suite, err)
			}
		}
	}
	return nil
}

// indexPaths finds the lists of packages of a component. Some archives list packages for all architectures apart.
func indexPaths(a archive, r *debian.Release, component, architecture string) ([]string, error) {
	var paths []string
	architectures := []string{architecture}
	if r.SeparateAll {
		architectures = append(architectures, "all")
	}
	for _, arch := range architectures {
		for _, ending := range []string{".gz", ".xz", ""} { // the first is read ten times as fast as the second
			if p := component + "/binary-" + arch + "/Packages" + ending; r.Files[p].SHA256 != "" {
				paths = append(paths, p)
				break
			}
		}
	}
	if len(paths) > 0 {
		return paths, nil
	}
	if len(r.Components) > 0 && !slices.ContainsFunc(r.Components, func(c string) bool { return path.Base(c) == component || c == component }) {
		return nil, fault.Hint(fmt.Errorf("%s has no component %q: it has %s", a.suite, component, strings.Join(r.Components, ", ")), "base.bootstrap.components names them")
	}
	return nil, noArchitecture(a, r, component, architecture)
}

// noArchitecture says which architectures there are instead. Ubuntu has all but those of PCs on mirrors of their own.
func noArchitecture(a archive, r *debian.Release, component, architecture string) error {
	var has []string
	for name := range r.Files {
		rest, ok := strings.CutPrefix(path.Dir(name), component+"/binary-")
		if ok && rest != "all" && !slices.Contains(has, rest) {
			has = append(has, rest)
		}
	}
	slices.Sort(has)
	hint := "base.bootstrap.mirror names a mirror that has them; platform under [target] says which are wanted"
	if v, err := vendorOf(strings.SplitN(a.suite, "-", 2)[0]); err == nil && v.name == "ubuntu" && !strings.HasSuffix(a.url, debian.UbuntuPorts) {
		hint = fmt.Sprintf("Ubuntu's packages for %s are on its mirrors of ports: mirror = \"http://…%s\" under [base] bootstrap", architecture, debian.UbuntuPorts)
	}
	err := fmt.Errorf("%s has no packages for %s in %s", a.suite, architecture, component)
	if len(has) > 0 {
		err = fmt.Errorf("%w: it has those for %s", err, strings.Join(has, ", "))
	}
	return fault.Hint(err, hint)
}

func (x *indices) read(ctx context.Context, a archive, r *debian.Release, p string, number int, u *debian.Universe) error {
	file := r.Files[p]
	digest, err := store.ParseDigest("sha256:" + file.SHA256)
	if err != nil {
		return err
	}
	dir := a.url + "/dists/" + a.suite + "/"
	request := fetch.Request{URL: dir + p, Digest: digest, Size: file.Size, Name: "packages of " + a.suite, OfRecipe: true}
	if r.ByHash { // which names the same bytes while the mirror changes
		request.URL = dir + path.Dir(p) + "/by-hash/SHA256/" + file.SHA256
	}
	err = x.fetch.Blob(ctx, request)
	if r.ByHash && missing(err) {
		request.URL = dir + p
		err = x.fetch.Blob(ctx, request)
	}
	if err != nil {
		return lies(err)
	}
	return x.readList(digest, maxIndex, fmt.Sprintf("%d MiB", maxIndex>>20), func(text io.Reader) error { return u.Read(text, number) })
}

// readList reads a list of packages that is in the store, decompressed; it is an error when it has most bytes or more, which are called size.
func (x *indices) readList(digest store.Digest, most int64, size string, read func(io.Reader) error) error {
	f, err := x.store.OpenBlob(digest)
	if err != nil {
		return err
	}
	defer f.Close()
	in, err := layer.Decompress(f)
	if err != nil {
		return err
	}
	defer in.Close()
	text := &io.LimitedReader{R: in, N: most}
	if err := read(text); err != nil {
		return err
	}
	if text.N <= 0 {
		return errors.New("it is larger than " + size)
	}
	return nil
}

// lies explains files that are not what the signed index says.
func lies(err error) error {
	var mismatch *store.MismatchError
	var size *fetch.SizeError
	if errors.As(err, &mismatch) || errors.As(err, &size) {
		return fault.Hint(err, "the mirror has other bytes than the signed index says: it is being updated, or is not to be trusted; try again later, or another one")
	}
	if missing(err) {
		return fault.Hint(err, "mirrors drop a package when there is a newer one: `sconce lock --upgrade` takes that; a mirror of snapshots keeps all")
	}
	return err
}
