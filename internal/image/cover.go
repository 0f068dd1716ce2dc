package image

import (
	"path"
	"strings"

	"sconce.dev/sconce/internal/layer"
)

// Cover knows what the upper layers of an image hide of the layers below them, so that who reads the layers from the top
// down can leave contents alone that nobody will see. Of a regular file it says what the [Tree] of all layers does, but for
// a file that has other names: a hard link keeps its content in the tree when the first name is hidden.
//
// The entries of a layer are added after the layer's own files were asked about. Their order makes no difference. The zero
// value hides nothing.
type Cover struct {
	at map[string]cover // by path
}

// cover is what the layers above do at a path.
type cover byte

const (
	hidesFile  cover = 1 << iota // they hide a file at the path
	hidesBelow                   // they hide what lies below the path
	isDir                        // they have a directory at the path, and this is known of the paths above it
)

// Add adds an entry of an upper layer.
func (c *Cover) Add(e layer.Entry) {
	if c.at == nil {
		c.at = map[string]cover{}
	}
	switch {
	case path.Base(e.Path) == layer.WhiteoutOpaque:
		c.at[above(e.Path)] |= hidesBelow
	case isWhiteout(e.Path):
		if p := layer.WhitesOut(e.Path); p != "" {
			c.at[p] |= hidesFile | hidesBelow
		}
	case e.Type == layer.Dir:
		c.addDir(e.Path)
	default:
		c.at[e.Path] |= hidesFile | hidesBelow
		c.addDir(above(e.Path))
	}
}

// isWhiteout reports whether an entry is an order to whatever merges layers, not a file.
func isWhiteout(p string) bool { return strings.HasPrefix(path.Base(p), layer.WhiteoutPrefix) }

// addDir adds a directory and those it lies in, which may have no entries.
func (c *Cover) addDir(p string) {
	for ; c.at[p]&isDir == 0; p = above(p) {
		c.at[p] |= isDir | hidesFile
	}
}

// Hides reports whether the layers above hide the regular file p of a lower layer. A whiteout is a file that nobody sees.
func (c *Cover) Hides(p string) bool {
	if c.at[p]&hidesFile != 0 || isWhiteout(p) {
		return true
	}
	for p != "." {
		if p = above(p); c.at[p]&hidesBelow != 0 {
			return true
		}
	}
	return false
}

// above returns the directory that holds the clean path p; "." is above itself.
func above(p string) string {
	if i := strings.LastIndexByte(p, '/'); i > 0 {
		return p[:i]
	}
	return "."
}
