package pipeline_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

// newSigned is a pipeline whose images are signed and have no tests.
func newSigned(t *testing.T) *validated {
	t.Helper()
	locktest.Isolate(t)
	registrytest.Isolate(t)
	outsideCI(t)
	v := &validated{session: newSession(t)}
	v.dir = write(t, v.session, registrytest.Start(t, false))
	_, private, public := evidencetest.Key(t)
	v.public = public
	change(t, v.dir, "pipeline.toml", "mutable =", "sign = \"file:"+private+"\"\nmutable =")
	return v
}

// signLine is the line of pipeline.toml that names the key.
func (v *validated) signLine(t *testing.T) string {
	t.Helper()
	lines := strings.Split(readFile(t, v.dir, "pipeline.toml"), "\n")
	return lines[slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "sign =") })]
}

// run builds what is missing, and returns how far images are then, by their references.
func (v *validated) run(t *testing.T) map[string]*pipeline.Status {
	t.Helper()
	if _, err := open(t, v.dir).Run(t.Context(), v.session, look(t, v.session, v.dir), pipeline.RunOptions{Jobs: 4}); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]*pipeline.Status)
	for _, st := range look(t, newSession(t), v.dir) {
		all[st.Image.Ref] = st
	}
	return all
}

// retag moves the canonical tag of an image to another one.
func (v *validated) retag(t *testing.T, st, to *pipeline.Status) {
	t.Helper()
	if _, err := v.session.Push(t.Context(), imageOf(t, v.session, to), st.Canonical); err != nil {
		t.Fatal(err)
	}
}

// A canonical tag that was moved to an image of yesterday is an error: that image is not promoted as today's, and nothing is built on it.
func TestMovedCanonical(t *testing.T) {
	const moved = "was made from something else"
	v := newSigned(t)
	old := v.run(t)
	change(t, v.dir, "images/base/file", "first", "second")
	now := v.run(t)
	stack, app := now["images/stack"], now["apps/app:small"]
	promote := func(st *pipeline.Status) error {
		_, err := open(t, v.dir).Promote(t.Context(), v.session, st.Image, engine.Promoting{})
		return err
	}
	v.retag(t, stack, old["images/stack"])
	if err := promote(stack); err == nil || !strings.Contains(err.Error(), moved) || !strings.Contains(err.Error(), stack.Canonical) {
		t.Errorf("promote what was moved: %v", err)
	}
	change(t, v.dir, "apps/app/sconce.toml", "small = {}", "small = { image.env = { SIZE = \"small\" } }")
	_, err := open(t, v.dir).Run(t.Context(), newSession(t), look(t, v.session, v.dir), pipeline.RunOptions{})
	if err == nil || !strings.Contains(err.Error(), moved) {
		t.Errorf("build on what was moved: %v", err)
	}
	v.retag(t, stack, stack)
	for _, st := range []*pipeline.Status{stack, app} {
		if err := promote(st); err != nil {
			t.Error(err)
		}
	}
}

// Beside an image lies what it was made from, as its plan and lock say, and what is in it in both formats: cosign believes all of it.
func TestDescribed(t *testing.T) {
	v := newSigned(t)
	all := v.run(t)
	base, stack := all["images/base"], all["images/stack"]
	name, _ := store.SplitImageName(stack.Canonical)
	judged := map[string]json.RawMessage{}
	for _, kind := range []string{attest.Provenance, attest.CycloneDX, "https://spdx.dev/Document"} {
		said, err := evidencetest.Cosign(t, v.public, kind, name+"@"+string(stack.Digest))
		if err != nil || len(said) != 1 || !said[0].IsAbout(stack.Digest) {
			t.Fatalf("%s: %v, %v", kind, said, err)
		}
		judged[kind] = said[0].Predicate
	}
	var made struct {
		Definition struct {
			Parameters struct{ Key string } `json:"externalParameters"`
			Resolved   []struct {
				URI    string
				Digest map[string]string
			} `json:"resolvedDependencies"`
		} `json:"buildDefinition"`
	}
	if err := json.Unmarshal(judged[attest.Provenance], &made); err != nil || made.Definition.Parameters.Key != string(stack.Key) {
		t.Errorf("%v, made by key %q, and that of the image is %s", err, made.Definition.Parameters.Key, stack.Key)
	}
	if on := made.Definition.Resolved; len(on) != 1 || on[0].URI != base.Canonical || on[0].Digest["sha256"] != base.Digest.Hex() {
		t.Errorf("it is based on %v, want %s, %s", on, base.Canonical, base.Digest)
	}
	if text := string(judged["https://spdx.dev/Document"]); !strings.Contains(text, "SPDX-2.3") {
		t.Errorf("no SPDX document: %s", text)
	}
	if text := string(judged[attest.CycloneDX]); !strings.Contains(text, "CycloneDX") {
		t.Errorf("no CycloneDX document: %s", text)
	}
}

