package pipeline_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/evidence/evidencetest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/pipeline"
	"sconce.dev/sconce/internal/promote"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/store"
)

// twoPlatforms is a pipeline of a tool for two platforms, and for each of them a second form of it.
var twoPlatforms = map[string]string{
	".git/HEAD":     "ref: refs/heads/main\n",
	"pipeline.toml": "recipes = [\"tools/*\"]\nstaging = \"REGISTRY/ci\"\nstable = [\"REGISTRY/images\"]\nclusters = [\"bristen\"]\nuntested = \"allow\"\n[ci.gitlab]\nbuild = { extends = \".builder\" }\nlight = { extends = \".light\" }\n",
	"tools/tool/sconce.toml": "name = \"tool\"\nversion = \"3\"\npublish.index = true\n[[step]]\ncopy = [\"file:/opt/file\"]\n[variant]\n" +
		"amd64 = { base.image = \"tar:../../base.tar\", target.platform = \"linux/amd64\" }\narm64 = { base.image = \"tar:../../arm64.tar\", target.platform = \"linux/arm64\" }\n" +
		"big-amd64 = { base.image = \"tar:../../base.tar\", target.platform = \"linux/amd64\", image.env.SIZE = \"big\" }\nbig-arm64 = { base.image = \"tar:../../arm64.tar\", target.platform = \"linux/arm64\", image.env.SIZE = \"big\" }\n",
	"tools/tool/file": "first\n",
}

func writePlatforms(t *testing.T, s *engine.Session, registry string) string {
	t.Helper()
	files := make(map[string]string)
	for name, text := range twoPlatforms {
		files[name] = strings.ReplaceAll(text, "REGISTRY", registry)
	}
	files["arm64.tar"] = string(locktest.Base{Machine: locktest.ARM64}.Tar(t))
	dir := locktest.Dir(t, locktest.Base{}, files)
	for _, v := range []string{"amd64", "arm64", "big-amd64", "big-arm64"} {
		upgrade(t, s, filepath.Join(dir, "tools/tool")+":"+v)
	}
	return dir
}

