package lock_test

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/lock/locktest"
)

// TestIndexWithOtherHashes: what an index names by md5 or sha512 is held against that and locked by its sha256, the files that the
// image may come from alone. What is another file than the index says is refused, and sha1, which uv does not read, is answered.
func TestIndexWithOtherHashes(t *testing.T) {
	md5Of := func(data []byte) string { return fmt.Sprintf("md5=%x", md5.Sum(data)) }
	sha512Of := func(data []byte) string { return fmt.Sprintf("sha512=%x", sha512.Sum512(data)) }
	const text = "[python]\npackages = [\"alpha\"]\n"
	other := locktest.Wheel{Name: "alpha", Version: "1.0", Tag: "cp39-cp39-win_amd64"}
	for name, hash := range map[string]func([]byte) string{"md5": md5Of, "sha512": sha512Of} {
		t.Run(name, func(t *testing.T) {
			b, x := newBench(t, locktest.Base{}, w("alpha", "1.0", "beta"), w("beta", "1.0"), other)
			x.HashBy(hash)
			r, l := b.lock(text)
			wantPins(t, l, r, "alpha==1.0 requested", "beta==1.0")
			wheels, err := wheelsOf(l, r)
			if err != nil || string(wheels[0].Digest) != "sha256:"+sum(t, w("alpha", "1.0", "beta")) {
				t.Errorf("%+v, %v", wheels, err)
			}
			if slices.Contains(x.Downloads(), other.File()) {
				t.Error("a wheel for others was downloaded")
			}
		})
	}
	b, x := newBench(t, locktest.Base{}, w("alpha", "1.0"))
	x.HashBy(func([]byte) string { return "md5=" + strings.Repeat("0", 32) })
	b.fails(text, "alpha-1.0-py3-none-any.whl: what came is another file than the index says", "its md5 is not 0000")
	x.HashBy(func(data []byte) string { return fmt.Sprintf("sha1=%x", sha1.Sum(data)) })
	t.Setenv("UV_CACHE_DIR", t.TempDir())
	b.fails(text, "Unsupported hash algorithm", "name another index or mirror")
}

// sum returns the sha256 of a wheel.
func sum(t testing.TB, w locktest.Wheel) string {
	t.Helper()
	return fmt.Sprintf("%x", sha256.Sum256(w.Bytes(t)))
}
