package export

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/registry/registrytest"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

func TestLabels(t *testing.T) {
	const name, ref = containerdNameKey, refNameKey
	for _, c := range []struct {
		tag, name string
		want      map[string]string
		docker    []string
	}{
		{"", "", map[string]string{}, []string{}},
		{"", "app", map[string]string{ref: "latest", name: "docker.io/library/app:latest"}, []string{"app:latest"}},
		{"", "app:1", map[string]string{ref: "1", name: "docker.io/library/app:1"}, []string{"app:1"}},
		{"", "me/app:1", map[string]string{ref: "1", name: "docker.io/me/app:1"}, []string{"me/app:1"}},
		{"", "ghcr.io/me/app:1", map[string]string{ref: "1", name: "ghcr.io/me/app:1"}, []string{"ghcr.io/me/app:1"}},
		{"", "localhost:5000/app:1", map[string]string{ref: "1", name: "localhost:5000/app:1"}, []string{"localhost:5000/app:1"}},
		{"x", "", map[string]string{ref: "x"}, []string{"x:latest"}},
		{"x", "app:1", map[string]string{ref: "x", name: "docker.io/library/app:x"}, []string{"app:x"}},
		{"other:2", "app:1", map[string]string{ref: "other:2", name: "docker.io/library/other:2"}, []string{"other:2"}},
		{"me/other", "", map[string]string{ref: "me/other", name: "docker.io/me/other:latest"}, []string{"me/other:latest"}},
	} {
		target := Target{Transport: source.OCIArchive, Tag: c.tag}
		l := labelOf(target, c.name)
		if got := l.annotations(); !maps.Equal(got, c.want) {
			t.Errorf("tag %q and name %q: %v", c.tag, c.name, got)
		}
		if diff := cmp.Diff(c.docker, dockerTags(target, l)); diff != "" {
			t.Errorf("tag %q and name %q: %s", c.tag, c.name, diff)
		}
	}
}

// What others load has the name that the image was built under, without being told: podman and buildah from files, skopeo from all. Docker,
// which needs a daemon, is not asked: of an archive it reads the list of tags that skopeo prints.
func TestOthersLoadByName(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can load images without a user name space")
	}
	podman, buildah := tooltest.Path(t, "podman"), tooltest.Path(t, "buildah")
	st := storetest.New(t)
	im, dir := sample(t, st), t.TempDir()
	for dest, want := range map[string]string{
		"oci-archive:" + filepath.Join(dir, "oci.tar"):       "docker.io/library/train:25.11",
		"docker-archive:" + filepath.Join(dir, "docker.tar"): "localhost/train:25.11",
		"docker-archive:" + filepath.Join(dir, "both.tar"):   "localhost/train:25.11", // an OCI archive, for docker
	} {
		write := dest
		if strings.HasSuffix(dest, "both.tar") {
			write = strings.Replace(dest, "docker-", "oci-", 1)
		}
		if err := writeTo(t.Context(), im, write, Options{Store: st, Name: "train:25.11"}); err != nil {
			t.Fatal(err)
		}
		global := []string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}
		_, file, _ := strings.Cut(dest, ":")
		for _, command := range [][]string{
			{buildah, "pull", dest},
			{buildah, "inspect", "--type", "image", want},
			{buildah, "rmi", want},
			{podman, "load", "-i", file},
			{podman, "image", "inspect", "train:25.11"},
			{podman, "rmi", "train:25.11"},
		} {
			if out, err := exec.Command(command[0], slices.Concat(global, command[1:])...).CombinedOutput(); err != nil {
				t.Errorf("%s: %q: %v\n%s", write, command, err, out)
			}
		}
		if strings.HasPrefix(dest, "docker-archive:") {
			if tags := registrytest.Skopeo(t, "list-tags", dest); !strings.Contains(tags, `"train:25.11"`) {
				t.Errorf("%s: tags of docker: %s", write, tags)
			}
		}
	}
	registrytest.Skopeo(t, "inspect", "oci-archive:"+filepath.Join(dir, "oci.tar")+":25.11")
	layout := filepath.Join(dir, "layout")
	if err := writeTo(t.Context(), im, layout, Options{Store: st, Name: "train:25.11"}); err != nil {
		t.Fatal(err)
	}
	registrytest.Skopeo(t, "inspect", "oci:"+layout+":25.11")
}

// Whoever builds again after a change finds the new image where the old one was, under whatever version.
func TestWriteAgain(t *testing.T) {
	st := storetest.New(t)
	old, changed := sample(t, st), assemble(t, st, makeLayer(t, st, layer.Zstd, regular("only", "this")))
	dir := t.TempDir()
	for _, name := range []string{"x.sqsh", "x.sif", "x.tar", "docker-archive:y.tar", "tar:z.tar", "layout", "dir:root"} {
		kind, file, ok := strings.Cut(name, ":")
		dest := kind + ":" + filepath.Join(dir, file)
		if !ok {
			dest = filepath.Join(dir, name)
		}
		o := clusterOptions(st)
		for _, step := range []struct {
			name string
			hold bool // whether it is the changed image
		}{{"train:1", false}, {"train:2", true}, {"train:2", true}, {"train:1", false}} {
			im := old
			if step.hold {
				im = changed
			}
			o.Name = step.name
			if err := writeTo(t.Context(), im, dest, o); err != nil {
				t.Fatalf("%s as %s: %v", dest, step.name, err)
			}
		}
		o.Name = "other:1"
		err := writeTo(t.Context(), changed, dest, o)
		if protected := strings.HasPrefix(name, "x.s"); protected != (err != nil) {
			t.Errorf("%s of another name: %v", dest, err)
		}
		o.Name = ""
		if err := writeTo(t.Context(), assemble(t, st, makeLayer(t, st, layer.Zstd, regular("no", "name"))), dest, o); strings.HasPrefix(name, "x.s") != (err != nil) {
			t.Errorf("%s without a name: %v", dest, err)
		}
	}
}
