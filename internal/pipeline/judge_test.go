package pipeline_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/evidence"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/tooltest"
)

// Promotion, the plan and verify agree about each image, whatever its tests have said: what is published can be verified, and what cannot be is not published.
func TestVerifyAgrees(t *testing.T) {
	v := newValidated(t)
	change(t, v.dir, "apps/app/sconce.toml", "[[test]]\nuse = \"gpu\"\nskip = \"no GPU is free\"\n", "")
	change(t, v.dir, "pipeline.toml", "untested = \"allow\"\n", "")
	key, err := engine.SigningKey("env:SCONCE_TEST_KEY")
	if err != nil {
		t.Fatal(err)
	}
	trust := []*attest.PublicKey{key.Public()}
	const app = "apps/app:small"
	with := func(name, old, text string) func() {
		return func() { change(t, v.dir, name, old, text) }
	}
	verdict := func(ref string, verdict imagetest.Verdict) func() {
		return func() { v.test(t, ref, verdict) }
	}
	steps := []struct {
		name, ref string
		do        func()
		plan      pipeline.Action
		good      bool
	}{
		{"without a test", "images/base", nil, pipeline.Untested, false},
		{"without a test, which the recipe allows", "images/base", with("images/base/sconce.toml", "[image.env]", "[publish]\nuntested = \"allow\"\n[image.env]"), pipeline.Fine, true},
		{"not run", "images/stack", nil, pipeline.Test, false},
		{"failed", "images/stack", verdict("images/stack", imagetest.Failed), pipeline.Test, false},
		{"warned", "images/stack", verdict("images/stack", imagetest.Warned), pipeline.Fine, true},
		{"failed since", "images/stack", verdict("images/stack", imagetest.Failed), pipeline.Test, false},
		{"passed since", "images/stack", verdict("images/stack", imagetest.Passed), pipeline.Fine, true},
		{"failed itself", app, verdict(app, imagetest.Failed), pipeline.Test, false},
		{"passed", app, verdict(app, imagetest.Passed), pipeline.Fine, true},
		{"one that is skipped", "apps/app:large-dev", func() {
			change(t, v.dir, "apps/app/sconce.toml", "name = \"rate\"", "skip = \"later\"\nname = \"rate\"")
		}, pipeline.Untested, false},
		{"one that is skipped, which the pipeline allows", "apps/app:large-dev", with("pipeline.toml", "mutable =", "untested = \"allow\"\nmutable ="), pipeline.Fine, true},
	}
	for _, step := range steps {
		if step.do != nil {
			step.do()
		}
		i := v.image(t, step.ref)
		_, err := open(t, v.dir).Promote(t.Context(), v.session, i, engine.Promoting{})
		if (err == nil) != step.good || err != nil && fault.CodeOf(err) != fault.CodeProblem {
			t.Errorf("%s: promoted: %v", step.name, err)
		}
		places := []string{i.Canonical}
		if step.good {
			places = append(places, i.Stable...)
		}
		for _, at := range places {
			found, err := v.session.Verify(t.Context(), at, "", trust)
			if err != nil || found.Good() != step.good {
				t.Errorf("%s: %s is verified: %v, %+v", step.name, at, err, found)
			}
		}
		_, err = v.session.Promote(t.Context(), engine.InRegistry{Repository: repositoryOf(i.Canonical), Digest: v.digests[step.ref]}, engine.Promoting{
			To: []string{repositoryOf(i.Canonical) + ":by-name"}, Trust: trust, Mutable: true, DryRun: true,
		})
		if (err == nil) != step.good {
			t.Errorf("%s: promoted by its name: %v", step.name, err)
		}
		all := look(t, newSession(t), v.dir)
		st := all[slices.IndexFunc(all, func(st *pipeline.Status) bool { return st.Image.Ref == step.ref })]
		if st.Action != step.plan {
			t.Errorf("%s: the plan says %s because %q, want %s", step.name, st.Action, st.Reasons, step.plan)
		}
	}
	found, err := v.session.Verify(t.Context(), v.image(t, "images/stack").Canonical, "", trust)
	if err != nil || len(found.Evidence) != 1 || found.Evidence[0].FailedBefore != 2 || found.Record == nil {
		t.Errorf("of the earlier verdicts nothing is left: %+v, %v", found, err)
	}
	found, err = v.session.Verify(t.Context(), v.image(t, "apps/app:large-dev").Stable[0], "", trust)
	if err != nil || len(found.Untested) != 1 || !strings.Contains(found.Untested[0], "skipped: later") {
		t.Errorf("that it was not tested is not told: %+v, %v", found, err)
	}
	if err := open(t, v.dir).CheckTested([]*pipeline.Image{v.image(t, app)}); err != nil {
		t.Error(err)
	}
	if _, err := open(t, v.dir).Promote(t.Context(), v.session, v.image(t, app), engine.Promoting{Untested: true}); fault.CodeOf(err) != fault.CodeUsage {
		t.Errorf("a flag promotes what is not tested: %v", err)
	}
}

