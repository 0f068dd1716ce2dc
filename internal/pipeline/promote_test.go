package pipeline_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

// The lines that a test needs in a recipe.
const (
	stackTest = "\n[[test]]\nuse = \"env\"\nclusters = [\"clariden\"]\n"
	appTest   = "\n[[test]]\nname = \"rate\"\nrun = \"sh tests/rate\"\nfiles = [\"tests\"]\nexpect = { rate = \">= 10\" }\n[[test]]\nuse = \"gpu\"\nskip = \"no GPU is free\"\n"
)

// validated is a pipeline with tests and a key, whose images are in a registry.
type validated struct {
	dir     string
	session *engine.Session
	public  string                  // file of the public key
	digests map[string]store.Digest // by Ref
}

func newValidated(t *testing.T) *validated {
	t.Helper()
	locktest.Isolate(t)
	registrytest.Isolate(t)
	outsideCI(t)
	host := registrytest.StartWithReferrers(t)
	v := &validated{session: newSession(t), digests: map[string]store.Digest{}}
	v.dir = write(t, v.session, host)
	_, private, _ := evidencetest.Key(t)
	text, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCONCE_TEST_KEY", string(text))
	locktest.Write(t, v.dir, map[string]string{"apps/app/tests/rate": "echo rate 12\n"})
	change(t, v.dir, "pipeline.toml", "mutable =", "sign = \"env:SCONCE_TEST_KEY\"\nclusters = [\"bristen\"]\nmutable =")
	for name, text := range map[string]string{"images/stack/sconce.toml": stackTest, "apps/app/sconce.toml": appTest} {
		f, err := os.OpenFile(filepath.Join(v.dir, name), os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(text)
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, ref := range open(t, v.dir).Refs() {
		i := v.image(t, ref)
		name, tag := store.SplitImageName(i.Canonical)
		v.digests[ref] = evidencetest.Image(t, name, tag, ref)
		v.sign(t, i, v.digests[ref])
	}
	return v
}

// sign says of an image of a registry that it is what the plan of an image makes, as whoever builds it does.
func (v *validated) sign(t *testing.T, i *pipeline.Image, digest store.Digest) {
	t.Helper()
	name, _ := store.SplitImageName(i.Canonical)
	key, err := engine.SigningKey(open(t, v.dir).Sign)
	if err != nil {
		t.Fatal(err)
	}
	book, err := v.session.Evidence(name, key, nil)
	if err == nil {
		err = book.Attach(t.Context(), digest, "key-"+string(i.Key)[:24], "https://sconce.dev/key/v1", map[string]string{"key": string(i.Key)}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (v *validated) image(t *testing.T, ref string) *pipeline.Image {
	t.Helper()
	i, err := open(t, v.dir).Image(t.Context(), v.session, ref)
	if err != nil || i.Problem != nil {
		t.Fatal(err, i)
	}
	return i
}

// test records a verdict for each test of an image.
func (v *validated) test(t *testing.T, ref string, verdict imagetest.Verdict) {
	t.Helper()
	i := v.image(t, ref)
	tests, err := open(t, v.dir).Tests(t.Context(), i)
	if err != nil {
		t.Fatal(err)
	}
	key, err := engine.SigningKey("env:SCONCE_TEST_KEY")
	if err != nil {
		t.Fatal(err)
	}
	name, _ := store.SplitImageName(i.Canonical)
	for _, one := range tests {
		log := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(log, []byte("rate 12\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		r := imagetest.Result{
			Test: one.Test.Title(), Hash: one.Hash, Cluster: one.Cluster, ImageDigest: string(v.digests[ref]), Verdict: verdict, Log: imagetest.Log{File: log, Size: int64(len("rate 12\n"))},
		}
		if err := v.session.RecordTest(t.Context(), name, r, key); err != nil {
			t.Fatal(err)
		}
	}
}

// promote promotes an image and wants a certain error; "" wants it to be under its stable tags.
func (v *validated) promote(t *testing.T, ref, want string) {
	t.Helper()
	p, i := open(t, v.dir), v.image(t, ref)
	_, err := p.Promote(t.Context(), v.session, i, engine.Promoting{})
	if want != "" {
		if err == nil || !strings.Contains(err.Error(), want) || fault.CodeOf(err) != fault.CodeProblem {
			t.Errorf("%s: %v, want %q", ref, err, want)
		}
		return
	}
	if err != nil {
		t.Errorf("%s: %v", ref, err)
	}
	for _, tag := range i.Stable {
		im, err := v.session.Find(t.Context(), tag)
		if err != nil || im.Digest != v.digests[ref] {
			t.Errorf("%s is %s, %v", tag, im.Digest, err)
		}
	}
}

// TestPromote wants evidence for each test of an image and of what it is based on, in the form that the tests have today.
func TestPromote(t *testing.T) {
	v := newValidated(t)
	const app = "apps/app:small"
	v.promote(t, "images/base", "") // has no tests
	v.promote(t, app, "app:small rate on bristen")
	v.test(t, app, imagetest.Passed)
	v.promote(t, app, "stack env on clariden")
	v.test(t, "images/stack", imagetest.Failed)
	v.promote(t, app, "not passed")
	v.test(t, "images/stack", imagetest.Warned)
	v.promote(t, app, "")
	v.promote(t, app, "")
	// Another test, with the same image.
	change(t, v.dir, "apps/app/tests/rate", "12", "13")
	v.promote(t, app, "app:small rate on bristen")
	v.test(t, app, imagetest.Passed)
	v.promote(t, app, "")
	// An image of the same version that users have not got.
	v.promote(t, "apps/app:large-dev", "large-dev rate")
	v.test(t, "apps/app:large-dev", imagetest.Passed)
	v.promote(t, "apps/app:large-dev", "")
	// A verdict that is none is not kept.
	i := v.image(t, app)
	name, _ := store.SplitImageName(i.Canonical)
	key, err := engine.SigningKey("env:SCONCE_TEST_KEY")
	if err != nil {
		t.Fatal(err)
	}
	r := imagetest.Result{Test: "rate", Hash: strings.Repeat("a", 64), Cluster: "bristen", ImageDigest: string(v.digests[app]), Verdict: imagetest.Skipped}
	if err := v.session.RecordTest(t.Context(), name, r, key); err == nil {
		t.Error("a skipped test became evidence")
	}
}

// TestVerify judges promoted images from outside, with the public key alone.
func TestVerify(t *testing.T) {
	v := newValidated(t)
	const app = "apps/app:small"
	key, err := engine.SigningKey("env:SCONCE_TEST_KEY")
	if err != nil {
		t.Fatal(err)
	}
	_, _, stranger := evidencetest.Key(t)
	others, err := engine.TrustedKeys([]string{stranger})
	if err != nil {
		t.Fatal(err)
	}
	i := v.image(t, app)
	for _, ref := range []string{"images/stack", app} {
		v.test(t, ref, imagetest.Passed)
	}
	v.promote(t, app, "")
	trust := others[:0:0]
	trust = append(trust, key.Public())
	for _, at := range append(i.Stable, i.Canonical) { // the first by what refers to it, the last by tags
		got, err := v.session.Verify(t.Context(), at, "", trust)
		if err != nil || !got.Good() || len(got.Evidence) != 1 || got.Evidence[0].Test != "rate" || got.Evidence[0].Cluster != "bristen" || got.Digest != v.digests[app] {
			t.Errorf("%s: %+v, %v", at, got, err)
		}
	}
	for at, want := range map[string]string{i.Canonical: "not signed by a key that is trusted", i.Stable[0]: "no evidence"} {
		if got, err := v.session.Verify(t.Context(), at, "", others); err != nil || got.Good() || !strings.Contains(got.Problems[0], want) {
			t.Errorf("%s with another key: %+v, %v", at, got, err)
		}
	}
	v.test(t, app, imagetest.Failed)
	if got, err := v.session.Verify(t.Context(), i.Canonical, "", trust); err != nil || got.Good() {
		t.Errorf("after it failed: %+v, %v", got, err)
	}
}

// What is based on an image waits for its tests, and the plan names them; where they have failed it says so.
func TestWaits(t *testing.T) {
	v := newValidated(t)
	const app = "apps/app:small"
	of := func(ref string) *pipeline.Status {
		t.Helper()
		all := look(t, v.session, v.dir)
		return all[slices.IndexFunc(all, func(st *pipeline.Status) bool { return st.Image.Ref == ref })]
	}
	wants := func(ref string, action pipeline.Action, reasons ...string) {
		t.Helper()
		st := of(ref)
		if text := strings.Join(st.Reasons, "\n"); st.Action != action || slices.ContainsFunc(reasons, func(r string) bool { return !strings.Contains(text, r) }) {
			t.Errorf("%s: %s because\n%s\nwant %s because %q", ref, st.Action, text, action, reasons)
		}
	}
	v.test(t, app, imagetest.Passed)
	wants(app, pipeline.Publish, "is not there", "it waits for images/stack: test env has no verdict on clariden")
	change(t, v.dir, "apps/app/sconce.toml", "small = {}", "small = { image.env = { SIZE = \"small\" } }")
	wants("images/stack", pipeline.Test, "test env has no verdict on clariden")
	wants(app, pipeline.Wait, "it waits for images/stack: test env has no verdict on clariden")
	v.test(t, "images/stack", imagetest.Failed)
	wants("images/stack", pipeline.Test, "test env has failed on clariden")
	wants(app, pipeline.Wait, "it waits for images/stack: test env has failed on clariden")
	jobs, err := open(t, v.dir).Jobs([]*pipeline.Status{of("images/stack"), of(app)})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(jobs, func(j pipeline.Job) bool { return j.ID == "build app:small" })
	if i < 0 || !slices.Contains(jobs[i].Needs, "test stack:2 on clariden") {
		t.Errorf("it is not built after the test: %+v", jobs)
	}
	v.test(t, "images/stack", imagetest.Passed)
	wants("images/stack", pipeline.Publish)
	wants(app, pipeline.Build, "recipe, lock or files are not those")
	name, tag := store.SplitImageName(v.image(t, "images/stack").Stable[0])
	evidencetest.Image(t, name, tag, "another image")
	wants("images/stack", pipeline.Stuck)
	wants(app, pipeline.Wait, "it waits for images/stack: ", "is another image")
}

// A test is for the cluster of the recipe's target where nothing else names one, in the plan as for promotion.
func TestVerdictsOfTarget(t *testing.T) {
	v := newValidated(t)
	change(t, v.dir, "pipeline.toml", "clusters = [\"bristen\"]\n", "")
	change(t, v.dir, "apps/app/sconce.toml", "target.platform = \"linux/amd64\"\n", "target.platform = \"linux/amd64\"\ntarget.cluster = \"bristen\"\n")
	i := v.image(t, "apps/app:small")
	p := open(t, v.dir)
	wanted, err := p.Verdicts(i, v.digests["apps/app:small"])
	tests, failed := p.Tests(t.Context(), i)
	if err != nil || failed != nil || len(wanted) != 1 || len(tests) != 1 || wanted[0].Test != tests[0].Hash || wanted[0].Cluster != tests[0].Cluster {
		t.Errorf("the plan wants %+v, %v, and promotion %+v, %v", wanted, err, tests, failed)
	}
}

// By the name of a repository of the pipeline nobody gets around its rules.
func TestPromoteByName(t *testing.T) {
	v := newValidated(t)
	p, i := open(t, v.dir), v.image(t, "images/base")
	im, err := v.session.Find(t.Context(), i.Canonical)
	if err != nil {
		t.Fatal(err)
	}
	how := engine.Promoting{To: []string{i.Stable[0]}, Untested: true}
	want := func(what, text string) {
		t.Helper()
		if _, err := p.PromoteFrom(t.Context(), v.session, im, how); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", what, err, text)
		}
	}
	p.At = "evil"
	want("from another branch", "only branch main may do that")
	p.At = "main"
	want("untested", "is in a repository of a pipeline")
	how.Untested = false
	stranger, _, _ := evidencetest.Key(t)
	how.Trust = nil
	book, err := v.session.Evidence(im.Repository, stranger, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := book.Put(t.Context(), evidence.Evidence{Key: evidence.Key{Image: im.Digest, Test: string(i.Key), Cluster: "bristen"}, Name: "x", Result: evidence.Passed}, nil); err != nil {
		t.Fatal(err)
	}
	want("by a stranger's word", "not signed by a key that is trusted")
	if _, found, err := v.session.Head(t.Context(), i.Stable[0]); found || err != nil {
		t.Errorf("it was promoted: %v", err)
	}
}