// An image that several keys make is right under each of them.
func TestSameImageOfTwoKeys(t *testing.T) {
	v := newSigned(t)
	one := v.run(t)["images/stack"]
	change(t, v.dir, "images/stack/sconce.toml", "/etc/os-release", "/etc/os-releas?")
	lock(t, v.session, v.dir)
	two := v.run(t)["images/stack"]
	if one.Digest != two.Digest || one.Key == two.Key {
		t.Fatalf("%s of key %s, and %s of key %s", one.Digest, one.Key, two.Digest, two.Key)
	}
	for _, st := range []*pipeline.Status{one, two} {
		if _, err := open(t, v.dir).Promote(t.Context(), v.session, st.Image, engine.Promoting{}); err != nil {
			t.Errorf("under key %s: %v", st.Key, err)
		}
	}
}

// An index whose tag was moved to that of other parts is not promoted.
func TestMovedIndex(t *testing.T) {
	registrytest.Isolate(t)
	locktest.Isolate(t)
	outsideCI(t)
	v := &validated{session: newSession(t)}
	v.dir = writePlatforms(t, v.session, registrytest.Start(t, false))
	all := v.run(t)
	tool, big := all["tools/tool"], all["tools/tool:big"]
	registrytest.Skopeo(t, "copy", "--all", "--src-tls-verify=false", "--dest-tls-verify=false", "docker://"+big.Canonical, "docker://"+tool.Canonical)
	_, err := open(t, v.dir).Promote(t.Context(), v.session, tool.Image, engine.Promoting{})
	if err == nil || !strings.Contains(err.Error(), tool.Canonical) || !strings.Contains(err.Error(), "other images than those of today") {
		t.Error(err)
	}
}

// What somebody without the key has put under a canonical reference is not tested, not promoted, and nothing is built on it or put together from it; a run names it,
// and leaves it there until a person says otherwise.
func TestUnsignedCanonical(t *testing.T) {
	v := newSigned(t)
	planted := make(map[string]store.Digest)
	all := make(map[string]*pipeline.Status)
	for _, st := range look(t, v.session, v.dir) {
		all[st.Image.Ref] = st
	}
	stack := all["images/stack"]
	name, tag := store.SplitImageName(stack.Canonical)
	planted[stack.Ref] = evidencetest.Image(t, name, tag, "somebody else's")
	was := func(st *pipeline.Status) store.Digest {
		t.Helper()
		found, err := v.session.Find(t.Context(), st.Canonical)
		if err != nil {
			t.Fatal(err)
		}
		return found.Digest
	}
	refused := func(what string, err error) {
		t.Helper()
		if fault.CodeOf(err) != fault.CodeProblem || !strings.Contains(err.Error(), stack.Canonical) || !strings.Contains(err.Error(), "no trusted key has signed "+planted[stack.Ref].Short()) {
			t.Errorf("%s: %v", what, err)
		}
	}
	p := open(t, v.dir)
	_, err := p.Promote(t.Context(), v.session, stack.Image, engine.Promoting{})
	refused("promoted", err)
	_, err = p.ToTest(t.Context(), v.session, stack.Ref, engine.TestOptions{})
	refused("tested", err)
	_, err = p.ToTest(t.Context(), v.session, stack.Ref, engine.TestOptions{Here: true})
	refused("tested here", err)
	// Who builds on it alone does not take it, and has it built here instead; as every machine builds, it is an error.
	below := p.Below(t.Context(), nil)
	r, err := engine.LoadRecipe(v.dir+"/apps/app:small", engine.Changes{})
	if err != nil {
		t.Fatal(err)
	}
	for _, below.Anywhere = range []bool{false, true} {
		s := newSession(t)
		planned, err := s.Plan(t.Context(), r, below)
		if err != nil {
			t.Fatal(err)
		}
		defer planned.Close()
		made, err := s.Build(t.Context(), planned, engine.BuildOptions{})
		if below.Anywhere {
			refused("built on", err)
		} else if err != nil || len(made.Image.Manifest.Layers) < 3 {
			t.Errorf("built here: %+v, %v", made, err)
		}
	}
	// The plan names it, and so does a run, which builds what does not stand on it.
	now := look(t, v.session, v.dir)
	if got := actions(now); got != "build unsigned wait wait" || !strings.Contains(now[1].Reasons[0], "no trusted key") || !strings.Contains(now[2].Reasons[0], "images/stack") {
		t.Errorf("%s: %q, %q", got, now[1].Reasons, now[2].Reasons)
	}
	done, err := p.Run(t.Context(), v.session, now, pipeline.RunOptions{})
	refused("run", err)
	if !done[0].Built || done[1].Built || !done[2].Waited || was(stack) != planted[stack.Ref] {
		t.Errorf("%+v", done)
	}
	if _, err := p.Run(t.Context(), v.session, now, pipeline.RunOptions{Replace: true}); err != nil {
		t.Fatal(err)
	}
	now = look(t, newSession(t), v.dir)
	if got := actions(now); got != "publish publish publish publish" || was(stack) == planted[stack.Ref] {
		t.Errorf("after it was replaced: %s", got)
	}
}

