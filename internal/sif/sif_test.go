package sif

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sylabs "github.com/sylabs/sif/v2/pkg/sif"

	"sconce.dev/sconce/internal/tooltest"
)

// fileSystem stands for a squashfs: nothing here looks into it.
var fileSystem = append([]byte("hsqs"), bytes.Repeat([]byte("file system "), 1000)...)

var spec = Spec{
	Arch:     "amd64",
	Deffile:  []byte("bootstrap: docker\nfrom: debian\n"),
	Metadata: []byte(`{"data":{"attributes":{}},"type":"container"}`),
	Config:   []byte(`{"Env":["A=b"]}`),
}

func newFile(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "a.sif"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// fill writes data as an ordinary writer of file systems does: at an offset, without moving the file's own.
func fill(f *os.File, data []byte) func(int64) (int64, error) {
	return func(base int64) (int64, error) {
		_, err := f.WriteAt(data, base)
		return int64(len(data)), err
	}
}

func write(t testing.TB, s Spec, data []byte) []byte {
	t.Helper()
	f := newFile(t)
	if err := Write(f, s, fill(f, data)); err != nil {
		t.Fatal(err)
	}
	return content(t, f)
}

func content(t testing.TB, f *os.File) []byte {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func open(data []byte) (*File, error) { return Open(bytes.NewReader(data), int64(len(data))) }

// object makes an object of the format's package.
func object(t testing.TB, kind sylabs.DataType, data []byte, opts ...sylabs.DescriptorInputOpt) sylabs.DescriptorInput {
	t.Helper()
	in, err := sylabs.NewDescriptorInput(kind, bytes.NewReader(data), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func image(t testing.TB, kind sylabs.FSType, use sylabs.PartType, arch string) sylabs.DescriptorInput {
	t.Helper()
	return object(t, sylabs.DataPartition, fileSystem, sylabs.OptPartitionMetadata(kind, use, arch))
}

// create makes a file with the format's package alone.
func create(t testing.TB, objects []sylabs.DescriptorInput, opts ...sylabs.CreateOpt) []byte {
	t.Helper()
	f := newFile(t)
	_, err := sylabs.CreateContainer(f, append(opts, sylabs.OptCreateWithDescriptors(objects...), sylabs.OptCreateWithCloseOnUnload(false))...)
	if err != nil {
		t.Fatal(err)
	}
	return content(t, f)
}

// objects are those of spec.
func objects(t testing.TB) []sylabs.DescriptorInput {
	return []sylabs.DescriptorInput{
		object(t, sylabs.DataDeffile, spec.Deffile),
		object(t, sylabs.DataGenericJSON, spec.Metadata, sylabs.OptObjectName(metadataName)),
		object(t, sylabs.DataGenericJSON, spec.Config, sylabs.OptObjectName(configName)),
		image(t, sylabs.FsSquash, sylabs.PartPrimSys, spec.Arch),
	}
}

// TestSameAsPackage compares with what the format's package writes of the same objects when it copies the file system
// itself: in place or copied, the bytes must be the same.
func TestSameAsPackage(t *testing.T) {
	want := create(t, objects(t), sylabs.OptCreateDeterministic(), sylabs.OptCreateWithLaunchScript(launch))
	if got := write(t, spec, fileSystem); !bytes.Equal(got, want) {
		t.Errorf("%d bytes with SHA-256 %x, want %d with %x", len(got), sha256.Sum256(got), len(want), sha256.Sum256(want))
	}
}

// TestFields reads the fields of the specification one by one, without any of the code that wrote them.
func TestFields(t *testing.T) {
	for arch, code := range map[string]string{"amd64": "02\x00", "arm64": "04\x00", "ppc64le": "06\x00", "riscv64": "12\x00"} {
		s := spec
		s.Arch = arch
		data := write(t, s, fileSystem)
		le := binary.LittleEndian
		wantText := func(what string, at int, want string) {
			t.Helper()
			if got := string(data[at : at+len(want)]); got != want {
				t.Errorf("%s: %s is %q, want %q", arch, what, got, want)
			}
		}
		want64 := func(what string, at int, want int64) {
			t.Helper()
			if got := int64(le.Uint64(data[at:])); got != want {
				t.Errorf("%s: %s is %d, want %d", arch, what, got, want)
			}
		}
		want32 := func(what string, at int, want uint32) {
			t.Helper()
			if got := le.Uint32(data[at:]); got != want {
				t.Errorf("%s: %s is %#x, want %#x", arch, what, got, want)
			}
		}
		const zeroTime = -62135596800
		wantText("launch", 0, "#!/usr/bin/env run-singularity\n\x00")
		wantText("magic and version", 32, "SIF_MAGIC\x0001\x00")
		wantText("architecture", 45, code)
		wantText("uuid", 48, strings.Repeat("\x00", 16))
		want64("created", 64, zeroTime)
		want64("modified", 72, zeroTime)
		want64("descriptors free", 80, 44)
		want64("descriptors", 88, 48)
		want64("place of descriptors", 96, 4096)
		want64("bytes of descriptors", 104, 28080)
		want64("place of data", 112, 32176)
		want64("bytes of data", 120, int64(len(data)-32176))
		at := int64(32176)
		for i, o := range []struct {
			kind uint32
			name string
			data []byte
		}{{0x4001, "", s.Deffile}, {0x4006, "inspect-metadata.json", s.Metadata}, {0x4006, "oci-config.json", s.Config}, {0x4004, "", fileSystem}} {
			d := 4096 + 585*i
			padding := int64(0)
			if o.kind == 0x4004 {
				padding = -at & 4095
			}
			want32("kind", d, o.kind)
			wantText("used", d+4, "\x01")
			want32("id", d+5, uint32(i+1))
			want32("group", d+9, 0xf0000001)
			want32("link", d+13, 0)
			want64("offset", d+17, at+padding)
			want64("size", d+25, int64(len(o.data)))
			want64("size with padding", d+33, int64(len(o.data))+padding)
			want64("created", d+41, zeroTime)
			want64("modified", d+49, zeroTime)
			want64("owner", d+57, 0)
			want64("group's owner", d+65, 0)
			wantText("name", d+73, o.name+strings.Repeat("\x00", 128-len(o.name)))
			if !bytes.Equal(data[at+padding:][:len(o.data)], o.data) {
				t.Errorf("%s: object %d holds something else", arch, i+1)
			}
			at += padding + int64(len(o.data))
		}
		extra := 4096 + 585*3 + 73 + 128
		want32("kind of file system", extra, 1)
		want32("use of partition", extra+4, 2)
		wantText("architecture of partition", extra+8, code)
		wantText("unused descriptor", 4096+585*4, strings.Repeat("\x00", 585))
	}
}

func TestReadBack(t *testing.T) {
	for _, s := range []Spec{spec, {Arch: "arm64"}, {Arch: "arm64", Config: []byte("{}")}} {
		data := write(t, s, fileSystem)
		f, err := open(data)
		if err != nil {
			t.Fatal(err)
		}
		got := Spec{f.Arch, f.Deffile, f.Metadata, f.Config}
		if diff := cmp.Diff(s, got); diff != "" {
			t.Error(diff)
		}
		squashfs, err := io.ReadAll(f.Section(f.Partition))
		if err != nil || !bytes.Equal(squashfs, fileSystem) || f.Partition.Offset%4096 != 0 {
			t.Errorf("the partition of %d bytes at %d is not what was written: %v", len(squashfs), f.Partition.Offset, err)
		}
		if last := f.Objects[len(f.Objects)-1]; last != f.Partition || last.ID != uint32(len(f.Objects)) {
			t.Errorf("the partition %+v is not the last of %+v", f.Partition, f.Objects)
		}
	}
}

// TestFilesOfOthers reads files that the format's package made: with times and an id, of two architectures, signed, with
// other objects before the file system, and with what was deleted left as a hole.
func TestFilesOfOthers(t *testing.T) {
	ordinary := []sylabs.CreateOpt{sylabs.OptCreateWithTime(time.Unix(1700000000, 0)), sylabs.OptCreateWithLaunchScript("#!/bin/sh\n")}
	for _, arch := range []string{"amd64", "arm64", "s390x"} {
		data := create(t, append([]sylabs.DescriptorInput{
			object(t, sylabs.DataGeneric, []byte("any"), sylabs.OptObjectName("any\x1b[31m")),
			object(t, sylabs.DataGenericJSON, []byte("{}"), sylabs.OptObjectName("other.json"), sylabs.OptNoGroup()),
			object(t, sylabs.DataPartition, []byte("data"), sylabs.OptPartitionMetadata(sylabs.FsExt3, sylabs.PartData, "amd64"), sylabs.OptObjectAlignment(1)),
			object(t, sylabs.DataSignature, []byte("signed"), sylabs.OptLinkedGroupID(1)),
		}, object(t, sylabs.DataDeffile, spec.Deffile), image(t, sylabs.FsSquash, sylabs.PartPrimSys, arch)), ordinary...)
		f, err := open(data)
		if err != nil {
			t.Fatal(err)
		}
		if f.Arch != arch || !bytes.Equal(f.Deffile, spec.Deffile) || f.Metadata != nil || f.Config != nil || len(f.Objects) != 6 || f.Partition.ID != 6 {
			t.Errorf("%s: read as %+v", arch, f)
		}
	}
	file := newFile(t)
	image, err := sylabs.CreateContainer(file, sylabs.OptCreateWithDescriptors(objects(t)...), sylabs.OptCreateWithCloseOnUnload(false))
	if err == nil {
		err = image.DeleteObject(1, sylabs.OptDeleteZero(true))
	}
	if err == nil {
		err = image.AddObject(object(t, sylabs.DataSBOM, []byte("{}"), sylabs.OptSBOMMetadata(sylabs.SBOMFormatSPDXJSON)))
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := open(content(t, file))
	if err != nil || f.Deffile != nil || f.Partition.ID != 4 || len(f.Objects) != 4 {
		t.Errorf("after a deletion: %+v, %v", f, err)
	}
}

// TestObjectIsAdded checks that there is room for what comes later, and that it changes neither file system nor determinism.
func TestObjectIsAdded(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.sif")
	if err := os.WriteFile(name, write(t, spec, fileSystem), 0o600); err != nil {
		t.Fatal(err)
	}
	image, err := sylabs.LoadContainerFromPath(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := image.AddObject(object(t, sylabs.DataSBOM, []byte("{}"), sylabs.OptSBOMMetadata(sylabs.SBOMFormatSPDXJSON))); err != nil {
		t.Fatal(err)
	}
	if image.ModifiedAt().Unix() != (time.Time{}).Unix() || image.ID() != "00000000-0000-0000-0000-000000000000" {
		t.Errorf("modified %v, id %s: the package does not take the file for a deterministic one", image.ModifiedAt(), image.ID())
	}
	if err := image.UnloadContainer(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := open(data)
	if err != nil || len(f.Objects) != 5 || f.Partition.ID != 4 {
		t.Errorf("read as %+v, %v", f, err)
	}
}

func TestUnsupported(t *testing.T) {
	index := object(t, sylabs.DataOCIRootIndex, []byte("{}"))
	for name, tc := range map[string]struct {
		objects    []sylabs.DescriptorInput
		want, hint string
	}{
		"nothing":    {nil, "no primary partition", "apptainer sif list"},
		"no primary": {[]sylabs.DescriptorInput{image(t, sylabs.FsSquash, sylabs.PartSystem, "amd64")}, "no primary partition", "apptainer sif list"},
		"oci":        {[]sylabs.DescriptorInput{index}, "OCI blobs", "docker://"},
		"encrypted":  {[]sylabs.DescriptorInput{image(t, sylabs.FsEncryptedSquashfs, sylabs.PartPrimSys, "amd64")}, "encrypted", "--encrypt"},
		"gocryptfs":  {[]sylabs.DescriptorInput{image(t, 6, sylabs.PartPrimSys, "amd64")}, "encrypted", "--encrypt"},
		"ext3":       {[]sylabs.DescriptorInput{image(t, sylabs.FsExt3, sylabs.PartPrimSys, "amd64")}, "ext3", "apptainer build"},
		"raw":        {[]sylabs.DescriptorInput{image(t, sylabs.FsRaw, sylabs.PartPrimSys, "amd64")}, "Raw", "apptainer build"},
		"overlay": {[]sylabs.DescriptorInput{
			image(t, sylabs.FsSquash, sylabs.PartPrimSys, "amd64"), image(t, sylabs.FsExt3, sylabs.PartOverlay, "amd64"),
		}, "object 2 is a writable overlay", "apptainer sif del 2"},
	} {
		_, err := open(create(t, tc.objects))
		var unsupported *UnsupportedError
		if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(unsupported.Hint(), tc.hint) {
			t.Errorf("%s: error %v, want %q and the hint %q", name, err, tc.want, tc.hint)
		}
	}
}

func TestDamaged(t *testing.T) {
	good := write(t, spec, fileSystem)
	const first, fourth = 4096, 4096 + 3*585 // descriptors
	put := func(at int, v int64) func([]byte) []byte {
		return func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b[at:], uint64(v))
			return b
		}
	}
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	for name, tc := range map[string]struct {
		harm func([]byte) []byte
		want string
	}{
		"empty":                       {cut(0), "inside its header"},
		"no magic":                    {func(b []byte) []byte { b[33] = 0; return b }, "magic"},
		"version":                     {func(b []byte) []byte { b[42] = '9'; return b }, "version"},
		"cut in the header":           {cut(100), "inside its header"},
		"cut before the descriptors":  {cut(128), "inside its descriptors"},
		"cut in the descriptors":      {cut(20000), "inside its descriptors"},
		"cut before the partition":    {cut(33000), "object 4 (FS)"},
		"cut in the partition":        {cut(len(good) - 1), "cut off"},
		"descriptors without end":     {put(88, 1<<62), "at most 4096"},
		"descriptors below zero":      {put(88, -1), "at most 4096"},
		"more descriptors than bytes": {put(88, 49), "too few"},
		"descriptors below the file":  {put(96, -4096), "too few"},
		"descriptors over the end":    {put(96, 1<<62), "inside its descriptors"},
		"size of descriptors":         {put(104, 1<<62), "inside its descriptors"},
		"offset below the file":       {put(fourth+17, -1), "at -1"},
		"offset in the header":        {put(fourth+17, 0), "at 0"},
		"offset over the end":         {put(fourth+17, 1<<62), "cut off"},
		"size below zero":             {put(fourth+25, -1), "-1 bytes"},
		"size over the end":           {put(fourth+25, 1<<62), "cut off"},
		"offset and size overflow":    {func(b []byte) []byte { return put(fourth+25, 1<<62)(put(fourth+17, 1<<62+1)(b)) }, "cut off"},
		"a document over the end":     {put(first+25, 1<<40), "object 1 (Def.FILE)"},
		"two primary partitions": {func(b []byte) []byte {
			copy(b[first:first+585], b[fourth:fourth+585])
			return b
		}, "2 primary partitions"},
	} {
		_, err := open(tc.harm(bytes.Clone(good)))
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
	}
}

func TestHugeDocument(t *testing.T) {
	big := make([]byte, maxDocument+1)
	_, err := open(create(t, append(objects(t)[1:], object(t, sylabs.DataDeffile, big))))
	if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "Def.FILE") {
		t.Errorf("error %v", err)
	}
}

// TestReadErrors checks that a failing disk is not called a damaged file.
func TestReadErrors(t *testing.T) {
	good := write(t, spec, fileSystem)
	for _, after := range []int64{0, 4096, 32176} {
		_, err := Open(failing{bytes.NewReader(good), after}, int64(len(good)))
		if !errors.Is(err, errDisk) || errors.Is(err, ErrFormat) {
			t.Errorf("failing from %d: error %v", after, err)
		}
	}
}

var errDisk = errors.New("the disk is broken")

type failing struct {
	io.ReaderAt
	from int64
}

func (f failing) ReadAt(p []byte, at int64) (int, error) {
	if at >= f.from {
		return 0, errDisk
	}
	return f.ReaderAt.ReadAt(p, at)
}

func TestFailedWrite(t *testing.T) {
	for name, tc := range map[string]struct {
		arch string
		fill func(f *os.File) func(int64) (int64, error)
		want string
	}{
		"fill fails":     {"amd64", func(*os.File) func(int64) (int64, error) { return func(int64) (int64, error) { return 0, errDisk } }, errDisk.Error()},
		"nothing filled": {"amd64", func(*os.File) func(int64) (int64, error) { return func(int64) (int64, error) { return 0, nil } }, "0 bytes"},
		"too much": {"amd64", func(f *os.File) func(int64) (int64, error) {
			return func(base int64) (int64, error) {
				n, err := fill(f, fileSystem)(base)
				return n - 1, err
			}
		}, "does not end with the file"},
		"architecture": {"pdp11", func(f *os.File) func(int64) (int64, error) { return fill(f, fileSystem) }, "pdp11"},
	} {
		f := newFile(t)
		err := Write(f, Spec{Arch: tc.arch, Deffile: spec.Deffile}, tc.fill(f))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
		if data := content(t, f); len(data) > MagicOffset && Recognise(data) {
			t.Errorf("%s: the unfinished file looks like a SIF", name)
		}
	}
}

func TestRecognise(t *testing.T) {
	good := write(t, spec, fileSystem)
	for n, want := range map[int]bool{0: false, 32: false, 41: false, 42: true, len(good): true} {
		if got := Recognise(good[:n]); got != want {
			t.Errorf("of %d bytes: %t", n, got)
		}
	}
}

// TestOthersRecognise asks programs that know the formats.
func TestOthersRecognise(t *testing.T) {
	tooltest.Path(t, "file")
	tooltest.Path(t, "mksquashfs")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hello"), []byte("hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	squashfs := filepath.Join(t.TempDir(), "x.sqsh")
	if out, err := exec.Command("mksquashfs", dir, squashfs, "-quiet", "-no-progress").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(squashfs)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "a.sif")
	made := write(t, spec, data)
	if err := os.WriteFile(name, made, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("file", "-b", name).CombinedOutput(); err != nil || !strings.Contains(string(out), "run-singularity script executable") {
		t.Errorf("file says %s, %v", out, err)
	}
	f, err := open(made)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("unsquashfs", "-o", fmt.Sprint(f.Partition.Offset), "-cat", name, "hello").CombinedOutput()
	if err != nil || string(out) != "hello\n" {
		t.Errorf("unsquashfs: %q, %v", out, err)
	}
}

// FuzzSIF opens arbitrary bytes. What is accepted must lie inside the file.
func FuzzSIF(f *testing.F) {
	f.Add(create(f, objects(f), sylabs.OptCreateWithDescriptorCapacity(4)))
	f.Add(create(f, objects(f), sylabs.OptCreateWithDescriptorCapacity(4))[:6500])
	f.Add(create(f, []sylabs.DescriptorInput{image(f, sylabs.FsExt3, sylabs.PartOverlay, "amd64")}, sylabs.OptCreateWithDescriptorCapacity(1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := open(data)
		if err != nil {
			return
		}
		for _, o := range append(file.Objects, file.Partition) {
			n, err := io.Copy(io.Discard, file.Section(o))
			if err != nil || n != o.Size {
				t.Errorf("object %d: %d of %d bytes, %v", o.ID, n, o.Size, err)
			}
		}
	})
}
