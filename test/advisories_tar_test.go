package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/tooltest"
)

// rawTar is a tar that is written block by block, whatever it says.
type rawTar struct{ bytes.Buffer }

// header adds a header of the ustar format, with a right checksum.
func (r *rawTar) header(name string, kind byte, size, link string) *rawTar {
	var b [512]byte
	copy(b[0:100], name)
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:136], size)
	copy(b[136:], "00000000000\x00")
	b[156] = kind
	copy(b[157:257], link)
	copy(b[257:], "ustar\x0000")
	copy(b[148:156], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
	r.Write(b[:])
	return r
}

// data adds a content, padded.
func (r *rawTar) data(content string) *rawTar {
	r.WriteString(content)
	r.Write(make([]byte, (512-len(content)%512)%512))
	return r
}

func (r *rawTar) file(name, content string) *rawTar {
	return r.header(name, '0', octal(len(content)), "").data(content)
}

// pax adds records (POSIX pax, "Extended Header") for what follows, or for all that follows with kind 'g'.
func (r *rawTar) pax(kind byte, records ...string) *rawTar {
	var text strings.Builder
	for _, record := range records {
		n := len(record) + 3
		for n != len(fmt.Sprintf("%d %s\n", n, record)) {
			n = len(fmt.Sprintf("%d %s\n", n, record))
		}
		fmt.Fprintf(&text, "%d %s\n", n, record)
	}
	return r.header("pax", kind, octal(text.Len()), "").data(text.String())
}

// gnu adds a long name of GNU tar's, or with kind 'K' a long target.
func (r *rawTar) gnu(kind byte, name string) *rawTar {
	return r.header("././@LongLink", kind, octal(len(name)), "").data(name)
}

func (r *rawTar) end() string { return r.String() + string(make([]byte, 1024)) }

func octal(n int) string { return fmt.Sprintf("%011o\x00", n) }

// hiddenTar is an archive within a file's content, which a reader that gets the size wrong takes for entries.
func hiddenTar() string { return new(rawTar).file("hidden", "evil").String() }

// tars are archives that programs have read in more ways than one.
func tars() map[string]string {
	hidden := hiddenTar()
	n := len(hidden)
	size := func(n int) string { return fmt.Sprintf("size=%d", n) }
	first := func() *rawTar { return new(rawTar).file("a", "good") }
	return map[string]string{
		"a size in pax and none in the header": first().pax('x', size(n)).header("b", '0', octal(0), "").data(hidden).file("c", "good").end(),
		"another size in pax":                  first().pax('x', size(n)).header("b", '0', octal(512), "").data(hidden).file("c", "good").end(),
		"a smaller size in pax":                first().pax('x', size(0)).header("b", '0', octal(n), "").data(hidden).file("c", "good").end(),
		"a size in global pax":                 first().pax('g', size(n)).header("b", '0', octal(0), "").data(hidden).end(),
		"two sizes in pax":                     first().pax('x', size(n), size(0)).header("b", '0', octal(0), "").data(hidden).file("c", "good").end(),
		"a negative size in pax":               first().pax('x', "size=-512").header("b", '0', octal(0), "").data(hidden).end(),
		"a size in pax that is no number":      first().pax('x', "size=0x400").header("b", '0', octal(0), "").data(hidden).end(),
		"a large size in pax":                  first().pax('x', "size=9223372036854775807").header("b", '0', octal(0), "").data(hidden).end(),
		"a size of a link":                     first().header("b", '2', octal(n), "a").data(hidden).file("c", "good").end(),
		"a size of a hard link":                first().header("b", '1', octal(n), "a").data(hidden).file("c", "good").end(),
		"a size of a directory":                first().header("b/", '5', octal(n), "").data(hidden).file("c", "good").end(),
		"a size in pax of a directory":         first().pax('x', size(n)).header("b/", '5', octal(0), "").data(hidden).file("c", "good").end(),
		"a size in base 256":                   first().header("b", '0', "\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00", "").data(hidden).file("c", "good").end(),
		"a negative size in base 256":          first().header("b", '0', "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe\x00", "").data(hidden).end(),
		"a path in pax":                        first().pax('x', "path=b").header("c", '0', octal(4), "").data("good").end(),
		"two paths in pax":                     first().pax('x', "path=b", "path=c").header("d", '0', octal(4), "").data("good").end(),
		"a path in pax with NUL":               first().pax('x', "path=b\x00c").header("d", '0', octal(4), "").data("good").end(),
		"an empty path in pax":                 first().pax('x', "path=").header("d", '0', octal(4), "").data("good").end(),
		"pax and a long name":                  first().pax('x', "path=b").gnu('L', "c\x00").header("d", '0', octal(4), "").data("good").end(),
		"a long name and pax":                  first().gnu('L', "c\x00").pax('x', "path=b").header("d", '0', octal(4), "").data("good").end(),
		"a long name without an end":           first().gnu('L', "c").header("d", '0', octal(4), "").data("good").end(),
		"a long name with more behind":         first().gnu('L', "c\x00../../d\x00").header("d", '0', octal(4), "").data("good").end(),
		"an empty long name":                   first().gnu('L', "\x00").header("d", '0', octal(4), "").data("good").end(),
		"two long names":                       first().gnu('L', "b\x00").gnu('L', "c\x00").header("d", '0', octal(4), "").data("good").end(),
		"a long name of nothing":               first().gnu('L', "b\x00").end(),
		"pax of nothing":                       first().pax('x', "path=b").end(),
		"pax that is damaged":                  first().header("pax", 'x', octal(12), "").data("99 path=b\nxx").header("d", '0', octal(4), "").data("good").end(),
		"pax that is cut":                      first().header("pax", 'x', octal(8), "").data("10 path=").header("d", '0', octal(4), "").data("good").end(),
		"a file twice":                         first().file("a", "other").end(),
		"a file, then a directory":             first().header("a/", '5', octal(0), "").end(),
		"a directory, then a file":             new(rawTar).header("a/", '5', octal(0), "").file("a", "good").end(),
		"one block of zeros":                   first().String() + string(make([]byte, 512)) + new(rawTar).file("b", "evil").end(),
		"an archive behind the end":            first().end() + new(rawTar).file("b", "evil").end(),
		"no end":                               first().String(),
		"a wrong checksum":                     strings.Replace(first().file("b", "evil").end(), "b\x00", "c\x00", 1),
		"an unknown type":                      first().header("b", 'Q', octal(n), "").data(hidden).file("c", "good").end(),
		"an old file with a slash":             first().header("b/", 0, octal(0), "").file("c", "good").end(),
		"a name with a dot":                    first().file("./b", "good").file("b/../c", "good").end(),
		"a name with two slashes":              first().file("d//b", "good").end(),
	}
}

