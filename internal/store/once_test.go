package store_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sconce.dev/sconce/internal/store"
)

const testKind store.Kind = "test"

// shelf is a remote in memory.
type shelf struct {
	mu     sync.Mutex
	values map[string]int
	fails  bool
}

var errShelf = errors.New("the shelf is broken")

func (f *shelf) Get(_ context.Context, _ *store.Store, _, key string, v any) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails {
		return false, errShelf
	}
	n, ok := f.values[key]
	*v.(*int) = n
	return ok, nil
}

func (f *shelf) Put(_ context.Context, _ *store.Store, _, key string, v any, _ []store.Digest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails {
		return errShelf
	}
	f.values[key] = v.(int)
	return nil
}

func believe(context.Context, int) error { return nil }

func TestOnceAmongMany(t *testing.T) {
	st := open(t, t.TempDir())
	var made atomic.Int32
	once := store.Once[int]{Kind: testKind, Key: "key"}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			v, _, err := once.Do(t.Context(), st, func(context.Context) (int, error) { made.Add(1); return 7, nil })
			if v != 7 || err != nil {
				t.Errorf("%d, %v", v, err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times", made.Load())
	}
}

func TestOnceFailsAndIsTriedAgain(t *testing.T) {
	st := open(t, t.TempDir())
	once := store.Once[int]{Kind: testKind, Key: "key"}
	if _, _, err := once.Do(t.Context(), st, func(context.Context) (int, error) { return 3, errShelf }); !errors.Is(err, errShelf) {
		t.Fatal(err)
	}
	if v, found, err := once.Do(t.Context(), st, func(context.Context) (int, error) { return 4, nil }); v != 4 || found || err != nil {
		t.Errorf("%d, %t, %v", v, found, err)
	}
}

func TestOnceForgetsWhatIsGone(t *testing.T) {
	st := open(t, t.TempDir())
	blob, err := st.PutBlob([]byte("content"))
	if err != nil {
		t.Fatal(err)
	}
	once := store.Once[int]{Kind: testKind, Key: "key", Refs: func(int) []store.Digest { return []store.Digest{blob} }}
	do := func(context.Context) (int, error) { return 1, nil }
	if _, found, err := once.Do(t.Context(), st, do); found || err != nil {
		t.Fatal(found, err)
	}
	if _, found, err := once.Do(t.Context(), st, do); !found || err != nil {
		t.Fatal(found, err)
	}
	path, err := st.BlobPath(blob)
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, found, err := once.Recorded(st); found || err != nil {
		t.Error("a record whose blob is gone is believed", err)
	}
	refusing := store.Once[int]{Kind: testKind, Key: "other", Valid: func(int) bool { return false }}
	for range 2 {
		if _, found, err := refusing.Do(t.Context(), st, do); found || err != nil {
			t.Error("a record that is refused is believed", err)
		}
	}
}

func TestOnceShared(t *testing.T) {
	remote := &shelf{values: make(map[string]int)}
	with := func(x *store.Shared) store.Once[int] {
		return store.Once[int]{Kind: testKind, Key: "key", Shared: x, Confirm: believe}
	}
	do := func(v int) func(context.Context) (int, error) {
		return func(context.Context) (int, error) { return v, nil }
	}
	for i, test := range []struct {
		shared *store.Shared
		again  bool
		broken bool
		want   int
		found  bool
	}{
		{shared: &store.Shared{Remote: remote}, want: 0},                          // reads only
		{shared: &store.Shared{Remote: remote, Push: true}, want: 1},              // makes and sends
		{shared: &store.Shared{Remote: remote, Push: true}, want: 1, found: true}, // takes
		{shared: &store.Shared{Remote: remote, Push: true}, again: true, want: 3}, // makes it again, and sends that
		{shared: &store.Shared{Remote: remote}, want: 3, found: true},
		{shared: &store.Shared{Remote: remote, Push: true}, broken: true, want: 5}, // goes on alone
	} {
		once := with(test.shared)
		once.Again, remote.fails = test.again, test.broken
		v, found, err := once.Do(t.Context(), open(t, t.TempDir()), do(i))
		if v != test.want || found != test.found || err != nil {
			t.Errorf("%d: %d, %t, %v", i, v, found, err)
		}
	}
	lies := with(&store.Shared{Remote: &shelf{values: map[string]int{"key": 9}}})
	lies.Confirm = func(context.Context, int) error { return errShelf }
	if v, found, err := lies.Do(t.Context(), open(t, t.TempDir()), do(1)); v != 1 || found || err != nil {
		t.Errorf("a lie is believed: %d, %t, %v", v, found, err)
	}
}

// docs/formats.md lists every kind of record, each under its name.
func TestKindsAreDocumented(t *testing.T) {
	source, err := os.ReadFile("kinds.go")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../../docs/formats.md")
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, m := range regexp.MustCompile(`Kind = "([^"]+)"`).FindAllStringSubmatch(string(source), -1) {
		if names[m[1]] {
			t.Errorf("two kinds are called %s", m[1])
		}
		names[m[1]] = true
		if !strings.Contains(string(docs), "`"+m[1]+"`") {
			t.Errorf("docs/formats.md says nothing of %s", m[1])
		}
	}
	if len(names) < 10 {
		t.Errorf("only %d kinds found", len(names))
	}
}
