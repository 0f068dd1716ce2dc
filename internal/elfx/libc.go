package elfx

import (
	"fmt"
	"path"
	"strings"
)

// Libc is a C library, whose loader has rules of its own.
type Libc int

// The C libraries.
const (
	UnknownLibc Libc = iota // glibc's rules are taken
	Glibc
	Musl
)

func (l Libc) String() string {
	switch l {
	case Glibc:
		return "glibc"
	case Musl:
		return "musl"
	}
	return "unknown"
}

func libcOf(interpreter string) Libc {
	switch base := path.Base(interpreter); {
	case strings.HasPrefix(base, "ld-musl-"):
		return Musl
	case strings.HasPrefix(base, "ld"):
		return Glibc
	}
	return UnknownLibc
}

// machine is what file systems and loaders call a processor.
type machine struct {
	glibc    string // interpreter
	musl     string // in the interpreter's name
	triplet  string // Debian's directory of the architecture
	lib      string // the directory of libraries elsewhere
	platform string // $PLATFORM
}

var machines = map[string]machine{
	"amd64":   {"/lib64/ld-linux-x86-64.so.2", "x86_64", "x86_64-linux-gnu", "lib64", "x86_64"},
	"arm64":   {"/lib/ld-linux-aarch64.so.1", "aarch64", "aarch64-linux-gnu", "lib64", "aarch64"},
	"386":     {"/lib/ld-linux.so.2", "i386", "i386-linux-gnu", "lib", "i686"},
	"arm":     {"/lib/ld-linux-armhf.so.3", "armhf", "arm-linux-gnueabihf", "lib", "v7l"},
	"ppc64le": {"/lib64/ld64.so.2", "powerpc64le", "powerpc64le-linux-gnu", "lib64", "power9"},
	"riscv64": {"/lib/ld-linux-riscv64-lp64d.so.1", "riscv64", "riscv64-linux-gnu", "lib64/lp64d", "riscv64"},
	"s390x":   {"/lib/ld64.so.1", "s390x", "s390x-linux-gnu", "lib64", "z14"},
	"loong64": {"/lib64/ld-linux-loongarch-lp64d.so.1", "loongarch64", "loongarch64-linux-gnu", "lib64", "loongarch64"},
}

func interpreters(arch string) []string {
	m, ok := machines[arch]
	if !ok {
		return nil
	}
	return []string{m.glibc, "/lib/ld-musl-" + m.musl + ".so.1"}
}

// defaults is what is built into a loader.
type defaults struct {
	lib      string   // $LIB
	platform string   // $PLATFORM
	dirs     []string // searched last
	hwcaps   []string // subdirectories for better processors, the best first
}

// defaultDirs returns what the interpreter has built in. Debian and its children put it into a directory of the
// architecture, and have that directory in the list; others have lib64, which may be a link to lib.
func (l *Loader) defaultDirs(f *File, interpreter, real string, libc Libc) defaults {
	m, ok := machines[f.Arch]
	if !ok {
		return defaults{lib: "lib", dirs: []string{"/lib", "/usr/lib"}}
	}
	if libc == Musl {
		return defaults{dirs: l.muslDirs(interpreter)}
	}
	d := defaults{lib: m.lib, platform: m.platform, dirs: unique([]string{"/" + m.lib, "/usr/" + m.lib})}
	if path.Base(path.Dir(real)) == m.triplet || real == "" && l.exists("/usr/lib/"+m.triplet) {
		d.lib = "lib/" + m.triplet
		d.dirs = []string{"/" + d.lib, "/usr/" + d.lib, "/lib", "/usr/lib"}
	}
	if f.Arch == "amd64" {
		for level := min(l.ISALevel, maxISALevel); level > 1; level-- {
			d.hwcaps = append(d.hwcaps, fmt.Sprintf("glibc-hwcaps/x86-64-v%d", level))
		}
	}
	return d
}

func (l *Loader) exists(name string) bool {
	_, err := l.FS.Resolve(name)
	return err == nil
}

// muslLibraries are the names that musl's loader takes for itself, whatever comes after (ldso/dynlink.c, load_library).
var muslLibraries = []string{"libc.", "libpthread.", "librt.", "libm.", "libdl.", "libutil.", "libxnet."}

func isMuslItself(name string) bool {
	for _, prefix := range muslLibraries {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
