package test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// What people have in their scripts for docker and podman builds here too.
func TestCommandLinesOfDocker(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	p.write("app/Containerfile", "FROM scratch AS base\nCOPY f /f\nFROM base\nLABEL a=file b=file\nCOPY --from=more g /g\nCOPY --from=other f /other\n")
	p.write("app/f", "one\n")
	p.write("more/g", "two\n")
	p.write("base/Containerfile", "FROM scratch\nCOPY f /f\n")
	p.write("base/f", "base\n")
	p.must("build", "base", "-t", "base-image:1")
	r := p.must("build", "--rm", "--force-rm=true", "--pull", "--network=host", "--label", "a=flag", "--label", "c=flag", "--load",
		"--build-context", "more=more", "--build-context", "other=docker-image://base-image:1", "--iidfile", "id", "--metadata-file", "meta.json", "--squash", "--format=docker",
		"--progress=plain", "--provenance=false", "--cache-from", "x", "-t", "one:1", "-t", "docker.io/library/two",
		"--output", "type=docker,dest=d.tar,name=three:3", "-o", "type=oci,dest=o.tar", "-o", "type=oci,tar=false,dest=layout", "-o", "type=tar,dest=root.tar",
		"-o", "type=local,dest=root", "-f", "app/Containerfile", "app")
	digest := strings.TrimSpace(r.stdout)
	for _, name := range []string{"one:1", "two", "two:latest", "docker.io/library/two:latest"} {
		if in := p.inspectFile(name); in.Digest != digest {
			t.Errorf("%s is %s, built was %s", name, in.Digest, digest)
		}
	}
	for file, want := range map[string]string{"id": digest, "root/f": "one\n", "root/g": "two\n", "root/other": "base\n"} {
		if got := p.read(file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	var meta map[string]any
	if err := json.Unmarshal([]byte(p.read("meta.json")), &meta); err != nil || meta["containerimage.digest"] != digest || meta["image.name"] != "one:1" {
		t.Errorf("metadata: %v, %v", meta, err)
	}
	for _, file := range []string{"d.tar", "o.tar", "root.tar", "layout/index.json"} {
		if _, err := os.Stat(p.path(file)); err != nil {
			t.Error(err)
		}
	}
	var in struct{ Labels map[string]string }
	if err := json.Unmarshal([]byte(skopeo(t, "inspect", "docker-archive:"+p.path("d.tar"))), &in); err != nil || in.Labels["a"] != "flag" || in.Labels["b"] != "file" || in.Labels["c"] != "flag" {
		t.Errorf("labels: %v, %v", in, err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-o", "type=tar"}, "dest=PATH"},
		{[]string{"-o", "type=docker,dest=-"}, "dest=image.tar"},
		{[]string{"-o", "type=xyz,dest=a"}, "docker, oci"},
		{[]string{"-o", "type=oci,des=a"}, `"des"`},
		{[]string{"--push", "-t"}, "reference"},
		{[]string{"--pull=never"}, "--offline"},
		{[]string{"--network=my-net"}, "default, host, none"},
		{[]string{"--build-context", "x=https://example.com/x.git"}, "neither an image nor a directory"},
		{[]string{"--build-context", "x=nowhere"}, "no directory"},
		{[]string{"--label", "=x"}, "NAME=VALUE"},
	} {
		p.fails(2, []string{c.want}, append([]string{"build", "app"}, c.args...)...)
	}
	p.wantTidy()
}

// A build without network takes it from each command, and is another build than one with it.
func TestNetworkNone(t *testing.T) {
	begin(t)
	p := newPlace(t, ordinary(t))
	p.write("app/Containerfile", "FROM "+small(t)+"\nRUN cat /proc/net/dev > /devices\n")
	p.must("build", "app", "--network=none", "-o", "dir:root")
	if got := p.read("root/devices"); strings.Count(got, ":") != 1 || !strings.Contains(got, "lo:") {
		t.Errorf("a command without network sees %s", got)
	}
}
