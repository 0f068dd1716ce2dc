package execop

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/image"
)

// maxSources bounds a file that names package sources, in bytes.
const maxSources = 1 << 20

// AptSources reads the files of an image that say where its apt takes packages from (sources.list(5)), by name below /etc/apt.
func AptSources(t *image.Tree) (map[string]string, error) {
	const dir = "etc/apt"
	names := []string{"sources.list"}
	nodes, err := t.ReadDir(path.Join(dir, "sources.list.d"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the image's package sources: %w", err)
	}
	for _, n := range nodes {
		if ext := path.Ext(n.Name()); ext == ".list" || ext == debian.SourcesExtension {
			names = append(names, path.Join("sources.list.d", n.Name()))
		}
	}
	sources := map[string]string{}
	for _, name := range names {
		data, err := t.ReadFile(path.Join(dir, name), maxSources)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the image's package sources: %w", err)
		}
		sources[name] = string(data)
	}
	return sources, nil
}
