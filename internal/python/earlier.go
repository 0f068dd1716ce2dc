package python

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"

	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// earlier is byte code that layers in the store have of other versions of the same packages. The code of a module follows from its source,
// its path and the Python that compiles it; so a new version of a package needs a compiler only for the modules that changed in it.
// It takes no room besides the layers.
type earlier struct {
	modules map[string]module // by the path of the source in the environment
	pieces  *layer.Pieces
}

// module is a source whose byte code a layer has.
type module struct {
	sha256 string // of the source, as in [ManifestFile]
	layer  *layer.Index
	code   layer.IndexEntry
}

// earlierRoom is how many bytes of layers stay decompressed. Modules are asked for in about the order in which they lie there.
const earlierRoom = 4 * layer.ChunkSize

// openEarlier finds the layers that had the packages of g last. Small packages share layers, each of which is opened once.
func openEarlier(st *store.Store, g Group, t Target, o LayerOptions) *earlier {
	e := &earlier{modules: make(map[string]module), pieces: layer.NewPieces(earlierRoom)}
	wanted := make(map[layer.Listed]map[string]bool) // normalised names, by the layer that has them
	for _, it := range g.Items {
		var r layer.Listed
		if found, err := st.GetRecord(store.KindBytecode, bytecodeKey(it.Name, t, o), &r); err != nil || !found {
			continue // then everything is compiled
		}
		if wanted[r] == nil {
			wanted[r] = make(map[string]bool)
		}
		wanted[r][NormalizeName(it.Name)] = true
	}
	for r, names := range wanted {
		var m Manifest
		if r.ReadManifest(st, &m) != nil {
			continue
		}
		if ix, err := layer.SeekableIndex(st, r.Layer); err == nil && ix != nil {
			e.add(names, m, ix, t)
		}
	}
	return e
}

// add notes the modules of packages of a layer.
func (e *earlier) add(names map[string]bool, m Manifest, ix *layer.Index, t Target) {
	entries := make(map[string]layer.IndexEntry, len(ix.Entries))
	for _, entry := range ix.Entries {
		entries[entry.Path] = entry
	}
	for _, p := range m.Packages {
		for _, f := range p.Files {
			delete(entries, t.Root+"/"+f.Path) // byte code that a wheel brought is its own matter
		}
	}
	for _, p := range m.Packages {
		if !names[NormalizeName(p.Name)] {
			continue
		}
		for _, f := range p.Files {
			at, ok := t.bytecodePath(f.Path)
			if code, made := entries[at]; ok && made {
				e.modules[f.Path] = module{f.SHA256, ix, code}
			}
		}
	}
}

// bytecode returns the byte code of a module, if a layer has it and it can be read there.
func (e *earlier) bytecode(source *File) ([]byte, bool) {
	m, ok := e.modules[source.Path]
	if !ok || m.sha256 == "" || m.sha256 != source.SHA256 || m.code.Size > maxBytecode(int(source.Size)) {
		return nil, false
	}
	r, err := m.layer.ReaderAt(m.code, e.pieces)
	if err != nil {
		return nil, false
	}
	pyc := make([]byte, m.code.Size)
	if _, err := io.ReadFull(io.NewSectionReader(r, 0, m.code.Size), pyc); err != nil {
		return nil, false
	}
	return pyc, true
}

// remember has the next versions of the packages of g look in their layer.
func remember(st *store.Store, l layer.Listed, g Group, t Target, o LayerOptions) error {
	for _, it := range g.Items {
		if err := st.PutRecord(store.KindBytecode, bytecodeKey(it.Name, t, o), l.Refs(), l); err != nil {
			return err
		}
	}
	return nil
}

// bytecodeKey names a package, and what byte code depends on besides its source.
func bytecodeKey(name string, t Target, o LayerOptions) string {
	data, err := json.Marshal([]string{layerFormat, NormalizeName(name), t.Root, o.CompilerFor(t.Python)})
	if err != nil {
		panic(err) // strings only
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
