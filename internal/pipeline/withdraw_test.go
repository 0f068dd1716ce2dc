package pipeline_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

// newPublished is a pipeline whose images are built, signed, tested and published.
func newPublished(t *testing.T, host string) *validated {
	t.Helper()
	v := newSigned(t)
	text, err := os.ReadFile(v.dir + "/pipeline.toml")
	if err != nil {
		t.Fatal(err)
	}
	own := open(t, v.dir)
	was, _, _ := strings.Cut(own.Staging, "/")
	change(t, v.dir, "pipeline.toml", string(text), strings.ReplaceAll(string(text), was, host)+"clusters = [\"bristen\"]\n")
	v.newKey(t)
	change(t, v.dir, "pipeline.toml", own.Sign, "env:SCONCE_TEST_KEY")
	for _, name := range []string{"images/base", "images/stack", "apps/app"} {
		f, err := os.OpenFile(v.dir+"/"+name+"/sconce.toml", os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(stackTest)
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	v.digests = map[string]store.Digest{}
	for ref, st := range v.run(t) {
		v.digests[ref] = st.Digest
	}
	for _, ref := range open(t, v.dir).Refs() {
		v.test(t, ref, imagetest.Passed)
	}
	for _, ref := range open(t, v.dir).Refs() {
		v.promote(t, ref, "")
	}
	return v
}

// newKey gives the pipeline another key; v.public is its public half.
func (v *validated) newKey(t *testing.T) *attest.PublicKey {
	t.Helper()
	key, private, public := evidencetest.Key(t)
	text, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCONCE_TEST_KEY", string(text))
	v.public = public
	return key.Public()
}

// states looks how far images are.
func (v *validated) states(t *testing.T) map[string]*pipeline.Status {
	t.Helper()
	all := make(map[string]*pipeline.Status)
	for _, st := range look(t, newSession(t), v.dir) {
		all[st.Image.Ref] = st
	}
	return all
}

// wants checks what is to be done for an image, and some of why.
func wants(t *testing.T, st *pipeline.Status, action pipeline.Action, reasons ...string) {
	t.Helper()
	text := strings.Join(st.Reasons, "\n")
	if st.Action != action || slices.ContainsFunc(reasons, func(r string) bool { return !strings.Contains(text, r) }) {
		t.Errorf("%s: %s because\n%s\nwant %s because %q", st.Ref, st.Action, text, action, reasons)
	}
}

const stack, small = "images/stack", "apps/app:small"

// startWithoutReferrers starts a registry that deletes tags, and lists nothing that is about an image.
func startWithoutReferrers(t testing.TB) string {
	t.Helper()
	return registrytest.NewProxy(t, registrytest.StartWithReferrers(t), func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/referrers/") {
			http.NotFound(w, r)
			return true
		}
		return false
	}).Host
}

