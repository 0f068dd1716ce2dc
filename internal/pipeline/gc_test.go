package pipeline_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

// states are what a cleaning found, NAME:VERSION-KEY by state.
func states(all []promote.Cleaned) map[string][]string {
	found := make(map[string][]string)
	for _, c := range all {
		for _, tag := range c.Tags {
			found[c.State] = append(found[c.State], c.Repository[strings.LastIndexByte(c.Repository, '/')+1:]+":"+tag)
		}
	}
	return found
}

func clean(t *testing.T, dir string, remove bool) map[string][]string {
	t.Helper()
	s, p := newSession(t), open(t, dir)
	images, err := p.Images(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	all, err := p.Clean(t.Context(), s, images, remove)
	if err != nil {
		t.Fatal(err)
	}
	return states(all)
}

// Of two generations of a pipeline in a real registry the old one goes, but for what is published, and what that is based on.
func TestCleanPipeline(t *testing.T) {
	registrytest.Isolate(t)
	outsideCI(t)
	s := newSession(t)
	dir := write(t, s, registrytest.Start(t, false))
	p := open(t, dir)
	before := look(t, s, dir)
	if _, err := p.Run(t.Context(), s, before, pipeline.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	publish(t, before[2:3]) // app:small
	change(t, dir, "images/base/file", "first", "second")
	after := look(t, s, dir)
	if _, err := p.Run(t.Context(), s, after, pipeline.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	kept := func(all []*pipeline.Status) (names []string) {
		for _, st := range all {
			names = append(names, st.Canonical[strings.LastIndexByte(st.Canonical, '/')+1:])
		}
		return names
	}
	want := append(kept(after), kept(before[:3])...) // the published one is based on the stack, and that on the base
	old := kept(before[3:])
	if got := clean(t, dir, true); !same(got[promote.Waiting], slices.Concat(kept(before[:2]), old)) {
		t.Errorf("without a time all stays, and what nobody needs by itself is told: %v", got)
	}
	writeKeep(t, dir, "canonical = \"0h\"\nnewest = 3")
	if got := clean(t, dir, true); len(got[promote.Due])+len(got[promote.Deleted]) > 0 {
		t.Errorf("one of the newest goes: %v", got)
	}
	writeKeep(t, dir, "canonical = \"0h\"")
	clean(t, dir, true) // marks
	if got := clean(t, dir, false); !slices.Equal(got[promote.Due], old) {
		t.Errorf("due: %v, want %v", got, old)
	}
	if got := clean(t, dir, true); !slices.Equal(got[promote.Deleted], old) {
		t.Errorf("deleted: %v, want %v", got, old)
	}
	there := clean(t, dir, false)
	if got := slices.Concat(there[promote.Kept], there[promote.Waiting]); !same(got, want) {
		t.Errorf("what is there: %v, want %v", got, want)
	}
	if got := actions(look(t, newSession(t), dir)); got != "publish publish stuck publish" {
		t.Errorf("after it: %s", got)
	}
	// What was deleted is built and sent again.
	change(t, dir, "images/base/file", "second", "first")
	if got := actions(look(t, newSession(t), dir)); got != "publish publish fine build" {
		t.Errorf("of old: %s", got)
	}
}

func same(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func writeKeep(t *testing.T, dir, keep string) {
	t.Helper()
	text := readFile(t, dir, "pipeline.toml")
	text, _, _ = strings.Cut(text, "\n[keep]\n")
	change(t, dir, "pipeline.toml", readFile(t, dir, "pipeline.toml"), text+"\n[keep]\n"+keep+"\n")
}

// An image that comes out the same as one that is being deleted is sent again when that is gone.
func TestSendAgainstClean(t *testing.T) {
	registrytest.Isolate(t)
	s := newSession(t)
	dir := write(t, s, registrytest.Start(t, false))
	first := look(t, s, dir)[:1]
	if _, err := open(t, dir).Run(t.Context(), s, first, pipeline.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	name, tag := store.SplitImageName(first[0].Canonical)
	st, client := evidencetest.Client(t)
	repo, err := registry.OpenForWriting(name, registry.Options{Fetch: client, Push: true})
	if err != nil {
		t.Fatal(err)
	}
	image := first[0].Digest
	if err := repo.Delete(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	mark := &registry.Artifact{
		Type: "application/vnd.sconce.claim.v1", ConfigType: "application/vnd.oci.empty.v1+json", Config: []byte("{}"),
		Annotations: map[string]string{"dev.sconce.gc": fmt.Sprintf(`{"image":%q,"since":%q,"owner":"0123abcd"}`, image.Hex()[:12], time.Now().UTC().Format(time.RFC3339))},
	}
	marked, err := registry.PushArtifact(t.Context(), mark, name, "gc."+image.Hex()[:12]+".0123abcd", registry.PushOptions{Store: st, Fetch: client})
	if err != nil {
		t.Fatal(err)
	}
	waits := 0
	wait := func(ctx context.Context) error { // whoever deletes it does so, and ends
		waits++
		if err := repo.Delete(ctx, image); err != nil {
			return err
		}
		return repo.Delete(ctx, marked)
	}
	again := look(t, s, dir)[:1]
	if _, err := open(t, dir).Run(t.Context(), s, again, pipeline.RunOptions{Wait: wait}); err != nil {
		t.Fatal(err)
	}
	if d, err := repo.Resolve(t.Context(), tag); err != nil || d != image || waits != 1 {
		t.Errorf("%s is %q after %d waits, %v", tag, d, waits, err)
	}
}
