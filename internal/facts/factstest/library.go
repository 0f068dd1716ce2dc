package factstest

import (
	"strings"
	"testing"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/fatbin"
)

// regionOf makes a region of images: "80", "90a", "p90" for PTX, "80-" for one without kernels, "80z" for one that is packed by zstd.
func regionOf(t *testing.T, images string) fatbin.Region {
	t.Helper()
	r := fatbin.Region{Place: fatbin.Executable, Wrapper: 1}
	for name := range strings.FieldsSeq(images) {
		e := fatbin.Entry{Kind: fatbin.ELFImage, Major: 1, Minor: 7, UncompressedSize: 10_000, HeaderSize: 64, PaddedSize: 936, Compression: fatbin.LZ4}
		if rest, ok := strings.CutPrefix(name, "p"); ok {
			e.Kind, e.Major, e.Minor, name = fatbin.PTX, 8, 4, rest
		}
		if rest, ok := strings.CutSuffix(name, "-"); ok {
			e.UncompressedSize, name = 500, rest
		}
		if rest, ok := strings.CutSuffix(name, "z"); ok {
			e.Compression, name = fatbin.Zstd, rest
		}
		e.Arch = fatbin.ParseArch(name)
		if e.Arch.SM == 0 {
			t.Fatal(name)
		}
		r.Size += 1000
		r.Entries = append(r.Entries, e)
	}
	return r
}

// Library makes a library of regions, parted by semicolons: "rel 80 p80" is input of a device link, "linked 80" its result,
// "own 80" not registered.
func Library(t *testing.T, name, regions string) facts.Library {
	t.Helper()
	f := &fatbin.File{Format: fatbin.ELF, Linked: true}
	for images := range strings.SplitSeq(regions, ";") {
		images = strings.TrimSpace(images)
		place, wrapper := fatbin.Executable, 1
		for word, is := range map[string]struct {
			place   fatbin.Place
			wrapper int
		}{"rel ": {fatbin.Relocatable, 1}, "linked ": {fatbin.Executable, 2}, "own ": {fatbin.Stray, 0}, "lost ": {fatbin.Executable, 0}} {
			if rest, ok := strings.CutPrefix(images, word); ok {
				images, place, wrapper = rest, is.place, is.wrapper
			}
		}
		r := regionOf(t, images)
		r.Place, r.Wrapper = place, wrapper
		f.Regions = append(f.Regions, r)
	}
	l := facts.NewLibrary(facts.File{Path: name, Size: 1 << 20}, f)
	l.Group = facts.GroupOf(name)
	return l
}
