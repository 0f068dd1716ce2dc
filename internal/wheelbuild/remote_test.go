package wheelbuild

import (
	"context"
	"errors"
	"testing"

	"sconce.dev/sconce/internal/store"
)

// liar is a cache that has one answer to everything.
type liar struct{ value record }

func (l liar) Get(_ context.Context, _ *store.Store, _, _ string, v any) (bool, error) {
	*v.(*record) = l.value
	return true, nil
}

func (liar) Put(context.Context, *store.Store, string, string, any, []store.Digest) error { return nil }

var errUnbuilt = errors.New("nothing is built in this test")

func unbuilt(context.Context) (record, error) { return record{}, errUnbuilt }

// TestLyingCache: what a cache says of a wheel is looked at before this machine says it too.
func TestLyingCache(t *testing.T) {
	s := withFiles(t, Package{Name: "a", Version: "1.0"}, map[string]string{"usr/bin/cc": ""})
	digest, err := s.builder.store().PutBlob([]byte("wheel"))
	if err != nil {
		t.Fatal(err)
	}
	const file = "a-1.0+cu130-py3-none-any.whl"
	for name, r := range map[string]record{
		"a wheel that was never sent": {file, "1.0+cu130", store.DigestOf([]byte("absent")), 5},
		"a path for a digest":         {file, "1.0+cu130", "sha256:../../x", 5},
		"another size":                {file, "1.0+cu130", digest, 6},
		"another version":             {file, "1.1", digest, 5},
		"another package":             {"b-1.0-py3-none-any.whl", "1.0", digest, 5},
		"for another Python":          {"a-1.0-cp27-cp27m-linux_x86_64.whl", "1.0", digest, 5},
		"a path for a name":           {"../a-1.0-py3-none-any.whl", "1.0", digest, 5},
		"nothing":                     {},
	} {
		s.builder.Shared = &store.Shared{Remote: liar{r}}
		if got, _, err := s.once("key").Do(t.Context(), s.builder.store(), unbuilt); !errors.Is(err, errUnbuilt) {
			t.Errorf("%s: believed, %+v, %v", name, got, err)
		}
		if found, _ := s.builder.store().GetRecord(store.KindBuiltWheel, "key", new(record)); found {
			t.Fatalf("%s: recorded", name)
		}
	}
	s.builder.Shared = &store.Shared{Remote: liar{record{file, "1.0+cu130", digest, 5}}}
	if got, found, err := s.once("key").Do(t.Context(), s.builder.store(), unbuilt); !found || err != nil || got.Digest != digest {
		t.Errorf("the truth is not believed: %+v, %v", got, err)
	}
}
