package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/ProtonMail/go-crypto/openpgp/armor"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/rpm"
)

// rpmKeys are the keys that may sign, file by file.
type rpmKeys []*rpmKeyFile

type rpmKeyFile struct {
	keys  *debian.Keyring
	text  string      // the keys, armored
	image atomic.Bool // the image has them: they were named, or have signed something
}

// believe asks check of one file of keys after another until one of them has signed. An error is about what is wrong with a signature,
// if it is more than that nobody knows who has made it.
func (k rpmKeys) believe(check func(*debian.Keyring) error) error {
	var failed error = &debian.UnknownKeyError{}
	for _, f := range k {
		err := check(f.keys)
		if err == nil {
			f.image.Store(true)
			return nil
		}
		var unknown *debian.UnknownKeyError
		if errors.As(failed, &unknown) {
			failed = err
		}
	}
	return failed
}

// text is what the image gets of them.
func (k rpmKeys) text() string {
	var all strings.Builder
	for _, f := range k {
		if f.image.Load() {
			all.WriteString(f.text)
		}
	}
	return all.String()
}

// hostRPMKeys are where a machine has the keys of RPM packages: those that its own packages have brought.
var hostRPMKeys = []string{"/etc/pki/rpm-gpg/*", "/usr/lib/rpm/gnupg/keys/*"}

// rpmKeys are the keys that may sign: those that the request names, and no others, or the release's own. Who names an address and no keys
// gets all that came with sconce and are here.
func (x *indices) rpmKeys(ctx context.Context) (rpmKeys, error) {
	if len(x.r.Keys) > 0 {
		return x.namedKeys(ctx)
	}
	if x.r.Trusted {
		return nil, nil
	}
	if !isAddress(x.r.Dnf) {
		return keysOf(x.r.Dnf, true)
	}
	var all rpmKeys
	for _, name := range slices.Sorted(maps.Keys(distributions)) {
		for _, release := range distributions[name].releases {
			keys, err := keysOf(name+":"+release, false)
			if err != nil {
				return nil, err
			}
			all = append(all, keys...)
		}
	}
	return append(all, keysHere()...), nil
}

func (x *indices) namedKeys(ctx context.Context) (rpmKeys, error) {
	var all rpmKeys
	for _, name := range slices.Sorted(slices.Values(x.r.Keys)) {
		data, err := x.readKeys(ctx, name)
		if err != nil {
			return nil, err
		}
		f, err := newRPMKeyFile(data, true)
		if err != nil {
			return nil, fmt.Errorf("read the keys in %s: %w", name, err)
		}
		all = append(all, f)
	}
	return all, nil
}

// keysOf are the keys of a release that came with sconce.
func keysOf(release string, image bool) (rpmKeys, error) {
	files := rpm.Keys(strings.Replace(release, ":", "-", 1))
	var all rpmKeys
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := newRPMKeyFile(files[name], image)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// keysHere are those that this machine has. A file that cannot be read signs nothing.
func keysHere() rpmKeys {
	var all rpmKeys
	for _, pattern := range hostRPMKeys {
		files, err := filepath.Glob(pattern)
		if err != nil {
			panic(err) // the pattern is a constant
		}
		for _, name := range files {
			data, err := readSmall(name, maxKeys)
			if err != nil {
				continue
			}
			if f, err := newRPMKeyFile(data, false); err == nil {
				all = append(all, f)
			}
		}
	}
	return all
}

func newRPMKeyFile(data []byte, image bool) (*rpmKeyFile, error) {
	f := &rpmKeyFile{keys: &debian.Keyring{}}
	f.image.Store(image)
	if err := f.keys.Add(data); err != nil {
		return nil, err
	}
	var err error
	f.text, err = armorKeys(data)
	return f, err
}

// armorKeys writes a file of keys as text, which rpm wants.
func armorKeys(data []byte) (string, error) {
	const begin = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
	if at := bytes.Index(data, []byte(begin)); at >= 0 {
		return strings.TrimSpace(string(data[at:])) + "\n", nil
	}
	var b bytes.Buffer
	w, err := armor.Encode(&b, "PGP PUBLIC KEY BLOCK", nil)
	if err != nil {
		return "", err
	}
	if _, err := w.Write(data); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return b.String() + "\n", nil
}
