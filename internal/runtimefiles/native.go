package runtimefiles

import (
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Script is a file of Apptainer's layout.
type Script struct {
	Path string // absolute
	Text string
}

// ApptainerScripts returns the scripts that all images in Apptainer's layout have, whatever they run: actions and environment.
func ApptainerScripts() []Script {
	var all []Script
	for _, f := range apptainerFiles() {
		if !strings.HasPrefix(f.path, metaDir+"/actions/") && !strings.HasPrefix(f.path, metaDir+"/env/") || f.path == dockerEnvPath {
			continue // what is left out is made of an image's configuration
		}
		none := &facts{}
		if f.absent != nil && f.absent(none) {
			continue
		}
		text, err := f.text(none)
		if err != nil {
			panic(err) // fixed texts have no errors
		}
		all = append(all, Script{Path: "/" + f.path, Text: text})
	}
	return all
}

// ApptainerEntrypoint returns the entrypoint of images in Apptainer's layout. Files written of such an image keep its scripts.
func ApptainerEntrypoint() []string { return slices.Clone(apptainerEntrypoint) }

// Runscript returns the script that starts what the configuration of an OCI image says.
func Runscript(c v1.ConfigFile) (string, error) {
	f, err := factsOf(Image{Config: c})
	if err != nil {
		return "", err
	}
	return runscript(f)
}
