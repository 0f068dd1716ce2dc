package test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/tooltest"
)

// binaries are programs and libraries by the names that binariesScript gives them.
type binaries struct {
	dir       string // where they are
	largeArch int64  // in the large library, the offset of the architecture of what is large
	data      map[string]string
}

func (b binaries) get(name string) string {
	data, ok := b.data[name]
	if !ok {
		panic("no binary of the name " + name)
	}
	return data
}

func (b binaries) lib(name string) file { return text(b.get(name)) }

func (b binaries) prog(name string) file { return program(b.get(name)) }

// base is what all images have: a shell, the loader of this machine, and the directories of a Linux.
func (b binaries) base() files {
	return files{
		"bin": linkTo("usr/bin"), "lib": linkTo("usr/lib"), "lib64": linkTo("usr/lib64"),
		"usr/bin/sh": b.prog("sh"), multi + "ld-linux-x86-64.so.2": b.prog("loader"),
		"usr/lib64/ld-linux-x86-64.so.2": linkTo("../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"), "usr/lib/os-release": text("ID=corpus\n"),
		"etc/passwd": text("root:x:0:0:root:/root:/bin/sh\n"), "tmp": {kind: tar.TypeDir, mode: 0o1777},
	}
}

// withByte is a binary with one of its bytes changed.
func (b binaries) withByte(name string, offset int, to byte) string {
	data := []byte(b.get(name))
	data[offset] = to
	return string(data)
}

// binariesScript compiles everything: each source in C is a few words, and nothing needs the C library. lib takes the file, its
// soname and the source, prog the file and the source, module the same for a module of Python, code a file of assembler for a
// library with device code.
const binariesScript = `
cc() { out=$1 src=$2; shift 2; echo "$src" > source.c; gcc -w -nostdlib -fPIC -Wl,--build-id=none -Wl,--no-as-needed -Wl,--allow-shlib-undefined -o $out source.c "$@"; }
lib() { out=$1 soname=$2 src=$3; shift 3; cc $out "$src" -shared -Wl,-soname,$soname "$@"; }
prog() { out=$1 src=$2; shift 2; cc $out "$src void _start() {}" -pie "$@"; }
module() { out=$1 src=$2; shift 2; cc $out "void *PyModule_Create2(); void *PyInit_x() { return PyModule_Create2(); } $src" -shared "$@"; }
code() { gcc -shared -nostdlib -Wl,--build-id=none,-z,noseparate-code -o ${1%.s} $1; }

prog sh '' -static-pie
prog python 'int PyModule_Create2() { return 0; }' -rdynamic
lib c libc.so.6 'int c;'; lib m libm.so.6 'int m;'
prog python-linked 'int PyModule_Create2() { return 0; }' -rdynamic c m
prog v3 '' -Wl,-z,x86-64-v3
prog musl '' -Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1
lib empty libempty.so ''

lib liba liba.so.1 'int a() {}'
prog needs-a 'int a(); void f() { a(); }' liba
echo 'GLIBCXX_3.4.29 { a; };' > old.map; echo 'GLIBCXX_3.4.29 { a; }; GLIBCXX_3.4.30 { b; } GLIBCXX_3.4.29;' > new.map
lib stdcxx-old libstdc++.so.6 'int a() {}' -Wl,--version-script=old.map
lib stdcxx-new libstdc++.so.6 'int a() {} int b() {}' -Wl,--version-script=new.map
prog needs-stdcxx 'int b(); void f() { b(); }' stdcxx-new
for v in 31 38; do
	echo "GLIBC_2.$v { f; };" > libc.map; lib libc-2.$v libc.so.6 'int f() {}' -Wl,--version-script=libc.map
done

lib c10-old libc10.so 'void _ZN3c105ErrorC1Ev() {} void _ZN3c106Device3oldEv() {}'
lib c10-new libc10.so 'void _ZN3c105ErrorC1Ev() {}'
module torch-C 'void _ZN3c105ErrorC1Ev(); void f() { _ZN3c105ErrorC1Ev(); }' c10-old -Wl,-rpath,'$ORIGIN/lib'
module flash 'void _ZN3c106Device3oldEv(); void f() { _ZN3c106Device3oldEv(); }' c10-old
module plain ''

lib cudart12 libcudart.so.12 'int cudaFree() {}'
lib libcuda libcuda.so.1 'int cuInit() {}'
lib nccl libnccl.so.2 'int ncclCommInitRank() {}' -Wl,-rpath,'$ORIGIN'
lib cudnn libcudnn.so.9 'int cudnnCreate() {}' -Wl,-rpath,'$ORIGIN' -Wl,--enable-new-dtags
lib cudnn-graph libcudnn_graph.so.9 'int cudnnGraph() {}'
lib torch-nccl libtorch_cuda.so 'int t;' nccl -Wl,-rpath,'$ORIGIN/../../nvidia/nccl/lib' -Wl,--enable-new-dtags
lib torch-cudnn libtorch_cuda.so 'int t;' cudnn -Wl,-rpath,'$ORIGIN/../../nvidia/cudnn/lib' -Wl,--disable-new-dtags
lib gomp libgomp-a34b3233.so.1 'int omp;'
lib iomp libiomp5.so 'int omp;'
lib gomp-other libgomp-1d85e7bc.so.1 'int omp;'
module needs-gomp '' gomp -Wl,-rpath,'$ORIGIN'
module needs-iomp '' iomp -Wl,-rpath,'$ORIGIN'
module needs-gomp-other '' gomp-other -Wl,-rpath,'$ORIGIN'

lib cxi libcxi.so.1 'int cxi;'
lib efa libefa.so.1 'int efa;'
lib fabric-cxi libfabric.so.1 'int fi;' cxi
lib fabric-efa libfabric.so.1 'int fi;' efa
lib plugin libnccl-net.so 'int ncclNetPlugin_v9, ncclNetPlugin_v11;' fabric-cxi
lib plugin-old libnccl-net.so 'int ncclNetPlugin_v4, ncclNetPlugin_v5;' fabric-cxi
lib verbs libibverbs.so.1 'int ibv;'
lib mlx5 libmlx5-rdmav34.so 'int mlx5;'
lib pmix libpmix.so.2 'int pmix;'
lib openpal libopen-pal.so.80 'int opal;'
lib openmpi libmpi.so.40 'int MPI_Init() {}' openpal pmix
lib mpich libmpi.so.12 'int MPI_Init() {}'
lib mpich-pmix libmpi.so.12 'int MPI_Init() {}' pmix
prog needs-openmpi 'int MPI_Init(); void f() { MPI_Init(); }' openmpi
prog needs-mpich 'int MPI_Init(); void f() { MPI_Init(); }' mpich

gcc -shared -nostdlib -Wl,--build-id=none -o hip hip.o
for f in *.s; do code $f; done
`