// leadingOut are archives with links by which a file would come to lie outside (CPython CVE-2025-4138, CVE-2025-4330, CVE-2025-4517).
func leadingOut(host string) map[string]string {
	long := strings.Repeat("d/", 120)
	return map[string]string{
		"a name upwards":        new(rawTar).file("../../../../../../../.."+host+"/evil", "evil").end(),
		"an absolute name":      new(rawTar).file(host+"/evil", "evil").end(),
		"through a link":        new(rawTar).header("l", '2', octal(0), host).file("l/evil", "evil").end(),
		"through two links":     new(rawTar).header("l", '2', octal(0), "m").header("m", '2', octal(0), host).file("l/evil", "evil").end(),
		"through a link up":     new(rawTar).header("l", '2', octal(0), "../../../../../../../.."+host).file("l/evil", "evil").end(),
		"a link to a link":      new(rawTar).header("l", '2', octal(0), host+"/evil").file("l", "evil").end(),
		"a hard link":           new(rawTar).header("h", '1', octal(0), host+"/kept").file("h", "evil").end(),
		"a hard link up":        new(rawTar).header("h", '1', octal(0), "../../../../../../../.."+host+"/kept").file("h", "evil").end(),
		"a hard link by a link": new(rawTar).header("l", '2', octal(0), host).header("h", '1', octal(0), "l/kept").file("h", "evil").end(),
		"a long way":            new(rawTar).header("l", '2', octal(0), long+strings.Repeat("../", 120)+"..").pax('x', "path=l/"+strings.Repeat("../", 20)+host+"/evil").header("x", '0', octal(4), "").data("evil").end(),
		"a directory's mode":    new(rawTar).header("l", '2', octal(0), host).header("l/", '5', octal(0), "").end(),
	}
}

// tarReader prints what Python finds in tars, by the name of each: the type of each file, the last of those that are there twice, and its text or
// target; null for a tar that it refuses.
const tarReader = `
import json, os.path, sys, tarfile
def read(path):
    found = {}
    with tarfile.open(path, "r:") as t:
        for m in t:
            name = os.path.normpath("/" + m.name).strip("/")
            if m.isreg(): found[name] = ["file", t.extractfile(m).read().decode("latin-1")]
            elif m.isdir(): found[name] = ["dir", ""]
            elif m.issym(): found[name] = ["link", m.linkname]
            elif m.islnk(): found[name] = found.get(m.linkname, ["hard", m.linkname])
            else: found[name] = ["other", ""]
    return found
all = {}
for path in sys.argv[1:]:
    try: all[path] = read(path)
    except Exception: all[path] = None
print(json.dumps(all))
`

// readByPython are tars as Python reads them, by their files; nil for one that it refuses.
func readByPython(t *testing.T, files []string) (found map[string]map[string][2]string) {
	t.Helper()
	out, err := exec.Command(tooltest.Path(t, "python3"), append([]string{"-c", tarReader}, files...)...).Output()
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return found
}

