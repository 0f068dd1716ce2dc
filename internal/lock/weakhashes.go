package lock

import (
	"context"
	"fmt"
	"hash"
	"net/url"
	"path"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/store"
)

// Some indexes give other hashes of their files than sha256: md5 above all, which older servers have. uv writes down what they give. What
// the image may come from is downloaded then, held against that hash, and locked by its sha256 as well.

var (
	// A file in a package lock as uv writes it, on one line. Groups: all up to the hashes, the address, the hashes.
	lockedFile = lazyregexp.New(`(\{ url = "([^"]+)"[^{}\n]*hashes = \{ )([a-z0-9_]+ = "[0-9a-fA-F]+"(?:, [a-z0-9_]+ = "[0-9a-fA-F]+")*)( \})`)
	lockedHash = lazyregexp.New(`([a-z0-9_]+) = "([0-9a-fA-F]+)"`)
)

const packageTable = "[[packages]]"

// withStrongHashes adds a sha256 to the files of a package lock that have other hashes only, as far as the image may come from them.
func (k *locker) withStrongHashes(ctx context.Context, text string) (string, error) {
	tables := strings.Split(text, packageTable)
	for i, table := range tables {
		wheels := false // that fit: no source is needed then
		for _, m := range lockedFile.FindAllStringSubmatch(table, -1) {
			wheels = wheels || k.fits(m[2])
		}
		var failed error
		tables[i] = lockedFile.ReplaceAllStringFunc(table, func(entry string) string {
			m := lockedFile.FindStringSubmatch(entry)
			isWheel := strings.HasSuffix(fileOfAddress(m[2]), ".whl")
			if failed != nil || strings.Contains(m[3], "sha256") || isWheel && !k.fits(m[2]) || !isWheel && wheels {
				return entry
			}
			var d store.Digest
			if d, failed = k.strongHash(ctx, m[2], m[3]); failed != nil {
				return entry
			}
			return m[1] + m[3] + `, sha256 = "` + d.Hex() + `"` + m[4]
		})
		if failed != nil {
			return "", failed
		}
	}
	return strings.Join(tables, packageTable), nil
}

// fits reports whether an address is that of a wheel for the image's Python.
func (k *locker) fits(address string) bool {
	name, err := python.ParseWheelName(fileOfAddress(address))
	return err == nil && name.Fits(k.python.Interpreter().Tags())
}

func fileOfAddress(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return path.Base(u.Path)
}

// strongHash downloads a file and holds it against its hashes, as they stand in a lock.
func (k *locker) strongHash(ctx context.Context, address, hashes string) (store.Digest, error) {
	name := fileOfAddress(address)
	if d, ok := k.strong[address]; ok {
		return d, nil
	}
	given, makers := make(map[string]string), make(map[string]func() hash.Hash)
	for _, m := range lockedHash.FindAllStringSubmatch(hashes, -1) {
		if a, ok := algorithms[m[1]]; ok {
			given[m[1]], makers[m[1]] = strings.ToLower(m[2]), a.make
		}
	}
	if len(given) == 0 {
		return "", fault.Hint(fmt.Errorf("%s: the index gives no hash of it that can be checked: %s", name, hashes),
			"name another index or mirror that has it in a uv.toml beside the recipe: [[index]] with url = \"…\"")
	}
	d, err := k.opts.Fetch.Unpinned(ctx, fetch.Request{URL: address, Name: name, Header: k.logins.Header(address), Login: LoginHint})
	if err != nil {
		return "", err
	}
	for algorithm, want := range given {
		sums, err := sumBlob(k.opts.Store, d, map[string]hash.Hash{algorithm: makers[algorithm]()})
		if err != nil {
			return "", err
		}
		if len(sums) != 1 || sums[0].hex != want {
			return "", fault.Hint(fmt.Errorf("%s: what came is another file than the index says: its %s is not %s", name, algorithm, want),
				"the index, or something on the way to it, is wrong: try again, or take another index")
		}
	}
	if k.strong == nil {
		k.strong = make(map[string]store.Digest)
	}
	k.strong[address] = d
	return d, nil
}