var sharedBinaries once[binaries]

// corpusBinaries are all programs and libraries of the corpus, which nobody changes.
func corpusBinaries(t *testing.T) binaries {
	t.Helper()
	return sharedBinaries.get(t, compileBinaries)
}

func compileBinaries(t *testing.T) binaries {
	t.Helper()
	tooltest.Path(t, "gcc")
	dir := filepath.Join(workshop, "binaries")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	writeDeviceCode(t, dir)
	b := binaries{dir: dir, data: map[string]string{}}
	for name, from := range map[string]string{"loader": "/lib64/ld-linux-x86-64.so.2", "hip.o": fixtures + "hip.o"} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sh", "-e", "-c", binariesScript)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b.largeArch = archOffset(t, filepath.Join(dir, "code-large"))
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Size() >= unneededSize {
			continue // it is copied where it is used
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		b.data[e.Name()] = string(data)
	}
	return b
}

// fixtures are files with device code that nvcc made.
const fixtures = "../internal/fatbin/testdata/"

// entriesOf are the entries of a fixture by kind and architecture: "elf80", "ptx75".
func entriesOf(t *testing.T, name string) map[string][]byte {
	t.Helper()
	data, err := os.ReadFile(fixtures + name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fatbin.Scan(bytes.NewReader(data), int64(len(data)), fatbin.Options{})
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string][]byte{}
	for _, r := range f.Regions {
		for _, e := range r.Entries {
			entries[fmt.Sprintf("%v%v", e.Kind, archWord(e.Arch))] = data[e.Offset:e.End()]
		}
	}
	return entries
}

func archWord(a fatbin.Arch) string { return fmt.Sprintf("%d%s", a.SM, a.Variant) }