// The very image that a recipe makes, without any signature, as one that was built before the pipeline had a key, is signed by running again.
func TestUnsignedIsSigned(t *testing.T) {
	v := newSigned(t)
	sign := v.signLine(t)
	change(t, v.dir, "pipeline.toml", sign+"\n", "")
	before := v.run(t)
	change(t, v.dir, "pipeline.toml", "mutable =", sign+"\nmutable =")
	v.session = newSession(t)
	if got := actions(look(t, v.session, v.dir)); got != "unsigned unsigned unsigned unsigned" {
		t.Error(got)
	}
	for ref, st := range v.run(t) {
		if st.Action != pipeline.Publish || st.Digest != before[ref].Digest {
			t.Errorf("%s: %s, %q, %s and not %s", ref, st.Action, st.Reasons, st.Digest, before[ref].Digest)
		}
	}
}

// Without the key, as in a job for a merge request, there is a plan, and nothing of the registry is taken, tested, built as every machine does, or promoted.
func TestWithoutTheKey(t *testing.T) {
	v := newSigned(t)
	sign := v.signLine(t)
	all := v.run(t)
	change(t, v.dir, "pipeline.toml", sign, "sign = \"env:SCONCE_TEST_NO_KEY\"")
	s := newSession(t)
	if got := actions(look(t, s, v.dir)); got != "publish publish publish publish" {
		t.Error(got)
	}
	p := open(t, v.dir)
	if below := p.Below(t.Context(), nil); below.Canonical != nil {
		t.Error("images are taken that nobody has judged")
	}
	key, err := engine.SigningKey(strings.Trim(strings.TrimPrefix(sign, "sign = "), "\""))
	if err != nil {
		t.Fatal(err)
	}
	if below := p.Below(t.Context(), []*attest.PublicKey{key.Public()}); below.Canonical == nil || len(below.Trust) != 1 {
		t.Errorf("with the public key of the user's own: %+v", below)
	}
	change(t, v.dir, "images/base/file", "first", "second")
	_, built := p.Run(t.Context(), s, look(t, s, v.dir), pipeline.RunOptions{})
	_, promoted := p.Promote(t.Context(), s, all["images/stack"].Image, engine.Promoting{})
	_, tested := p.ToTest(t.Context(), s, "apps/app:small", engine.TestOptions{Here: true})
	for what, err := range map[string]error{"built": built, "promoted": promoted, "tested": tested} {
		if err == nil || !strings.Contains(err.Error(), "SCONCE_TEST_NO_KEY") && what != "tested" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// An index is not put together from a part that nobody has signed, also when that came after the plan.
func TestIndexOfUnsigned(t *testing.T) {
	registrytest.Isolate(t)
	locktest.Isolate(t)
	outsideCI(t)
	v := &validated{session: newSession(t)}
	v.dir = writePlatforms(t, v.session, registrytest.Start(t, false))
	_, private, _ := evidencetest.Key(t)
	change(t, v.dir, "pipeline.toml", "clusters", "sign = \"file:"+private+"\"\nclusters")
	all := look(t, v.session, v.dir)
	if _, err := open(t, v.dir).Run(t.Context(), v.session, all[:2], pipeline.RunOptions{}); err != nil { // its parts
		t.Fatal(err)
	}
	all = look(t, v.session, v.dir)
	part, index := all[0], all[4]
	name, tag := store.SplitImageName(part.Canonical)
	evidencetest.Image(t, name, tag, "somebody else's")
	_, err := open(t, v.dir).Run(t.Context(), v.session, []*pipeline.Status{index}, pipeline.RunOptions{})
	var strange *engine.StrangeError
	if index.Action != pipeline.Build || !errors.As(err, &strange) || strange.Ref != part.Canonical {
		t.Errorf("%s: %v", index.Action, err)
	}
	if now := look(t, v.session, v.dir); now[0].Action != pipeline.Unsigned || now[4].Action != pipeline.Unsigned {
		t.Errorf("%s: %q", actions(now), now[4].Reasons)
	}
}