func repositoryOf(ref string) string {
	name, _ := store.SplitImageName(ref)
	return name
}

// What is signed says which repository, commit and job an image is from, and nothing of the machine and the user that built it.
func TestSignedIsNobodys(t *testing.T) {
	tooltest.Path(t, "git")
	v := newSigned(t)
	if err := os.RemoveAll(filepath.Join(v.dir, ".git")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"} {
		t.Setenv(name, os.DevNull)
	}
	ran := filepath.Join(t.TempDir(), "ran")
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...)
		cmd.Dir = v.dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "--quiet", "--initial-branch=main")
	git("remote", "add", "origin", "https://robot:secret@git.example.org/team/images.git?private_token=secret")
	git("add", ".")
	git("commit", "--quiet", "--message=x")
	commit := git("rev-parse", "HEAD")
	// What a repository's own configuration has git run is not run.
	git("config", "core.fsmonitor", "touch "+ran)
	git("config", "filter.own =.clean", "touch "+ran+"; cat")
	if err := os.WriteFile(filepath.Join(v.dir, ".git/info/attributes"), []byte("* filter=\"own =\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	change(t, v.dir, "apps/app/sconce.toml", "SIZE = \"large\"", "SIZE = \"huge\"")
	t.Setenv("JENKINS_URL", "https://ci.example.org/")
	t.Setenv("BUILD_URL", "https://ci.example.org/job/7/")
	t.Setenv("BRANCH_NAME", "main")
	t.Setenv("GIT_URL", "")
	t.Setenv("CHANGE_ID", "")
	t.Setenv("TAG_NAME", "")
	app := v.run(t)["images/stack"]
	if _, err := open(t, v.dir).Promote(t.Context(), v.session, app.Image, engine.Promoting{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("git ran what the repository's configuration names")
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	book, err := v.session.Evidence(repositoryOf(app.Canonical), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	tags, err := book.Repository().Tags(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	said := make(map[string]string)
	for _, tag := range tags {
		if kind, ok := strings.CutPrefix(tag, evidence.AttachmentTags(app.Digest)); ok {
			text, err := book.Peek(t.Context(), app.Digest, kind)
			if err != nil {
				t.Fatal(err)
			}
			said[kind] = string(text)
			for _, secret := range []string{v.dir, filepath.Dir(v.dir), "secret", host, "/home/", "\"" + me.Username + "\""} {
				if strings.Contains(string(text), secret) && len(secret) > 3 {
					t.Errorf("%s has %q", kind, secret)
				}
			}
		}
	}
	for kind, want := range map[string]string{engine.Provenance: `"place":"sconce.toml:`, "promotion": commit} {
		if !strings.Contains(strings.ReplaceAll(said[kind], " ", ""), want) {
			t.Errorf("%s: %s", kind, said[kind])
		}
	}
	var origin engine.Origin
	want := engine.Origin{Repository: "https://git.example.org/team/images.git", Commit: commit, Changed: true, CI: "Jenkins", Job: "https://ci.example.org/job/7/"}
	if err := json.Unmarshal([]byte(said[engine.OriginKind]), &origin); err != nil || origin != want {
		t.Errorf("it is from %+v, %v, want %+v", origin, err, want)
	}
}