// regionOf makes a region of entries.
func regionOf(entries ...[]byte) []byte {
	body := bytes.Join(entries, nil)
	head := binary.LittleEndian.AppendUint32(nil, 0xBA55ED50)
	head = binary.LittleEndian.AppendUint16(head, 1)
	head = binary.LittleEndian.AppendUint16(head, 16)
	return append(binary.LittleEndian.AppendUint64(head, uint64(len(body))), body...)
}

// manyRegions is how many regions libraries have: as many as make their code large enough for a rule to care.
const manyRegions = 12

// unneededSize is the device code for another GPU in bytes, more than a rule waits for.
const unneededSize = 210_000_000

// writeDeviceCode writes what libraries with device code are assembled from.
func writeDeviceCode(t *testing.T, dir string) {
	t.Helper()
	zstd, lz4, stored := entriesOf(t, "zstd.fatbin"), entriesOf(t, "lz4.fatbin"), entriesOf(t, "stored.fatbin")
	newer := bytes.Clone(zstd["elf80"])
	binary.LittleEndian.PutUint32(newer[archField:], 90)
	both := regionOf(zstd["elf80"], zstd["elf90a"])
	libraries := map[string][][]byte{
		"code-80":      repeat(regionOf(zstd["elf80"])),
		"code-80-ptx":  repeat(regionOf(zstd["elf80"], zstd["ptx80"])),
		"code-80-90":   repeat(both),
		"code-lz4":     repeat(regionOf(lz4["elf80"], lz4["elf90a"])),
		"code-in-part": append(repeat(regionOf(stored["elf75"], newer)), regionOf(stored["elf75"], zstd["elf80"], newer)),
		"code-in-all":  repeat(regionOf(stored["elf75"], zstd["elf80"], newer)),
	}
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	writeLargeCode(t, dir, stored["elf75"], zstd["elf90a"])
	for name, regions := range libraries {
		var s, segment strings.Builder
		s.WriteString(".section .nv_fatbin,\"a\",@progbits\n")
		for i, r := range regions {
			write(fmt.Sprintf("%s.%d", name, i), r)
			fmt.Fprintf(&s, ".balign 8\nr%d: .incbin \"%s.%d\"\n", i, name, i)
			fmt.Fprintf(&segment, ".long 0x466243B1, 1\n.quad r%d, 0\n", i)
		}
		write(name+".s", []byte(s.String()+".section .nvFatBinSegment,\"aw\",@progbits\n.balign 8\n"+segment.String()))
	}
}

// writeLargeCode writes what a library is assembled from whose one region has a small image and one that is mostly zeros.
func writeLargeCode(t *testing.T, dir string, stored, small []byte) {
	t.Helper()
	head := bytes.Clone(stored)
	binary.LittleEndian.PutUint64(head[8:], unneededSize)
	binary.LittleEndian.PutUint32(head[archField:], 80)
	gap := unneededSize - (len(stored) - int(binary.LittleEndian.Uint32(stored[4:])))
	region := regionOf(head, small)
	binary.LittleEndian.PutUint64(region[8:], uint64(len(head)+gap+len(small)))
	text := fmt.Sprintf(".section .nv_fatbin,\"a\",@progbits\n.balign 8\nr: .incbin \"large.begin\"\n.space %d\n.incbin \"large.end\"\n"+
		".section .nvFatBinSegment,\"aw\",@progbits\n.balign 8\n.long 0x466243B1, 1\n.quad r, 0\n", gap)
	for name, data := range map[string]string{
		"large.begin": string(region[:16+len(head)]), "large.end": string(small), "code-large.s": text,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// archField is where the architecture stands in the header of an entry.
const archField = 28

// archOffset returns where the architecture of the first entry stands in a file.
func archOffset(t *testing.T, name string) int64 {
	t.Helper()
	h, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	info, err := h.Stat()
	if err != nil {
		t.Fatal(err)
	}
	f, err := fatbin.Scan(h, info.Size(), fatbin.Options{SectionsOnly: true})
	if err != nil || len(f.Regions) == 0 {
		t.Fatalf("%s: %v", name, err)
	}
	return f.Regions[0].Entries[0].Offset + archField
}

func repeat(region []byte) (list [][]byte) {
	for range manyRegions {
		list = append(list, region)
	}
	return list
}
