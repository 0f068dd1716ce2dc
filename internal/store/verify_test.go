package store_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
)

func TestVerifyFindsAndRemovesDamage(t *testing.T) {
	s := open(t, t.TempDir())
	good, bad, ofImage := put(t, s, "good"), put(t, s, "bad"), put(t, s, "layer")
	image(t, s, "broken", ofImage)
	image(t, s, "whole", good)
	record(t, s, "stale", bad)
	record(t, s, "illegible")
	spoil(t, s, bad)
	imagePath, _ := s.BlobPath(ofImage)
	illegible := filepath.Join(s.Dir(), "records-v1", "test", "il", "illegible")
	stray := filepath.Join(s.Dir(), "blobs-v1", "sha256", "stray")
	err := errors.Join(os.Remove(imagePath), os.Chmod(illegible, 0o644), os.WriteFile(illegible, []byte("{"), 0o644),
		os.WriteFile(stray, nil, 0o644))
	if err != nil {
		t.Fatal(err)
	}

	r, err := s.Verify(context.Background(), false)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"its hash is", "not named as a blob", "image broken:1 lacks blob " + string(ofImage), "cannot be read as a record"}
	if len(r.Damaged) != len(want) {
		t.Fatalf("damaged: %+v", r.Damaged)
	}
	for i, d := range r.Damaged {
		if !strings.Contains(d.Problem, want[i]) || d.Removed {
			t.Errorf("%+v: want %q", d, want[i])
		}
	}
	if !exists(s, bad) {
		t.Error("verify removes without being asked")
	}

	if r, err = s.Verify(context.Background(), true); err != nil || len(r.Damaged) != 4 || r.Stale != 1 {
		t.Fatalf("verify: %+v, %v", r, err)
	}
	for _, d := range r.Damaged {
		if !d.Removed {
			t.Errorf("%s stays", d.Object)
		}
	}
	if r = clean(t, s); r.Blobs != 1 || r.Records != 1 || r.Stale != 0 {
		t.Errorf("left: %+v", r)
	}
	if !exists(s, good) {
		t.Error("a good blob was removed")
	}
}

func TestVerifyStopsWhenInterrupted(t *testing.T) {
	s := open(t, t.TempDir())
	d := put(t, s, "blob")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Verify(ctx, true); !errors.Is(err, context.Canceled) {
		t.Errorf("Verify: %v", err)
	}
	if !exists(s, d) {
		t.Error("an interrupted verify takes a good blob for a damaged one")
	}
}

func TestImages(t *testing.T) {
	s := open(t, t.TempDir())
	one, two := put(t, s, "manifest 1"), put(t, s, "manifest 2")
	for _, r := range []store.ImageRef{
		{Name: "torch", Tag: "25.1", Digest: one},
		{Name: "torch", Tag: "25.2", Digest: two},
		{Name: "base", Tag: "only", Digest: one},
		{Name: "tool", Tag: "latest", Digest: one},
		{Name: "tool", Tag: "old", Digest: two},
		{Name: "localhost:5000/x", Tag: "1", Digest: two},
		{Name: "docker.io/library/far", Tag: "latest", Digest: one},
		{Name: "docker.io/library/near", Tag: "latest", Digest: one},
		{Name: "near", Tag: "latest", Digest: two},
		{Name: "docker.io/me/app", Tag: "1", Digest: one},
	} {
		if err := s.PutImage(r, []store.Digest{r.Digest}); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"torch:25.2": "torch:25.2", "base": "base:only", "tool": "tool:latest", "localhost:5000/x": "localhost:5000/x:1",
		two.Short(): "localhost:5000/x:1", string(one): "base:only",
		"docker.io/library/tool": "tool:latest", "docker.io/library/tool:old": "tool:old", "library/tool:latest": "tool:latest",
		"localhost/tool": "tool:latest", "far": "docker.io/library/far:latest", "far:latest": "docker.io/library/far:latest",
		"near": "near:latest", "docker.io/library/near": "docker.io/library/near:latest", "me/app": "docker.io/me/app:1",
	} {
		if r, err := s.FindImage(name); err != nil || r.FullName() != want {
			t.Errorf("FindImage(%q) = %s, %v; want %s", name, r.FullName(), err, want)
		}
	}
	if _, err := s.FindImage("torch"); err == nil || !strings.Contains(err.Error(), "torch:25.1 or torch:25.2") {
		t.Errorf("ambiguous name: %v", err)
	}
	for name, want := range map[string]string{"torch:25.3": "torch:25.1 torch:25.2", "trch": "torch:25.1 torch:25.2", "bsae:1": "base:only", "absent": "", "": ""} {
		similar, err := s.SimilarImages(name)
		var got []string
		for _, r := range similar {
			got = append(got, r.FullName())
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("SimilarImages(%q) = %v, %v; want %s", name, got, err, want)
		}
	}
	for name, want := range map[string]string{
		"docker.io/library/a:1": "a:1", "localhost/a": "a:latest", "docker.io/me/a:2": "me/a:2", "library/a/b": "library/a/b:latest", "ghcr.io/library/a": "ghcr.io/library/a:latest",
	} {
		if n, tag, err := store.ParseImageName(name); err != nil || n+":"+tag != want {
			t.Errorf("ParseImageName(%q) = %s, %s, %v; want %s", name, n, tag, err, want)
		}
	}
	for _, name := range []string{"", "absent", "torch:25.3", "torch:", "123", "sha256:", "ghcr.io/library/tool", "me/tool", "app:1"} {
		if _, err := s.FindImage(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("FindImage(%q): %v", name, err)
		}
	}
	if err := s.PutImage(store.ImageRef{Name: "x", Tag: "1", Digest: two}, []store.Digest{one}); err == nil {
		t.Error("an image without its manifest is accepted")
	}
	for _, bad := range []store.ImageRef{
		{Name: "", Tag: "1", Digest: one},
		{Name: "x", Digest: one},
		{Name: "../x", Tag: "1", Digest: one},
		{Name: "x\x1b[2J", Tag: "1", Digest: one},
		{Name: "x", Tag: "a/b", Digest: one},
	} {
		if err := s.PutImage(bad, []store.Digest{one}); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
		key := store.DigestOf([]byte(bad.FullName())).Hex() // as whoever writes a shared store may have it
		if err := s.PutRecord(store.KindImage, key, []store.Digest{one, two}, bad); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.Images()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if _, _, err := store.ParseImageName(r.FullName()); err != nil {
			t.Errorf("%q is listed", r.FullName())
		}
	}
}

func TestParseImageName(t *testing.T) {
	for text, want := range map[string]string{
		"train": "train:latest", "train:2": "train:2", "localhost:5000/train": "localhost:5000/train:latest",
		"": "", "my train": "", "train:": "", "train:a b": "", ":2": "",
	} {
		name, tag, err := store.ParseImageName(text)
		if got := name + ":" + tag; (err == nil) != (want != "") || (err == nil && got != want) || (err != nil && fault.CodeOf(err) != fault.CodeUsage) {
			t.Errorf("%q: %s, %v; want %q", text, got, err, want)
		}
	}
}
