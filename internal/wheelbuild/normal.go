package wheelbuild

import (
	"archive/zip"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/zipread"
)

// normalize writes the wheel in r as it is kept: members in order, all of one time, without owners and extra fields, only
// "may be run" left of their modes. Their bytes are taken over as they are compressed. Metadata come last, as the wheel
// format recommends (packaging.python.org, "Binary distribution format").
func normalize(st *store.Store, r io.ReaderAt, size int64, at time.Time) (store.Digest, int64, error) {
	in, err := zipread.Open(r, size)
	if err != nil {
		return "", 0, err
	}
	out, err := st.NewBlob()
	if err != nil {
		return "", 0, err
	}
	defer out.Close()
	if err := writeMembers(zip.NewWriter(out), in.File, at); err != nil {
		return "", 0, err
	}
	n := out.Size()
	digest, err := out.Commit("")
	return digest, n, err
}

func writeMembers(w *zip.Writer, members []*zip.File, at time.Time) error {
	members = slices.Clone(members)
	slices.SortStableFunc(members, func(a, b *zip.File) int {
		return cmp.Or(cmp.Compare(memberRank(a.Name), memberRank(b.Name)), strings.Compare(a.Name, b.Name))
	})
	for i, m := range members {
		if i > 0 && members[i-1].Name == m.Name {
			return fmt.Errorf("%s is in it twice", m.Name)
		}
		if strings.HasSuffix(m.Name, "/") {
			continue // directories come with their files
		}
		if err := copyMember(w, m, at); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return w.Close()
}

// memberRank: code, then metadata, then RECORD.
func memberRank(name string) int {
	dir, file, _ := strings.Cut(name, "/")
	switch {
	case !strings.HasSuffix(dir, ".dist-info"):
		return 0
	case file != "RECORD":
		return 1
	}
	return 2
}

func copyMember(w *zip.Writer, m *zip.File, at time.Time) error {
	if !m.Mode().IsRegular() {
		return errors.New("it is no file")
	}
	h := zip.FileHeader{
		Name: m.Name, Method: m.Method, Modified: at, NonUTF8: m.NonUTF8,
		CRC32: m.CRC32, CompressedSize64: m.CompressedSize64, UncompressedSize64: m.UncompressedSize64,
	}
	if isASCII(m.Name) {
		h.Flags &^= 0x800
	} else {
		h.Flags |= 0x800 // names are UTF-8 (APPNOTE 4.4.4, bit 11)
	}
	mode := 0o644
	if m.Mode()&0o111 != 0 {
		mode = 0o755
	}
	h.CreatorVersion = 3 << 8 // Unix: the mode counts
	h.ExternalAttrs = uint32(0o100000|mode) << 16
	h.ModifiedDate, h.ModifiedTime = dosTime(at) //nolint:staticcheck // CreateRaw writes these, and does not look at Modified
	h.Modified = time.Time{}                     // CreateRaw takes the fields above as they are
	dst, err := w.CreateRaw(&h)
	if err != nil {
		return err
	}
	src, err := m.OpenRaw()
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return err
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0
}

// dosTime is a time as zip has it (APPNOTE 4.4.6), to two seconds.
func dosTime(t time.Time) (date, clock uint16) {
	t = t.UTC()
	return uint16(t.Day() + int(t.Month())<<5 + (t.Year()-1980)<<9), uint16(t.Second()/2 + t.Minute()<<5 + t.Hour()<<11)
}
