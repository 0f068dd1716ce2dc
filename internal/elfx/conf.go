package elfx

import (
	"io"
	"path"
	"slices"
	"strings"
)

// Limits on the configuration of a loader.
const (
	maxConfigSize  = 256 << 10 // bytes of a file
	maxConfigFiles = 1000
	maxConfigDepth = 10 // of files that include others
	maxConfigDirs  = 1000
)

// ConfigDirs returns the directories that /etc/ld.so.conf and what it includes name, in their order, as ldconfig reads them.
func ConfigDirs(fs FS) []string {
	c := config{fs: fs, seen: map[string]bool{}}
	c.read("/etc/ld.so.conf", 0)
	return unique(c.dirs)
}

func (l *Loader) configDirs() []string {
	l.configOnce.Do(func() { l.configured = ConfigDirs(l.FS) })
	return l.configured
}

// config reads ld.so.conf (ldconfig(8)). What cannot be read is passed over, as ldconfig does.
type config struct {
	fs   FS
	seen map[string]bool
	dirs []string
}

func (c *config) read(name string, depth int) {
	if depth > maxConfigDepth || len(c.seen) >= maxConfigFiles || c.seen[name] {
		return
	}
	c.seen[name] = true
	for line := range strings.Lines(readSmall(c.fs, name)) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] == "hwcap":
		case fields[0] == "include":
			for _, pattern := range fields[1:] {
				if !path.IsAbs(pattern) {
					pattern = path.Join(path.Dir(name), pattern)
				}
				for _, included := range glob(c.fs, pattern) {
					c.read(included, depth+1)
				}
			}
		default:
			dir, _, _ := strings.Cut(strings.TrimSpace(line), "=") // an old mark of the C library behind it
			if path.IsAbs(dir) && len(c.dirs) < maxConfigDirs {
				c.dirs = append(c.dirs, trimSlashes(strings.TrimSpace(dir)))
			}
		}
	}
}

// glob returns the names that match, in order. Each component may have wildcards.
func glob(fs FS, pattern string) []string {
	found := []string{"/"}
	for part := range strings.SplitSeq(strings.Trim(path.Clean(pattern), "/"), "/") {
		var next []string
		for _, dir := range found {
			if !strings.ContainsAny(part, `*?[\`) {
				next = append(next, path.Join(dir, part))
				continue
			}
			names, err := fs.ReadDir(dir)
			if err != nil {
				continue
			}
			names = slices.Sorted(slices.Values(names))
			for _, name := range names {
				hidden := strings.HasPrefix(name, ".") && !strings.HasPrefix(part, ".")
				if ok, err := path.Match(part, name); ok && err == nil && !hidden {
					next = append(next, path.Join(dir, name))
				}
			}
		}
		found = next[:min(len(next), maxConfigFiles)]
	}
	return found
}

// muslDirs returns the directories of /etc/ld-musl-ARCH.path, or what musl has built in. The file is looked for beside the
// directory of the interpreter.
func (l *Loader) muslDirs(interpreter string) []string {
	arch := strings.TrimSuffix(strings.TrimPrefix(path.Base(interpreter), "ld-musl-"), ".so.1")
	name := path.Join(path.Dir(path.Dir(interpreter)), "etc", "ld-musl-"+arch+".path")
	if !l.exists(name) {
		return []string{"/lib", "/usr/local/lib", "/usr/lib"}
	}
	dirs := strings.FieldsFunc(readSmall(l.FS, name), func(r rune) bool { return r == ':' || r == '\n' })
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return !path.IsAbs(d) })
	return dirs[:min(len(dirs), maxConfigDirs)]
}

// readSmall returns the beginning of a text file, nothing when it cannot be read.
func readSmall(fs FS, name string) string {
	real, err := fs.Resolve(name)
	if err != nil {
		return ""
	}
	h, err := fs.Open(real)
	if err != nil {
		return ""
	}
	defer h.Close()
	text, err := io.ReadAll(io.NewSectionReader(h, 0, min(h.Size(), maxConfigSize)))
	if err != nil {
		return ""
	}
	return string(text)
}

func unique(list []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(list, func(s string) bool {
		again := seen[s]
		seen[s] = true
		return again
	})
}
