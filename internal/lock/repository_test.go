package lock_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/store/storetest"
)

// TestSilentRepository locks a package of a repository whose server says nothing when it is asked for the first time, by uv's git, or for the
// last, by our own: that is ended, and asks again. The user's own ssh is left as it is.
func TestSilentRepository(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0"), w("setuptools", "70.0"))
	locktest.Repository(t, filepath.Join(b.dir, "repo"), "mine")
	recipe := "[python]\npackages = [\"alpha\", \"mine @ git+ssh://git@host" + filepath.Join(b.dir, "repo") + "\"]\n"
	server := locktest.SSH(t)
	t.Setenv("GIT_SSH_COMMAND", server.Command)
	t.Setenv("GIT_HTTP_LOW_SPEED_TIME", "1")
	b.lock(recipe)
	want, times := b.read("pylock.toml"), server.Asked()
	if times < 2 {
		t.Fatalf("it was asked %d times, want once by uv and once by sconce at least", times)
	}
	for _, n := range []int{1, times} {
		other := &bench{t: t, dir: locktest.Dir(t, locktest.Base{}, nil), store: storetest.New(t)}
		t.Setenv("UV_CACHE_DIR", t.TempDir())
		server.SilentAt(n)
		r := other.recipe(recipe)
		if _, err := lock.Update(t.Context(), r, lock.Options{Store: other.store, Fetch: fetch.New(other.store, fetch.Options{Backoff: time.Millisecond})}); err != nil {
			t.Fatalf("silent at request %d: %v", n, err)
		}
		if got := other.read("pylock.toml"); got != want {
			t.Errorf("silent at request %d: another lock\n%s\n%s", n, got, want)
		}
		if asked := server.Asked(); asked <= times {
			t.Errorf("silent at request %d: it was asked %d times, as often as if it had answered", n, asked)
		}
	}
	server.SilentAt(1)
	t.Setenv("UV_CACHE_DIR", t.TempDir())
	fresh := &bench{t: t, dir: locktest.Dir(t, locktest.Base{}, nil), store: storetest.New(t)}
	fresh.fails(recipe, "mine @ git+ssh://", "the server of a repository sent nothing for too long (1s)", "gave up after 1 attempts")
}

// uv's git has limits as our own has, and the user's count before ours.
func TestGitOfUVHasLimits(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0"))
	fakeUV(t, `env | grep ^GIT_ > `+filepath.Join(b.dir, "seen")+`; exec "$UV" "$@"`)
	t.Setenv("GIT_HTTP_LOW_SPEED_LIMIT", "1000")
	b.lock("[python]\npackages = [\"alpha\"]\n")
	for _, want := range []string{"GIT_HTTP_LOW_SPEED_LIMIT=1000", "GIT_HTTP_LOW_SPEED_TIME=60", "GIT_TERMINAL_PROMPT=0"} {
		if seen := b.read("seen"); !strings.Contains(seen, want+"\n") {
			t.Errorf("uv's environment lacks %s:\n%s", want, seen)
		}
	}
}
