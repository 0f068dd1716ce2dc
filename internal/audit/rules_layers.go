package audit

import (
	"fmt"

	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/units"
)

// layerRules are about how an image is put together. A squashfs or SIF file has no layers.
var layerRules = []Rule{{
	ID: "files-in-hidden-layers", Severity: Note,
	Title: "Files that a later layer removes or replaces",
	Why: "Every layer is stored and fetched as it is. Removing, stripping or changing a file in a later one makes the image larger, not " +
		"smaller, and who has the image can still read what was removed.",
	Remedy: "remove files in the step that makes them; a .sqsh or .sif file carries only what is seen: sconce copy IMAGE image.sqsh",
	look:   lookHiddenLayers,
}}

// hiddenWorth is how much has to be hidden in all layers before it is worth a word, in bytes.
const hiddenWorth = 50 << 20

func lookHiddenLayers(s *Subject, report func(Finding)) error {
	files, size := 0, int64(0)
	var largest image.Hidden
	for _, h := range s.Hidden {
		files += h.Files
		size += h.Size
		if h.Size > largest.Size {
			largest = h
		}
	}
	if size < hiddenWorth {
		return nil
	}
	f := Finding{Message: fmt.Sprintf("%s in %s of lower layers are removed or replaced by layers above", units.Size(size), units.Number(files, "file"))}
	for _, e := range largest.Largest {
		f.Seen = append(f.Seen, fmt.Sprintf("/%s: %s, layer %d", e.Path, units.Size(e.Size), largest.Layer+1))
	}
	report(f)
	return nil
}