// Variants of several platforms become one image: planned, built, promoted, pulled by platform, and cleaned up together.
func TestIndex(t *testing.T) {
	registrytest.Isolate(t)
	outsideCI(t)
	s := newSession(t)
	host := registrytest.Start(t, false)
	dir := writePlatforms(t, s, host)
	p := open(t, dir)
	want := []string{"tools/tool:amd64", "tools/tool:arm64", "tools/tool:big-amd64", "tools/tool:big-arm64", "tools/tool", "tools/tool:big"}
	if !slices.Equal(p.Refs(), want) {
		t.Fatalf("%q", p.Refs())
	}
	all := look(t, s, dir)
	if actions(all) != "build build build build build build" || !slices.Equal(all[4].Stable, []string{host + "/images/tool:3"}) || all[0].Stable != nil {
		t.Fatalf("%s: %q, %q", actions(all), all[4].Stable, all[0].Stable)
	}
	for name, want := range map[string]string{"tool": "3", "tool:big": "3-big", filepath.Join(dir, "tools/tool"): "3"} {
		if i, err := p.Image(t.Context(), s, name); err != nil || i.Version != want || len(i.Parts) != 2 {
			t.Errorf("%s: %+v, %v", name, i, err)
		}
	}
	wantIndexJobs(t, p, all)
	done, err := p.Run(t.Context(), s, all, pipeline.RunOptions{Jobs: 4})
	if err != nil || !done[4].Built || done[4].Digest == "" {
		t.Fatal(err, done[4])
	}
	there := newSession(t)
	all = look(t, there, dir)
	if got := actions(all); got != "fine fine fine fine publish publish" || all[4].Digest != done[4].Digest {
		t.Fatalf("%s: %s, and %s was made", got, all[4].Digest, done[4].Digest)
	}
	for _, st := range all[4:] {
		if _, err := p.Promote(t.Context(), there, st.Image, engine.Promoting{}); err != nil {
			t.Fatal(err)
		}
	}
	if all = look(t, there, dir); actions(all) != "fine fine fine fine fine fine" || all[0].Reasons[0] != "it is built, and published as part of tools/tool" {
		t.Errorf("%s: %q", actions(all), all[0].Reasons)
	}
	if text := pipeline.Markdown(all); !strings.Contains(text, "| linux/amd64 linux/arm64 |") || strings.Count(text, "\n") != 4 {
		t.Error(text)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		var got struct{ Architecture, Os string }
		out := registrytest.Skopeo(t, "--override-arch="+arch, "--override-os=linux", "inspect", "--config", "--tls-verify=false", "docker://"+all[5].Stable[0])
		if err := json.Unmarshal([]byte(out[strings.IndexByte(out, '{'):]), &got); err != nil || got.Architecture != arch || got.Os != "linux" || !strings.Contains(out, "SIZE=big") {
			t.Errorf("pulled for %s: %s", arch, out)
		}
	}

	// One file of both: the old ones go together, but what is published stays with its parts.
	old := all
	change(t, dir, "tools/tool/file", "first", "second")
	all = look(t, there, dir)
	if actions(all) != "build build build build build build" || !strings.Contains(all[4].Reasons[0], "tools/tool:amd64, which is part of it") {
		t.Errorf("%s: %q", actions(all), all[4].Reasons)
	}
	if _, err := p.Run(t.Context(), there, all, pipeline.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	registrytest.Skopeo(t, "delete", "--tls-verify=false", "docker://"+old[5].Stable[0])
	writeKeep(t, dir, "canonical = \"0h\"")
	clean(t, dir, true)
	gone := clean(t, dir, true)[promote.Deleted]
	for n, st := range old {
		name := st.Canonical[strings.LastIndexByte(st.Canonical, '/')+1:]
		if want := n == 2 || n == 3 || n == 5; slices.Contains(gone, name) != want {
			t.Errorf("%s is gone: %v", name, !want)
		}
	}
	if got := actions(look(t, newSession(t), dir)); got != "fine fine fine fine stuck publish" {
		t.Error(got)
	}
}

// wantIndexJobs wants an index to be put together by a light job, after its parts.
func wantIndexJobs(t *testing.T, p *pipeline.Pipeline, all []*pipeline.Status) {
	t.Helper()
	jobs, err := p.Jobs(all)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(jobs, func(j pipeline.Job) bool { return j.ID == "build tool:3" })
	if i < 0 || !slices.Equal(jobs[i].Needs, []string{"build tool:3-amd64", "build tool:3-arm64"}) || jobs[i].Command != "sconce build tools/tool --canonical" {
		t.Fatalf("%+v", jobs)
	}
	text, err := p.Gitlab(jobs)
	if err != nil {
		t.Fatal(err)
	}
	_, job, _ := strings.Cut(string(text), "\nbuild tool:3:\n")
	if !strings.HasPrefix(strings.TrimSpace(job), "extends: .light") || strings.Contains(string(text), "promote tool:3-amd64") {
		t.Errorf("%s", text)
	}
}

// productOfPlatforms is a recipe whose index comes of a matrix.
const productOfPlatforms = `name = "tool"
version = "3"
publish.index = true
[matrix]
size = ["small", "big"]
arch = ["amd64", "arm64"]
[variant]
small = {}
big = { image.env.SIZE = "big" }
amd64 = { base.image = "tar:../../base.tar", target.platform = "linux/amd64" }
arm64 = { base.image = "tar:../../arm64.tar", target.platform = "linux/arm64" }
[[test]]
use = "env"
`

// A matrix becomes two indexes of two platforms each, of which this machine can run one: built, tested, promoted, and judged from outside, where
// the index itself is signed and so is each of its images. Another program believes what is said about the index, and no other key.
func TestIndexIsSigned(t *testing.T) {
	for name, start := range map[string]func(testing.TB) string{
		"without referrers": func(t testing.TB) string { return registrytest.Start(t, false) }, "with referrers": registrytest.StartWithReferrers,
	} {
		t.Run(name, func(t *testing.T) {
			v := newSignedIndexes(t, start(t))
			all := v.run(t)
			index := all["tools/tool:big"]
			var images []store.Digest
			for _, ref := range []string{"tools/tool:big-amd64", "tools/tool:big-arm64"} {
				images = append(images, all[ref].Digest)
				v.digests[ref] = all[ref].Digest
				v.test(t, ref, imagetest.Passed)
			}
			v.digests[index.Ref] = index.Digest
			v.promote(t, index.Ref, "")
			of, where := index.Canonical, ""
			verify := func(public string) *engine.Verification {
				t.Helper()
				trust, err := engine.TrustedKeys([]string{public})
				if err != nil {
					t.Fatal(err)
				}
				got, err := v.session.Verify(t.Context(), of, where, trust)
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			whole := []string{engine.Provenance, engine.SBOM, engine.SPDX, engine.Facts}
			for of, where = range map[string]string{index.Canonical: "", index.Stable[0]: stagingOf(index, name)} {
				got := verify(v.public)
				if !got.Good() || got.Digest != index.Digest || got.Index == nil || !slices.Equal(got.Index.Images, images) || len(got.Evidence) != 2 {
					t.Fatalf("%s: %+v", of, got)
				}
				if !slices.Equal(got.Index.Signed, whole[:1]) || !slices.Equal(got.Signed, whole) {
					t.Errorf("%s: about the index %q, about its images %q", of, got.Index.Signed, got.Signed)
				}
			}
			repository, _ := store.SplitImageName(index.Canonical)
			said, err := evidencetest.Cosign(t, v.public, attest.Provenance, repository+"@"+string(index.Digest))
			if err != nil || len(said) != 1 || !said[0].IsAbout(index.Digest) {
				t.Fatalf("%v, %v", said, err)
			}
			for n, ref := range []string{"tools/tool:big-amd64", "tools/tool:big-arm64"} {
				if text := string(said[0].Predicate); !strings.Contains(text, `"`+all[ref].Canonical+`"`) || !strings.Contains(text, images[n].Hex()) {
					t.Errorf("%s is not named: %s", ref, text)
				}
			}
			_, _, stranger := evidencetest.Key(t)
			if _, err := evidencetest.Cosign(t, stranger, attest.Provenance, repository+"@"+string(index.Digest)); err == nil {
				t.Error("believed with another key")
			}
			of, where = index.Canonical, ""
			if got := verify(stranger); got.Good() || len(got.Index.Signed) > 0 {
				t.Errorf("with another key: %+v", got)
			}
			// The same parts and key give the same documents, and a tag for neither is written twice.
			v.session = newSession(t)
			if again := v.run(t)[index.Ref]; again.Digest != index.Digest || again.Action != pipeline.Fine {
				t.Errorf("%s, %s: %q", again.Digest, again.Action, again.Reasons)
			}
		})
	}
}

// An index that nothing is said about yet has no name: what ends in between is done again.
func TestIndexIsNamedLast(t *testing.T) {
	var mu sync.Mutex
	broken := true
	digest := regexp.MustCompile(`/manifests/(sha256:|att\.)([0-9a-f]{12})`)
	indexes := map[string]bool{} // by what their digests begin with
	proxy := registrytest.NewProxy(t, registrytest.Start(t, false), func(w http.ResponseWriter, r *http.Request) bool {
		m := digest.FindStringSubmatch(r.URL.Path)
		if r.Method != http.MethodPut || m == nil {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if r.Header.Get("Content-Type") == string(types.OCIImageIndex) {
			indexes[m[2]] = true
		}
		if m[1] != "att." || !indexes[m[2]] || !broken {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	v := newSignedIndexes(t, proxy.Host)
	all := look(t, v.session, v.dir)
	if _, err := open(t, v.dir).Run(t.Context(), v.session, all, pipeline.RunOptions{Jobs: 1}); err == nil {
		t.Fatal("the registry refused, and nobody says so")
	}
	named := func(when string, want bool) {
		t.Helper()
		for _, st := range all[4:] {
			if _, found, err := v.session.Head(t.Context(), st.Canonical); err != nil || found != want {
				t.Errorf("%s, %s is there: %v, %v", when, st.Canonical, found, err)
			}
		}
	}
	named("when it was refused", false)
	mu.Lock()
	broken = false
	mu.Unlock()
	v.run(t)
	named("in the end", true)
}

// stagingOf is where evidence about what users pull is: beside it where the registry keeps a list, else where it was tested.
func stagingOf(st *pipeline.Status, registry string) string {
	if registry == "with referrers" {
		return ""
	}
	name, _ := store.SplitImageName(st.Canonical)
	return name
}

// newSignedIndexes is a pipeline of [productOfPlatforms] with a key.
func newSignedIndexes(t *testing.T, registry string) *validated {
	t.Helper()
	locktest.Isolate(t)
	registrytest.Isolate(t)
	outsideCI(t)
	_, private, public := evidencetest.Key(t)
	text, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCONCE_TEST_KEY", string(text))
	v := &validated{session: newSession(t), public: public, digests: map[string]store.Digest{}}
	v.dir = writePlatforms(t, v.session, registry)
	change(t, v.dir, "pipeline.toml", "clusters", "sign = \"env:SCONCE_TEST_KEY\"\nclusters")
	locktest.Write(t, v.dir, map[string]string{"tools/tool/sconce.toml": productOfPlatforms})
	for _, ref := range open(t, v.dir).Refs()[:4] {
		upgrade(t, v.session, filepath.Join(v.dir, ref))
	}
	return v
}

// An index is promoted when all of its parts have passed, and one whose variant does not say its platform is no part.
func TestIndexIsTested(t *testing.T) {
	registrytest.Isolate(t)
	locktest.Isolate(t)
	outsideCI(t)
	s := newSession(t)
	dir := writePlatforms(t, s, registrytest.Start(t, false))
	_, private, _ := evidencetest.Key(t)
	change(t, dir, "pipeline.toml", "clusters", "sign = \"file:"+private+"\"\nclusters")
	change(t, dir, "tools/tool/sconce.toml", "[variant]", "[[test]]\nuse = \"env\"\n[variant]")
	all := look(t, s, dir)
	if _, err := open(t, dir).Run(t.Context(), s, all, pipeline.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	if all = look(t, s, dir); actions(all) != "test test test test test test" || !strings.Contains(all[4].Reasons[0], "tools/tool:amd64, which is part of it, has something to do first: test") {
		t.Errorf("%s: %q", actions(all), all[4].Reasons)
	}
	_, err := open(t, dir).Promote(t.Context(), s, all[4].Image, engine.Promoting{})
	if fault.CodeOf(err) != fault.CodeProblem || !strings.Contains(err.Error(), "tool:amd64 env on bristen") || !strings.Contains(err.Error(), "tool:arm64 env") {
		t.Errorf("%v", err)
	}
	change(t, dir, "tools/tool/sconce.toml", "big-arm64 =", "big-arm =")
	if _, err := pipeline.Open(dir); fault.CodeOf(err) != fault.CodeUsage || !strings.Contains(err.Error(), "its name does not end in arm64") {
		t.Errorf("%v", err)
	}
}
