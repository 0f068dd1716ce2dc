package cli

import (
	"fmt"

	"sconce.dev/sconce/internal/units"
)

// Below these an image with PyTorch hardly fits: its packages as they come, its layers, and what is unpacked of them.
const (
	littleRoom  = 20_000_000_000 // bytes
	littleFiles = 100_000        // inodes
)

// storeRoom says what is left for the store, and what to do where that is little.
func (in hostInfo) storeRoom() []string {
	at := in.Store
	if at.Refused != "" {
		return []string{"it cannot be written: " + at.Refused + "; SCONCE_STORE names another directory"}
	}
	said := []string{fmt.Sprintf("%s, %s of %s free", at.Type, units.Size(at.Free), units.Size(at.Size))}
	room, files, limited := at.Free, at.FreeFiles, at.Files > 0
	if limited {
		said[0] += fmt.Sprintf(", %s of %s inodes", units.Count(at.FreeFiles), units.Count(at.Files))
	}
	if q := in.Quota; q != nil && q.MaxBytes > 0 {
		room = min(room, max(0, q.MaxBytes-q.Bytes))
		said = append(said, fmt.Sprintf("your quota there: %s of %s used", units.Size(q.Bytes), units.Size(q.MaxBytes)))
	}
	if q := in.Quota; q != nil && q.MaxFiles > 0 {
		files, limited = max(0, q.MaxFiles-q.Files), true
		said = append(said, fmt.Sprintf("your quota there: %s of %s files used", units.Count(q.Files), units.Count(q.MaxFiles)))
	}
	if at.Size > 0 && room < littleRoom || limited && files < littleFiles {
		said = append(said, "that is little for images with PyTorch: `sconce cache prune` makes room, SCONCE_STORE names a directory on a larger disk")
	}
	if at.Advice != "" {
		said = append(said, at.Advice)
	}
	return said
}

// sayLogins tells where the user is logged in.
func (in hostInfo) sayLogins(line func(title, format string, args ...any)) {
	if len(in.Logins) == 0 {
		line("Logins:", "none; `sconce login REGISTRY` logs in where an image is not for everybody")
		return
	}
	title := "Logins:"
	for _, k := range in.Logins {
		line(title, "%s, by %s", k.Name, k.From)
		title = ""
	}
}

// sayNetwork tells who answers.
func (in hostInfo) sayNetwork(line func(title, format string, args ...any)) {
	title := "Network:"
	for _, an := range in.Network {
		if an.Error == "" {
			line(title, "%s answers (%s)", an.Address, an.For)
		} else {
			said := "does not answer"
			if an.Unasked {
				said = "cannot be asked"
			} else if an.Status != 0 {
				said = "answers with an error"
			}
			line(title, "%s %s (%s): %s", an.Address, said, an.For, an.Error)
			if an.Hint != "" {
				line("", "%s", an.Hint)
			}
		}
		title = ""
	}
}