// An image that is withdrawn is promoted by nobody, nor is what is based on it, and everybody is told why, until that is taken back.
func TestWithdraw(t *testing.T) {
	for name, start := range map[string]func(testing.TB) string{
		"docker":    func(t testing.TB) string { return registrytest.Start(t, false) },
		"referrers": registrytest.StartWithReferrers,
		"tags":      startWithoutReferrers,
	} {
		t.Run(name, func(t *testing.T) {
			registrytest.Isolate(t)
			v := newPublished(t, start(t))
			p, image := open(t, v.dir), v.image(t, stack)
			how := pipeline.Withdrawing{Withdrawing: promote.Withdrawing{Because: "NCCL\nhangs\x1b[31m | on 8 nodes"}}
			const why = "NCCL hangs[31m | on 8 nodes"
			withdraw := func(how pipeline.Withdrawing) *promote.Withdrawn {
				t.Helper()
				done, _, err := p.Withdraw(t.Context(), newSession(t), stack, how)
				if err != nil {
					t.Fatal(err)
				}
				return done
			}
			dry := how
			dry.DryRun = true
			withdraw(dry)
			wants(t, v.states(t)[stack], pipeline.Fine)
			done := withdraw(how)
			if done.Image != v.digests[stack] || len(done.Notes) != 3 || len(done.Tags) != 2 {
				t.Errorf("%+v", done)
			}
			for _, tag := range done.Tags {
				_, found, err := v.session.Head(t.Context(), tag.Target)
				if gone := tag.State == "removed"; err != nil || found == gone || gone != (name != "docker") {
					t.Errorf("%+v: there %v, %v", tag, found, err)
				}
			}
			for _, n := range withdraw(how).Notes {
				if n.State != "there" {
					t.Errorf("a second time: %+v", n)
				}
			}
			all := v.states(t)
			wants(t, all["images/base"], pipeline.Fine)
			wants(t, all[stack], pipeline.Withdrawn, why)
			wants(t, all[small], pipeline.Withdrawn, "it is based on images/stack, which is withdrawn: "+why)
			if table := pipeline.Markdown([]*pipeline.Status{all[stack]}); !strings.Contains(table, `withdrawn: NCCL hangs[31m \| on 8 nodes`) {
				t.Error(table)
			}
			v.promote(t, stack, "is withdrawn: "+why)
			v.promote(t, small, "which is withdrawn: "+why)
			var withdrawn *evidence.WithdrawnError
			for _, ref := range []string{image.Canonical, v.image(t, small).Canonical} { // by whoever has no key
				im, err := v.session.Find(t.Context(), ref)
				if err != nil {
					t.Fatal(err)
				}
				_, err = newSession(t).Promote(t.Context(), im, engine.Promoting{To: []string{strings.Replace(ref, "/ci/", "/elsewhere/", 1)}, Untested: true})
				if !errors.As(err, &withdrawn) || fault.CodeOf(err) != fault.CodeProblem {
					t.Errorf("promote %s without a key: %v", ref, err)
				}
			}
			key, err := p.Key()
			if err != nil {
				t.Fatal(err)
			}
			for _, ref := range []string{image.Canonical, v.image(t, small).Canonical, v.image(t, small).Stable[0]} {
				got, err := newSession(t).Verify(t.Context(), ref, "", key.Trust())
				if err != nil || got.Good() || !strings.Contains(strings.Join(got.Problems, "\n"), "withdrawn: "+why) {
					t.Errorf("verify %s: %+v, %v", ref, got, err)
				}
			}
			if jobs, err := p.Jobs([]*pipeline.Status{all[stack], all[small]}); err != nil || len(jobs) != 0 {
				t.Errorf("%+v, %v", jobs, err)
			}
			ran, err := p.Run(t.Context(), newSession(t), look(t, v.session, v.dir), pipeline.RunOptions{})
			if err != nil || slices.ContainsFunc(ran, func(d pipeline.Done) bool { return d.Built }) {
				t.Errorf("run: %v", err)
			}
			how.Lift, how.Because = true, "it was the driver"
			withdraw(how)
			for _, n := range withdraw(how).Notes {
				if n.State != "there" {
					t.Errorf("taken back a second time: %+v", n)
				}
			}
			v.promote(t, stack, "")
			wants(t, v.states(t)[stack], pipeline.Fine)
			wants(t, v.states(t)[small], pipeline.Fine)
		})
	}
}

// What an image is based on that is withdrawn keeps it from being built.
func TestNotBuiltOnWithdrawn(t *testing.T) {
	registrytest.Isolate(t)
	v := newPublished(t, registrytest.StartWithReferrers(t))
	if _, _, err := open(t, v.dir).Withdraw(t.Context(), v.session, stack, pipeline.Withdrawing{Withdrawing: promote.Withdrawing{Because: "bad"}}); err != nil {
		t.Fatal(err)
	}
	change(t, v.dir, "apps/app/sconce.toml", "small = {}", "small = { image.env = { SIZE = \"small\" } }")
	wants(t, v.states(t)[small], pipeline.Wait, "it is based on images/stack, which is withdrawn: bad")
	done, err := open(t, v.dir).Run(t.Context(), newSession(t), look(t, v.session, v.dir), pipeline.RunOptions{})
	if err != nil || slices.ContainsFunc(done, func(d pipeline.Done) bool { return d.Built || (d.Ref == small) != d.Waited && d.Ref == small }) {
		t.Errorf("%+v, %v", done, err)
	}
}

