package store_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// crashDir makes the test binary a process that writes into the store in the directory named by it until it is killed.
const crashDir = "SCONCE_TEST_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		fmt.Fprintln(os.Stderr, scribble(dir))
		os.Exit(1) // it is meant to be killed
	}
	if dir := os.Getenv(memberDir); dir != "" {
		if err := actAsMember(dir, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// scribble writes blobs, records, partials and trees without end. A record is only written after its blobs.
func scribble(dir string) error {
	s, err := store.Open(context.Background(), dir)
	if err != nil {
		return err
	}
	return scribbleInto(s)
}

func scribbleInto(s *store.Store) error {
	ctx := context.Background()
	r := rand.New(rand.NewSource(time.Now().UnixNano()))
	os.Stdout.WriteString("ready\n")
	for i := 0; ; i++ {
		data := make([]byte, r.Intn(1<<16))
		r.Read(data)
		d, err := s.PutBlob(data)
		if err != nil {
			return err
		}
		key := fmt.Sprintf("key-%d", i%50)
		if err := s.PutRecord("test", key, []store.Digest{d}, key); err != nil {
			return err
		}
		if err := scribblePartial(ctx, s, bytes.Repeat([]byte{byte(i)}, 1<<14)); err != nil {
			return err
		}
		_, err = s.Tree(ctx, fmt.Sprintf("tree-%d", i%20), func(tmp string) error {
			for j := range 5 {
				if err := os.WriteFile(filepath.Join(tmp, fmt.Sprint(j)), data, 0o644); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
}

func scribblePartial(ctx context.Context, s *store.Store, data []byte) error {
	d := store.DigestOf(data)
	l, err := s.Lock(ctx, string(d), "makes x")
	if err != nil {
		return err
	}
	defer l.Unlock()
	p, err := s.OpenPartial(d)
	if err != nil {
		return err
	}
	defer p.Close()
	for len(data) > int(p.Size()) {
		if _, err := p.Write(data[p.Size():min(p.Size()+1000, int64(len(data)))]); err != nil {
			return err
		}
	}
	return p.Commit()
}

func TestKilledAtAnyMoment(t *testing.T) {
	dir := t.TempDir()
	kills := 40
	if tooltest.Less(t) {
		kills = 8
	}
	for range kills {
		killScribbler(t, dir)
		s := open(t, dir)
		if r := clean(t, s); r.Stale != 0 {
			t.Fatalf("%d records were written before their blobs", r.Stale)
		}
		checkTrees(t, s)
		s.Close()
	}
	s := open(t, dir)
	if _, err := s.Prune(context.Background(), store.PruneOptions{All: true, NoWait: true}); err != nil {
		t.Fatal(err)
	}
	if r := clean(t, s); r.Blobs+r.Records+r.Trees+r.Unused != 0 {
		t.Errorf("prune leaves %+v", r)
	}
}

// killScribbler runs a writer and kills it without warning, somewhere.
func killScribbler(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashDir+"="+dir)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	io.ReadFull(out, make([]byte, len("ready\n")))
	time.Sleep(time.Duration(rand.Intn(30_000)) * time.Microsecond)
	cmd.Process.Kill()
	cmd.Wait()
	if complaint.Len() > 0 {
		t.Fatalf("the writer failed: %s", &complaint)
	}
}

// checkTrees looks whether every tree that the store believes is whole.
func checkTrees(t *testing.T, s *store.Store) {
	t.Helper()
	markers, _ := filepath.Glob(filepath.Join(s.Dir(), "trees-v1", "*.done"))
	for _, m := range markers {
		entries, err := os.ReadDir(m[:len(m)-len(".done")])
		if err != nil || len(entries) != 5 {
			t.Errorf("tree %s: %d files, %v", m, len(entries), err)
		}
	}
}
