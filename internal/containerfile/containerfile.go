// Package containerfile reads the build files that people already have, and says what they mean. It runs nothing.
//
// [Parse] checks the form of a file with BuildKit's parser, so every file that it takes is taken here. [File.Evaluate]
// decides the rest: which stages the target needs, what each variable holds, what each instruction does to the image's
// configuration, and what is left to run, copy or make. The result, a [Build], is plain data.
//
// Where the field's tools differ, the meaning is BuildKit's. Nothing is passed over in silence: what cannot be done is an
// error with file, line and a hint, and what may be a slip is a [Warning].
package containerfile

import (
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fileop"
)

// Scratch is what [Stage.From] says of an image that begins empty.
const Scratch = "scratch"

// Build is what a file means for one target and platform.
type Build struct {
	Stages   []*Stage // those that the target needs, each after those it uses; the last one is the image
	Warnings []Warning

	// Proxy is what build arguments say of proxies, as KEY=VALUE, for every command that has no such variable. It belongs
	// in no key: a proxy decides the way, not the result.
	Proxy []string
}

// Stage is one image on the way to the last.
type Stage struct {
	Name     string // as FROM … AS gives it, in small letters; else its number in the file
	From     string // reference of an image, [Scratch], or "" when Parent says it
	Parent   int    // index in Build.Stages, or -1
	Platform v1.Platform
	Ops      []Op
	Config   v1.Config // at its end
	Author   string    // of MAINTAINER or the base

	StartInterval time.Duration // of HEALTHCHECK, for which v1.Config has no field
}

// Op is one instruction. At most one of Run, Copy and WorkDir is set; without any, it only changes the configuration.
type Op struct {
	Line    int    // first line in the file
	Text    string // the instruction on one line, as a person would write it: for progress and history
	Args    []Arg  // the build arguments that it took, by name
	Run     *Run
	Copy    *Copy
	WorkDir *WorkDir
}

// Arg is a variable of ARG, with the value that it had.
type Arg struct{ Name, Value string }

// Run is a command. Mounts of its Command is empty: Mounts here also says where their files come from.
type Run struct {
	execop.Command
	Mounts []Mount
}

// Mount is a mount of a [Run] and where its files come from.
type Mount struct {
	execop.Mount        // Source is a path below From
	From         Source // of binds and caches
}

// Copy is what COPY and ADD lay down.
type Copy struct {
	fileop.Copy
	From Source
}

// WorkDir is a directory that WORKDIR wants: made when missing, and owned by User then.
type WorkDir struct {
	Dir  string // absolute
	User string // USER[:GROUP]; "" is root
}

// Source is where files come from: exactly one of its fields says so, or none when there are none.
type Source struct {
	Stage   int    // index in Build.Stages, or -1
	Image   string // reference
	Dir     string // of this machine, besides the directory of the build
	Context bool   // the directory of the build
}

// Warning is something that may be a slip.
type Warning struct {
	Line    int // in the file, or 0
	Message string
	Hint    string // what was probably meant, or ""
}
