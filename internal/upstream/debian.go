package upstream

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/store"
)

// The files of a source package (dpkg-source(1), "SOURCE PACKAGE FORMATS"): NAME_VERSION.orig.tar.EXT, further NAME_VERSION.orig-PART.tar.EXT,
// and NAME_VERSION.debian.tar.EXT (format 3.0 quilt) or NAME_VERSION.diff.gz (1.0); or one NAME_VERSION.tar.EXT (native).
var (
	origPart   = lazyregexp.New(`\.orig-([A-Za-z0-9-]+)\.tar\.[a-z0-9]+$`)
	origTar    = lazyregexp.New(`\.orig\.tar\.[a-z0-9]+$`)
	debianTar  = lazyregexp.New(`\.debian\.tar\.[a-z0-9]+$`)
	debianDiff = lazyregexp.New(`\.diff\.gz$`)
	nativeTar  = lazyregexp.New(`\.tar\.[a-z0-9]+$`)
)

// Bounds on the patches of a source package, in bytes.
const (
	maxPatch   = 64 << 20
	maxPatches = 256 << 20
)

// packDebian packs a source package as dpkg-source -x lays it down, and returns the patches that are to be applied.
func (p *Pinned) packDebian(ctx context.Context, st *store.Store, w *packer) ([]patch, error) {
	var main, overlay, diff *File
	var parts []File
	for i := range p.Files {
		f := &p.Files[i]
		switch {
		case strings.HasSuffix(f.Name, ".dsc"), strings.HasSuffix(f.Name, ".asc"):
		case origPart.MatchString(f.Name):
			parts = append(parts, *f)
		case debianTar.MatchString(f.Name):
			overlay = f
		case debianDiff.MatchString(f.Name):
			diff = f
		case origTar.MatchString(f.Name), nativeTar.MatchString(f.Name):
			main = f
		}
	}
	if main == nil {
		return nil, fmt.Errorf("the source package %s has no tar of its own", p.Debian)
	}
	replaced := func(name string) bool { // by what comes besides the main tar
		first, _, _ := strings.Cut(name, "/")
		return overlay != nil && first == "debian" || slices.ContainsFunc(parts, func(f File) bool { return origPart.FindStringSubmatch(f.Name)[1] == first })
	}
	for _, part := range parts {
		name := origPart.FindStringSubmatch(part.Name)[1]
		if err := withBlob(st, part, func(f *os.File) error { return w.add(ctx, f, name, nil) }); err != nil {
			return nil, err
		}
	}
	if err := withBlob(st, *main, func(f *os.File) error { return w.add(ctx, f, "", replaced) }); err != nil {
		return nil, err
	}
	switch {
	case overlay != nil:
		return p.overlay(ctx, st, w, *overlay)
	case diff != nil:
		return p.diff(st, *diff)
	}
	return nil, nil
}

// overlay packs the directory debian, and returns the patches of its series.
func (p *Pinned) overlay(ctx context.Context, st *store.Store, w *packer, file File) ([]patch, error) {
	texts := make(map[string][]byte)
	var total int
	err := withBlob(st, file, func(f *os.File) error {
		err := walkArchive(ctx, f, func(e entry) error {
			if e.content == nil || !strings.HasPrefix(e.Name, "debian/patches/") || e.Size == 0 {
				return nil
			}
			text, err := readAllOf(e, maxPatch)
			if total += len(text); total > maxPatches {
				return fmt.Errorf("its patches are larger than %d MiB", maxPatches>>20)
			}
			texts[e.Name] = text
			return err
		})
		if err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		return walkArchive(ctx, f, func(e entry) error {
			if e.Name != "debian" && !strings.HasPrefix(e.Name, "debian/") {
				return fmt.Errorf("its entry %q is not below debian", e.Name)
			}
			return w.put(e)
		})
	})
	if err != nil {
		return nil, err
	}
	return series(texts)
}

// series lists the patches in the order of debian/patches/series.
func series(texts map[string][]byte) ([]patch, error) {
	var all []patch
	for line := range strings.Lines(string(texts["debian/patches/series"])) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		name := path.Join("debian/patches", words[0])
		text, ok := texts[name]
		if !ok {
			return nil, fmt.Errorf("the source package's series names %q, which is not there", words[0])
		}
		all = append(all, patch{name: name, text: text, offset: true})
	}
	return all, nil
}

func (p *Pinned) diff(st *store.Store, file File) (all []patch, err error) {
	err = withBlob(st, file, func(f *os.File) error {
		z, err := layer.Decompress(f)
		if err != nil {
			return err
		}
		defer z.Close()
		text, err := ctxio.ReadAtMost(z, maxPatch)
		all = []patch{{name: file.Name, text: text, offset: true}}
		return err
	})
	return all, err
}
