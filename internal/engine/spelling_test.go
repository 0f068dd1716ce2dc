package engine_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/reach"
	"sconce.dev/sconce/internal/store"
)

// One Containerfile in so many runs a command, which takes longer than all else.
const often = 16

// randomContainerfile writes one of many Containerfiles, in one of many ways: some of what is random changes the image, and some
// only how it is said.
func randomContainerfile(r *rand.Rand, base, shell string) string {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	noise := func() string { return one("", "", "\n", "# a note\n") }
	runs := r.IntN(often) == 0
	if runs {
		base = shell
	}
	lines := []string{
		fmt.Sprintf("FROM %s AS %s", base, one("first", "FIRST")),
		one("ENV A=1", "ENV A=2", "env A=1", "ENV A 1"),
		fmt.Sprintf("COPY %s /x", one("file", "./file", "[f]ile")),
		one("LABEL l=1", "LABEL l=2"),
		"FROM " + base,
		fmt.Sprintf("COPY %sfile %s", one("", "./"), one("/x", "/y")),
		one("LABEL l=1", "LABEL l=\"1\"", "LABEL l=2", "LABEL \\\n  l=1"),
		one("", "MAINTAINER somebody"),
		fmt.Sprintf("COPY --from=%s /etc /%s/", one("first", "0"), one("a", "b")),
		one("WORKDIR /w", "WORKDIR /w/", "WORKDIR /v"),
		one("CMD [\"x\"]", "CMD [\"y\"]", "CMD x"),
		one("", "ARG VALUE=1\nLABEL argument=$VALUE", "ARG VALUE=1\nLABEL argument=${VALUE}", "ARG VALUE=2\nLABEL argument=$VALUE"),
	}
	if runs {
		lines = append(lines,
			one("ARG TEXT=a", "ARG TEXT=b", "ARG TEXT='a'"),
			one(`RUN echo "$TEXT" >/ran`, `RUN --mount=type=cache,target=/cache echo "$TEXT" >/ran`, `RUN --mount=target=/m cat /m/file >/ran`,
				`RUN --mount=type=bind,target=/m,source=. cat /m/file >/ran`, `RUN --mount=type=tmpfs,target=/t echo "$TEXT" >/ran`))
	}
	text := ""
	for _, line := range lines {
		if line != "" {
			text += noise() + line + "\n"
		}
	}
	return text
}

// One key, one digest, and the other way round: in a store that has built many like it, and in a fresh one.
func TestContainerfileKeyIsItsDigest(t *testing.T) {
	locktest.Isolate(t)
	const seed = 20261122
	r := rand.New(rand.NewPCG(seed, 1))
	dir := locktest.Dir(t, locktest.Base{Files: map[string]string{"etc/os-release": "ID=test\n"}}, map[string]string{"file": "hello"})
	shell := locktest.Dir(t, locktest.Base{Files: locktest.Shell(t)}, nil)
	t.Setenv(reach.Variable, shell)
	warm := newSession(t)
	keys, digests := make(map[plan.Key]store.Digest), make(map[store.Digest]plan.Key)
	build := func(s *engine.Session, text string) (plan.Key, store.Digest) {
		t.Helper()
		p, err := s.PlanContainerfile(t.Context(), engine.Containerfile{
			File: filepath.Join(dir, "Containerfile"), Text: []byte(text), Context: dir, Name: "made:1",
			Platform: v1.Platform{OS: "linux", Architecture: "amd64"},
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		defer p.Close()
		b, err := s.Build(t.Context(), p, engine.BuildOptions{})
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return p.Image.Key, b.Image.Digest
	}
	for i := range 120 {
		text := randomContainerfile(r, "tar:"+filepath.Join(dir, "base.tar"), "tar:"+filepath.Join(shell, "base.tar"))
		key, digest := build(warm, text)
		if i%6 == 0 {
			if _, fresh := build(newSession(t), text); fresh != digest {
				t.Fatalf("%s in a fresh store, %s in a warm one\n%s", fresh, digest, text)
			}
		}
		if known, ok := keys[key]; ok && known != digest {
			t.Fatalf("one key, two digests\n%s", text)
		}
		if known, ok := digests[digest]; ok && known != key {
			t.Fatalf("one digest, two keys\n%s", text)
		}
		keys[key], digests[digest] = digest, key
	}
	if len(keys) < 20 || len(keys) == 120 {
		t.Fatalf("%d images of 120 files: too few of them, or none twice", len(keys))
	}
}
