// Package facts finds out what an image holds: its files, the machine code for processors and GPUs in them, its Pythons and their
// packages, its conda environments, and what the dynamic loader would stumble over. Nothing of it depends on where the image is to run, so it is gathered
// once and kept in the store. Package audit judges it.
//
// [OfImage], [OfOutline] and [OfClusterFile] gather everything; [GPU] lists the device code only: for which GPUs each library has
// any, and how much room it takes.
package facts

import (
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
)

// Root is the file system of an image. Names given to it are absolute; symbolic links are followed inside the image.
type Root interface {
	elfx.FS
	// Stat returns what a name leads to. The error wraps fs.ErrNotExist when that is nothing.
	Stat(name string) (Info, error)
	// All visits everything below the root, each directory before what it holds, links as they are. An error of visit ends the walk.
	All(visit func(Info) error) error
}

// Info is an object of a file system.
type Info struct {
	Path    string // without a slash in front; "." for the root itself
	Type    layer.Type
	Mode    uint32 // permissions, with setuid, setgid and sticky: 0o7777
	UID     int
	GID     int
	Size    int64  // bytes, of a regular file
	Link    string // target of a symlink
	ModTime time.Time
	Inode   int // the same for all names of a file that has several; 0 for a file that has one
}

// Facts are what is known of an image before any target is: gathered once, and the same for all. [OfImage] and [OfClusterFile]
// make them.
type Facts struct {
	Image    string         // as the user named it
	Digest   string         // of the manifest; "" for a file system without one
	Platform string         // "linux/amd64"
	Created  time.Time      // when it was made, as it says itself; zero where it does not
	Config   v1.Config      // environment, entrypoint, labels and so on
	Root     Root           // until Close
	Paths    []Info         // everything below the root: all directories, files with each of their names, links and devices, as Root.All shows them
	Hidden   []image.Hidden // what upper layers remove or replace

	GPU     *GPUReport
	Objects []Object // ELF files of processors, by path; of several names of a file the first
	Links   []LinkProblem
	Pythons []Python // by directory

	Conda []CondaEnvironment // by prefix

	Warnings []string // of ELF files that could not be understood; those on device code are in GPU

	close   func() error
	missing func() error // nil for an image that is all there
}

// Env returns a variable of the image's environment. Of a name that comes twice the last counts.
func (f *Facts) Env(name string) (value string, set bool) {
	for _, kv := range f.Config.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			value, set = v, true
		}
	}
	return value, set
}

// Arch returns the processor of an image: what its platform says or else what most of its programs are for.
func (f *Facts) Arch() string {
	if _, arch, ok := strings.Cut(f.Platform, "/"); ok {
		arch, _, _ = strings.Cut(arch, "/")
		return arch
	}
	count := map[string]int{}
	most := ""
	for i := range f.Objects {
		arch := f.Objects[i].Arch
		if count[arch]++; count[arch] > count[most] || count[arch] == count[most] && arch < most {
			most = arch
		}
	}
	return most
}

// Object is an ELF file. All of it but Path and Size is kept in the store, as JSON: see [factsVersion].
type Object struct {
	Path        string             `json:"path"`
	Size        int64              `json:"size"`
	Arch        string             `json:"arch"` // Go's name
	Kind        string             `json:"kind"` // "executable", "pie", "shared", "other"
	Dynamic     bool               `json:"dynamic,omitempty"`
	Interpreter string             `json:"interpreter,omitempty"`
	Soname      string             `json:"soname,omitempty"`
	Needed      []string           `json:"needed,omitempty"`
	Rpath       string             `json:"rpath,omitempty"`
	Runpath     string             `json:"runpath,omitempty"`
	ISALevel    int                `json:"isaLevel,omitempty"`
	Requires    []elfx.Requirement `json:"requires,omitempty"`
	Provides    []string           `json:"provides,omitempty"`
}

// LinkProblem is what the loader or a first call would stumble over in a file, libraries of the host left aside.
type LinkProblem struct {
	Path     string `json:"path"` // of the file that would be started or imported
	Role     string `json:"role"` // of Path: "start", "import", "module", "program", "library"; see links.go
	In       string `json:"in"`   // whose need is not met: Path or a library that it loads
	Kind     string `json:"kind"` // "interpreter", "library", "unusable", "processor", "version", "symbol"
	Library  string `json:"library,omitempty"`
	Version  string `json:"version,omitempty"`  // that is missing
	Provider string `json:"provider,omitempty"` // path of the library that should have it
	Has      string `json:"has,omitempty"`      // the highest version there is instead
	Symbol   string `json:"symbol,omitempty"`   // demangled
	More     int    `json:"more,omitempty"`     // symbols besides
	Level    int    `json:"level,omitempty"`    // x86-64 level needed
	Text     string `json:"text"`               // the whole in words
}

// Python is a directory of installed distributions and the interpreter that it is for.
type Python struct {
	Dir           string         `json:"dir"`                  // the site directory, without a slash in front: "opt/venv/lib/python3.11/site-packages"
	Version       string         `json:"version"`              // of the interpreter: "3.11"; "" when nothing tells
	System        bool           `json:"system"`               // false for a virtual environment
	SystemSite    bool           `json:"systemSite,omitempty"` // a virtual environment that sees the packages of its base
	Base          string         `json:"base,omitempty"`       // of a virtual environment: prefix of the Python it was made from
	Distributions []Distribution `json:"distributions"`        // by normalised name
}

// Distribution is an installed Python package.
type Distribution struct {
	Name           string   `json:"name"` // normalised
	Version        string   `json:"version"`
	Dir            string   `json:"dir"`                // of its metadata, without a slash in front
	Requires       []string `json:"requires,omitempty"` // Requires-Dist as written
	RequiresPython string   `json:"requiresPython,omitempty"`
	Tags           []string `json:"tags,omitempty"` // of its wheel
}
