package fatbin

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

func TestHIPObject(t *testing.T) {
	f := scan(t, fixture(t, "hip.o"), Options{})
	var got []string
	for _, b := range f.Bundles {
		for _, target := range b.Targets {
			got = append(got, b.Section+" "+target.ID)
		}
	}
	want := lines(`.hip_fatbin host-x86_64-unknown-linux-gnu
		.hip_fatbin hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+
		.hip_fatbin hipv4-amdgcn-amd-amdhsa--gfx942`)
	if d := cmp.Diff(want, got); d != "" || len(f.Problems) > 0 {
		t.Errorf("problems %v, targets (-want +got):\n%s", f.Problems, d)
	}
}

// bundle makes an offload bundle with a kilobyte for each target.
func bundle(ids ...string) []byte {
	b := binary.LittleEndian.AppendUint64([]byte(bundleMagic), uint64(len(ids)))
	for i, id := range ids {
		for _, field := range []int{4096 + i*1024, 1024, len(id)} {
			b = binary.LittleEndian.AppendUint64(b, uint64(field))
		}
		b = append(b, id...)
	}
	return append(b, make([]byte, 4096+1024*len(ids)-len(b))...)
}

func packedBundle(t *testing.T, version, method uint16, content []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	if method == packedZlib {
		w := zlib.NewWriter(&packed)
		w.Write(content)
		w.Close()
	} else {
		w, err := zstd.NewWriter(&packed)
		if err != nil {
			t.Fatal(err)
		}
		w.Write(content)
		w.Close()
	}
	b := binary.LittleEndian.AppendUint16([]byte(packedMagic), version)
	b = binary.LittleEndian.AppendUint16(b, method)
	switch version {
	case 2:
		b = binary.LittleEndian.AppendUint32(b, uint32(24+packed.Len()))
	case 3:
		b = binary.LittleEndian.AppendUint64(b, uint64(32+packed.Len()))
		b = binary.LittleEndian.AppendUint32(b, 0)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(content)))
	if version == 3 { // the sizes are 64-bit numbers
		copy(b[16:], binary.LittleEndian.AppendUint64(nil, uint64(len(content))))
	}
	b = append(b, "the hash"...)
	return append(b, packed.Bytes()...)
}

func TestPackedBundles(t *testing.T) {
	content := bundle("host-x86_64-unknown-linux--", "hipv4-amdgcn-amd-amdhsa--gfx942")
	want := []Target{{"host-x86_64-unknown-linux--", 4096, 1024}, {"hipv4-amdgcn-amd-amdhsa--gfx942", 5120, 1024}}
	for version := range uint16(3) {
		for method, name := range []Compression{Zlib, Zstd} {
			b := packedBundle(t, version+1, uint16(method), content)
			if version > 0 { // version 1 does not tell where it ends
				b = append(b, make([]byte, 4096-len(b)%4096)...)
				b = append(b, bundle("hipv4-amdgcn-amd-amdhsa--gfx1100")...)
			}
			f := scan(t, b, Options{})
			if f.Format != Offload || len(f.Problems) > 0 || len(f.Bundles) != min(int(version), 1)+1 {
				t.Errorf("version %d, %s: %d bundles, problems %v", version+1, name, len(f.Bundles), f.Problems)
				continue
			}
			if d := cmp.Diff(want, f.Bundles[0].Targets); d != "" || f.Bundles[0].Compression != name {
				t.Errorf("version %d, %s: targets (-want +got):\n%s", version+1, name, d)
			}
		}
	}
}

func TestDamagedBundles(t *testing.T) {
	sound := bundle("hipv4-amdgcn-amd-amdhsa--gfx942")
	change := func(at int, to ...byte) []byte {
		b := bytes.Clone(sound)
		copy(b[at:], to)
		return b
	}
	packed := packedBundle(t, 2, packedZstd, sound)
	for name, test := range map[string]struct {
		content []byte
		problem string
	}{
		"many targets": {change(24, 0xff, 0xff, 0xff), "targets"},
		"long target":  {change(40, 0xff, 0xff), "where"},
		"huge target":  {change(40, 0, 0, 0, 0, 0, 0, 0xff), "a target of"},
		"long name":    {change(48, 0xff, 0xff), "name of"},
		"cut":          {sound[:40], "unexpected EOF"},
		"cut, packed":  {packed[:len(packed)-20], "are left"},
		"version":      {append([]byte(packedMagic+"\x09\x00"), make([]byte, 40)...), "version 9"},
		"trailing":     {append(bytes.Clone(sound), "junk"...), "no offload bundle"},
	} {
		f := scan(t, test.content, Options{})
		if len(f.Problems) != 1 || !strings.Contains(f.Problems[0].Text, test.problem) {
			t.Errorf("%s: problems %v, want one with %q", name, f.Problems, test.problem)
		}
	}
}