// likeGo are archives of which archive/tar makes something else than Python, and with it all that reads layers: docker, containerd, podman.
var likeGo = []string{"two long names", "pax and a long name", "an empty long name", "a long name of nothing", "pax of nothing"}

// A tar is read as Python's tarfile reads it, or refused: as an image, as a layer, and by ADD (astral-tokio-tar CVE-2025-62518: the size in a
// pax header and the one beside it).
func TestTarHasOneReading(t *testing.T) {
	asBoth(t, func(t *testing.T, p *place) {
		outs := map[string]string{} // by the archive
		var files []string
		for name, data := range tars() {
			in := p.path(strings.ReplaceAll(name, " ", "-"))
			locktest.Write(t, p.dir, map[string]string{filepath.Base(in) + ".tar": data})
			if !strings.HasPrefix(name, "a negative size") { // by which Python never ends (CVE-2025-8194)
				files = append(files, in+".tar")
			}
			ways := [][]string{{"copy", "--platform", "linux/amd64", "tar:" + in + ".tar"}, {"build", in, "-o"}}
			if p.user != nil { // the other way to the same code
				ways = [][]string{{"copy", writeLayout(t, in+".layout", v1.Config{}, static.NewLayer([]byte(data), types.OCIUncompressedLayer))}}
			} else {
				locktest.Write(t, in, map[string]string{"add.tar": data, "Containerfile": "FROM scratch\nADD add.tar /\n"})
			}
			for i, args := range ways {
				out := fmt.Sprintf("%s.%d.out.tar", in, i)
				r := p.sconce(append(args, "tar:"+out)...)
				_, err := os.Lstat(out)
				switch {
				case strings.Contains(r.stderr, "goroutine ") || r.code != 0 && (r.code != 1 || !strings.Contains(r.stderr, "error: ")):
					t.Errorf("%s: %v", name, r)
				case r.code == 0:
					outs[out] = in + ".tar"
				case err == nil:
					t.Errorf("%s: something was written: %v", name, r)
				}
			}
		}
		if len(outs) < 15 {
			t.Errorf("only %d of the archives are read", len(outs))
		}
		read := readByPython(t, append(files, slices.Collect(maps.Keys(outs))...))
		for out, in := range outs {
			name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(in), ".tar"), "-", " ")
			diff := unlike(read[out], read[in])
			if read[in] == nil {
				diff = "Python refuses it"
			}
			if diff != "" && !slices.Contains(likeGo, name) {
				t.Errorf("%s: %s", name, diff)
			}
		}
	})
}

// unlike says in which files two trees differ. Directories that nothing says stand there are no difference.
func unlike(got, want map[string][2]string) string {
	var lines []string
	for name, w := range want {
		if g, ok := got[name]; !ok || g != w {
			lines = append(lines, fmt.Sprintf("%s is %q, and to Python %q", name, g, w))
		}
	}
	for name, g := range got {
		if _, ok := want[name]; !ok && g[0] != "dir" {
			lines = append(lines, fmt.Sprintf("%s is %q, and to Python not there", name, g))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

// Nothing of an archive comes to lie outside of where it is unpacked, nor in what its links lead to: as an image that runs, as a layer, by ADD, as
// a source (CPython CVE-2025-4138 and its kin, pip CVE-2025-8869, astral-tokio-tar's links).
func TestTarLeadsOut(t *testing.T) {
	asBoth(t, func(t *testing.T, p *place) {
		p.write("host/kept", "kept")
		kept := map[string]string{"kept": "kept"}
		p.tiny("tiny")
		for name, data := range leadingOut(p.path("host")) {
			dir := strings.ReplaceAll(name, " ", "-")
			p.write(dir+"/x.tar", data)
			layout := writeLayout(p.t, p.path(dir, "layout"), v1.Config{}, static.NewLayer([]byte(data), types.OCIUncompressedLayer))
			p.write(dir+"/Containerfile", "FROM tiny:1\nADD x.tar /in/\nRUN true\n")
			p.write(dir+"/source/x.tar", data)
			p.write(dir+"/source/sconce.toml", "name = \"c\"\nversion = \"1\"\n[base]\nimage = \"tiny:1\"\n[source.x]\nurl = \"x.tar\"\n[component.x]\nrun = \"mkdir -p /opt/x; cp -r . /opt/x/\"\n")
			for _, args := range [][]string{
				{"copy", "--platform", "linux/amd64", "tar:" + p.path(dir, "x.tar"), "tar:" + p.path(dir, "out.tar")},
				{"unpack", layout, p.path(dir, "unpacked")},
				{"run", "--unpack", "first", layout, "true"},
				{"build", dir},
				{"build", dir + "/source"},
			} {
				if r := p.sconce(args...); strings.Contains(r.stderr, "goroutine ") {
					t.Errorf("%s: %v", name, r)
				}
				p.wantUnchanged("host", kept)
			}
		}
		p.wantSound()
	})
}