// Who may write beside an image, and has no key that counts, withdraws nothing, and takes no withdrawal back; who cannot judge believes the worse.
func TestForgedWithdrawal(t *testing.T) {
	registrytest.Isolate(t)
	v := newPublished(t, registrytest.StartWithReferrers(t))
	im, err := v.session.Find(t.Context(), v.image(t, stack).Canonical)
	if err != nil {
		t.Fatal(err)
	}
	stranger, _, _ := evidencetest.Key(t)
	forge := func(key *attest.PrivateKey, because string, lift bool) {
		t.Helper()
		w := engine.Withdrawing{Withdrawing: promote.Withdrawing{From: im.Repository, Image: im.Digest, Because: because, Lift: lift}, Key: key}
		if _, err := newSession(t).Withdraw(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	forge(nil, "nobody says so", false)
	wants(t, v.states(t)[stack], pipeline.Fine)
	forge(stranger, "a stranger says so", false)
	wants(t, v.states(t)[stack], pipeline.Fine)
	v.promote(t, stack, "")
	if err := newSession(t).Withdrawn(t.Context(), im, nil, nil); err == nil {
		t.Error("who has no key does not hear of it")
	}
	if _, _, err := open(t, v.dir).Withdraw(t.Context(), newSession(t), stack, pipeline.Withdrawing{Withdrawing: promote.Withdrawing{Because: "really"}}); err != nil {
		t.Fatal(err)
	}
	wants(t, v.states(t)[stack], pipeline.Withdrawn, "really")
	forge(stranger, "it is not", true)
	forge(nil, "it is not", true)
	wants(t, v.states(t)[stack], pipeline.Withdrawn, "really")
}

// plant puts a document under a tag beside an image, whatever was there, as whoever may write there can. Without a key nothing signs it.
func plant(t *testing.T, at string, image store.Digest, tag, kind string, document any, key *attest.PrivateKey) {
	t.Helper()
	said, err := attest.New(image, at, kind, document)
	if err != nil {
		t.Fatal(err)
	}
	a := &registry.Artifact{Type: "application/vnd.in-toto+json", ConfigType: "application/vnd.oci.empty.v1+json", Config: []byte("{}")}
	text, err := json.Marshal(said)
	if err == nil && key != nil {
		a.Type = attest.BundleType
		text, err = attest.Sign(said, key)
	}
	if err != nil {
		t.Fatal(err)
	}
	st, client := evidencetest.Client(t)
	d, err := st.PutBlob(text)
	if err != nil {
		t.Fatal(err)
	}
	a.Blobs = []v1.Descriptor{{MediaType: types.MediaType(a.Type), Digest: v1.Hash{Algorithm: "sha256", Hex: d.Hex()}, Size: int64(len(text))}}
	if _, err := registry.PushArtifact(t.Context(), a, at, tag, registry.PushOptions{Store: st, Fetch: client}); err != nil {
		t.Fatal(err)
	}
}

// A note counts wherever it lies, and a base is found by what trusted keys have signed, whatever a stranger puts beside an image.
func TestWithdrawnElsewhere(t *testing.T) {
	registrytest.Isolate(t)
	v := newPublished(t, registrytest.StartWithReferrers(t))
	p := open(t, v.dir)
	key, err := p.Key()
	if err != nil {
		t.Fatal(err)
	}
	users, _ := store.SplitImageName(v.image(t, stack).Stable[0])
	w := engine.Withdrawing{Withdrawing: promote.Withdrawing{From: users, Image: v.digests[stack], Because: "bad"}, Key: key}
	if _, err := newSession(t).Withdraw(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	all := v.states(t)
	wants(t, all[stack], pipeline.Withdrawn, "bad")
	wants(t, all[small], pipeline.Withdrawn, "which is withdrawn: bad")
	if _, _, err := p.Withdraw(t.Context(), newSession(t), stack, pipeline.Withdrawing{Withdrawing: promote.Withdrawing{Because: "bad"}}); err != nil {
		t.Fatal(err)
	}
	stranger, _, _ := evidencetest.Key(t)
	at, _ := store.SplitImageName(v.image(t, small).Canonical)
	plant(t, at, v.digests[small], evidence.AttachmentTags(v.digests[small])+engine.Provenance, attest.Provenance, map[string]any{}, stranger)
	got, err := newSession(t).Verify(t.Context(), v.image(t, small).Canonical, "", key.Trust())
	if err != nil || !strings.Contains(strings.Join(got.Problems, "\n"), "withdrawn: bad") {
		t.Errorf("verify: %+v, %v", got, err)
	}
}

// A note that somebody has written over, and one whose key is revoked, block until a trusted key says otherwise.
func TestDoubtfulNotes(t *testing.T) {
	registrytest.Isolate(t)
	v := newPublished(t, startWithoutReferrers(t))
	p := open(t, v.dir)
	key, err := p.Key()
	if err != nil {
		t.Fatal(err)
	}
	at, _ := store.SplitImageName(v.image(t, stack).Canonical)
	image := v.digests[stack]
	tag := evidence.AttachmentTags(image) + evidence.Withdrawn
	lifted := map[string]any{"changes": []map[string]string{{"state": "lifted", "because": "all is well", "at": "2026-11-22T10:00:00Z"}}}
	stranger, _, _ := evidencetest.Key(t)
	undo := func(key *attest.PrivateKey) {
		t.Helper()
		w := engine.Withdrawing{Withdrawing: promote.Withdrawing{From: at, Image: image, Because: "looked at", Lift: true}, Key: key}
		if _, err := newSession(t).Withdraw(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	for _, by := range []*attest.PrivateKey{nil, stranger} {
		for kind, document := range map[string]any{"https://example.org/other/v1": map[string]any{}, evidence.WithdrawalType: lifted} {
			plant(t, at, image, tag, kind, document, by)
			wants(t, v.states(t)[stack], pipeline.Withdrawn, "somebody has written over the note about this image")
			v.promote(t, stack, "somebody has written over the note about this image")
		}
	}
	undo(key)
	wants(t, v.states(t)[stack], pipeline.Fine)
	plant(t, at, image, tag, "https://example.org/other/v1", map[string]any{}, nil) // what the key has signed is listed still
	wants(t, v.states(t)[stack], pipeline.Fine)
	if _, _, err := p.Withdraw(t.Context(), newSession(t), stack, pipeline.Withdrawing{Withdrawing: promote.Withdrawing{Because: "bad", KeepTags: true}}); err != nil {
		t.Fatal(err)
	}
	im := engine.InRegistry{Repository: at, Digest: image}
	revoked, err := attest.Trusted{Key: v.public, Revoked: true}.Read("")
	if err != nil {
		t.Fatal(err)
	}
	v.newKey(t)
	if key, err = p.Key(); err != nil {
		t.Fatal(err)
	}
	key = key.After([]*attest.PublicKey{revoked})
	if err := newSession(t).Withdrawn(t.Context(), im, nil, key.Trust()); err == nil || !strings.Contains(err.Error(), "bad") {
		t.Errorf("the key is revoked: %v", err)
	}
	undo(key)
	if err := newSession(t).Withdrawn(t.Context(), im, nil, key.Trust()); err != nil {
		t.Errorf("taken back by the new key: %v", err)
	}
}

// A pipeline whose key is another one says so of what the old one has signed. Once that is trusted, it is signed again, and then the new key is
// enough, for cosign too.
func TestNewKey(t *testing.T) {
	registrytest.Isolate(t)
	v := newPublished(t, registrytest.StartWithReferrers(t))
	old := v.public
	wants(t, v.states(t)[stack], pipeline.Fine)
	key := v.newKey(t)
	wants(t, v.states(t)[stack], pipeline.Unsigned, "its provenance is signed with a key that is not trusted, and names itself SHA256:", "`sconce pipeline resign`")
	change(t, v.dir, "pipeline.toml", "mutable =", "trust = [{ key = \""+old+"\", comment = \"of last year\" }]\nmutable =")
	wants(t, v.states(t)[stack], pipeline.Fine)
	v.promote(t, stack, "")
	p := open(t, v.dir)
	images, err := p.Images(t.Context(), v.session)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		done, err := p.Resign(t.Context(), newSession(t), images, false)
		left := slices.ContainsFunc(done.Documents, func(d evidence.Resigned) bool { return d.Left != "" })
		if err != nil || (len(done.Documents) > 0) != want || left {
			t.Errorf("%+v, %v", done, err)
		}
	}
	change(t, v.dir, "pipeline.toml", "trust =", "# trust =")
	for _, ref := range p.Refs() {
		wants(t, v.states(t)[ref], pipeline.Fine)
		v.promote(t, ref, "")
	}
	for _, ref := range []string{v.image(t, stack).Canonical, v.image(t, stack).Stable[0]} {
		got, err := newSession(t).Verify(t.Context(), ref, "", []*attest.PublicKey{key})
		if err != nil || !got.Good() || len(got.Signed) != 4 {
			t.Errorf("%s: %+v, %v", ref, got, err)
		}
		name, _ := store.SplitImageName(ref)
		for _, kind := range []string{attest.TestResult, attest.Provenance, attest.SPDX, "https://sconce.dev/key/v1"} {
			if _, err := evidencetest.Cosign(t, v.public, kind, name+"@"+string(v.digests[stack])); err != nil {
				t.Errorf("cosign, %s of %s: %v", kind, ref, err)
			}
		}
	}
}

// What a key has signed that was stolen counts nowhere any more: tests run again, and their verdicts take the place of the old ones.
func TestStolenKey(t *testing.T) {
	registrytest.Isolate(t)
	v := newPublished(t, registrytest.StartWithReferrers(t))
	old := v.public
	v.newKey(t)
	change(t, v.dir, "pipeline.toml", "mutable =", "trust = [{ key = \""+old+"\", revoked = true }]\nmutable =")
	wants(t, v.states(t)[stack], pipeline.Unsigned, "its provenance is signed with a key that does not count, SHA256:")
	v.run(t) // which builds the same, and signs it
	wants(t, v.states(t)[stack], pipeline.Test, "the verdict of test env on clariden is signed with a key that does not count, SHA256:")
	v.promote(t, stack, "signed with a key that does not count")
	p, i := open(t, v.dir), v.image(t, stack)
	key, err := p.Key()
	if err != nil {
		t.Fatal(err)
	}
	tests, err := p.Tests(t.Context(), i)
	if err != nil {
		t.Fatal(err)
	}
	name, _ := store.SplitImageName(i.Canonical)
	r := imagetest.Result{Test: tests[0].Test.Title(), Hash: tests[0].Hash, Cluster: tests[0].Cluster, ImageDigest: string(v.digests[stack]), Verdict: imagetest.Passed}
	if err := v.session.RecordTest(t.Context(), name, r, key); err != nil {
		t.Fatal(err)
	}
	wants(t, v.states(t)[stack], pipeline.Fine)
	t.Setenv("SCONCE_TEST_KEY", "")
	if _, err := p.Key(); fault.CodeOf(err) != fault.CodeUsage || !strings.Contains(fault.HintOf(err), "export SCONCE_TEST_KEY") {
		t.Errorf("without the key: %v, hint %q", err, fault.HintOf(err))
	}
	wants(t, v.states(t)[stack], pipeline.Unsigned) // judged by what is trusted besides
}

// An index that is withdrawn is promoted no more, and its images are what they were; one of which an image is withdrawn is not promoted either.
func TestIndexIsWithdrawn(t *testing.T) {
	registrytest.Isolate(t)
	v := newSignedIndexes(t, registrytest.StartWithReferrers(t))
	p := open(t, v.dir)
	if _, err := p.Run(t.Context(), v.session, look(t, v.session, v.dir), pipeline.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	withdraw := func(name string, lift bool) {
		t.Helper()
		how := pipeline.Withdrawing{Withdrawing: promote.Withdrawing{Because: "bad", Lift: lift}}
		if _, _, err := p.Withdraw(t.Context(), newSession(t), name, how); err != nil {
			t.Fatal(err)
		}
	}
	all := look(t, v.session, v.dir)
	i := all[slices.IndexFunc(all, func(st *pipeline.Status) bool { return st.Parts != nil })].Image
	index, part := i.Ref, i.Parts[0].Ref
	before := v.states(t)[part].Action
	withdraw(index, false)
	wants(t, v.states(t)[index], pipeline.Withdrawn, "it is withdrawn: bad")
	wants(t, v.states(t)[part], before)
	withdraw(index, true)
	withdraw(part, false)
	wants(t, v.states(t)[index], pipeline.Withdrawn, "it is made of "+part+", which is withdrawn: bad")
	im, err := v.session.Find(t.Context(), i.Canonical)
	if err != nil {
		t.Fatal(err)
	}
	_, err = newSession(t).Promote(t.Context(), im, engine.Promoting{To: i.Stable, Untested: true})
	var withdrawn *evidence.WithdrawnError
	if !errors.As(err, &withdrawn) || withdrawn.How != "lists" {
		t.Errorf("promote the index: %v", err)
	}
}
