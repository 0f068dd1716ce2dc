package rpm

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/rpmdb"
)

// Tags of a package's header (https://rpm-software-management.github.io/rpm/manual/tags.html).
const (
	tagFileSizes      = 1028
	tagFileModes      = 1030
	tagFileLinks      = 1036
	tagProvideName    = 1047
	tagRequireFlags   = 1048
	tagRequireName    = 1049
	tagRequireVersion = 1050
	tagFileDevices    = 1095
	tagFileInodes     = 1096
	tagProvideFlags   = 1112
	tagProvideVersion = 1113
	tagDirIndexes     = 1116
	tagBaseNames      = 1117
	tagDirNames       = 1118
	tagPayloadFormat  = 1124
	tagCompressor     = 1125
	tagLongFileSizes  = 5008
	tagPayloadDigest  = 5092
	tagPayloadHash    = 5093
	hashSHA256        = 8 // of tagPayloadHash: RFC 9580, section 9.5
)

// Tags of signatures, in a header of their own. Each signs the header of the package, and that has the hash of the rest.
const (
	tagSignatureDSA     = 267
	tagSignatureRSA     = 268
	tagSignatureOpenPGP = 278 // of RPM 6: several, in base64
)

// Limits of a package file, in bytes and in number. They are rpm's own, but that the headers may have a quarter of it.
const (
	maxHeader = 64 << 20
	maxFiles  = 1 << 20
	leadSize  = 96 // of what begins a file since RPM 1, of which the first four bytes still count
)

// compressors are those whose files can be read, by the names that headers have for them.
var compressors = []string{"gzip", "xz", "zstd"}

var (
	leadMagic   = []byte{0xed, 0xab, 0xee, 0xdb}
	headerMagic = []byte{0x8e, 0xad, 0xe8, 0x01, 0, 0, 0, 0}
)

// Entry is a file of a package, as its header has it.
type Entry struct {
	Name string // without a slash first, "." for the root
	Mode uint32 // as stat(2) has it
	Size int64  // bytes
	Link string // where a symbolic link leads to

	linked int // the last of the entries that are hard links of the same file: it has the content
}

// File is a package file that is being read.
type File struct {
	rpmdb.Package
	Provides, Requires []Relation
	Entries            []Entry

	signatures rpmdb.Header
	header     rpmdb.Header
	signed     []byte // the header as it was signed
	payload    io.Reader
}

// Open reads the headers of a package file. The error says what is damaged.
func Open(r io.Reader) (*File, error) {
	lead := make([]byte, leadSize)
	if _, err := io.ReadFull(r, lead); err != nil || !bytes.HasPrefix(lead, leadMagic) {
		return nil, errors.New("it is no RPM package")
	}
	f := &File{payload: r}
	signatures, err := readHeader(r)
	if err == nil {
		f.signatures, err = rpmdb.ParseHeader(signatures[len(headerMagic):])
	}
	if err != nil {
		return nil, fmt.Errorf("its signatures: %w", err)
	}
	if _, err := io.CopyN(io.Discard, r, int64(-len(signatures)&7)); err != nil {
		return nil, fmt.Errorf("its signatures: %w", err)
	}
	if f.signed, err = readHeader(r); err == nil {
		f.header, err = rpmdb.ParseHeader(f.signed[len(headerMagic):])
	}
	if err == nil {
		f.Package, err = f.header.Package()
	}
	if err == nil {
		err = f.readEntries()
	}
	if err == nil {
		err = f.readRelations()
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// readHeader reads a header with its magic. It takes no more memory than there are bytes.
func readHeader(r io.Reader) ([]byte, error) {
	var data bytes.Buffer
	if _, err := io.CopyN(&data, r, int64(len(headerMagic)+rpmdb.IntroSize)); err != nil {
		return nil, truncated(err)
	}
	if !bytes.HasPrefix(data.Bytes(), headerMagic) {
		return nil, errors.New("its header is damaged")
	}
	size := rpmdb.HeaderSize(data.Bytes()[len(headerMagic):])
	if size > maxHeader {
		return nil, fmt.Errorf("its header is larger than %d MiB", maxHeader>>20)
	}
	if _, err := io.CopyN(&data, r, int64(size)-rpmdb.IntroSize); err != nil {
		return nil, truncated(err)
	}
	return data.Bytes(), nil
}

// truncated says of an end before the end that it is none.
func truncated(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Version is the package's, as %{EVR} has it.
func (f *File) Version() Version {
	return Version{Epoch: f.Epoch, Version: f.Package.Version, Release: f.Release}
}

// texts and numbers read lists of the header, and keep the first error.
type lists struct {
	h   rpmdb.Header
	err error
}

func (l *lists) texts(tag uint32) []string {
	all, err := l.h.Strings(tag)
	l.err = errors.Join(l.err, err)
	return all
}

func (l *lists) numbers(tag uint32) []uint64 {
	all, err := l.h.Ints(tag)
	l.err = errors.Join(l.err, err)
	return all
}

func (f *File) readEntries() error {
	l := &lists{h: f.header}
	names, dirs, indexes := l.texts(tagBaseNames), l.texts(tagDirNames), l.numbers(tagDirIndexes)
	modes, links, sizes := l.numbers(tagFileModes), l.texts(tagFileLinks), l.numbers(tagFileSizes)
	devices, inodes := l.numbers(tagFileDevices), l.numbers(tagFileInodes)
	if sizes == nil {
		sizes = l.numbers(tagLongFileSizes)
	}
	n := len(names)
	if l.err != nil {
		return l.err
	}
	if n > maxFiles {
		return fmt.Errorf("it has more than %d files", maxFiles)
	}
	if len(indexes) != n || len(modes) != n || len(links) != n || len(sizes) != n || len(devices) != n || len(inodes) != n {
		return errors.New("its list of files is damaged")
	}
	last := map[[2]uint64]int{}
	for i := range n {
		if indexes[i] >= uint64(len(dirs)) || sizes[i] > 1<<60 {
			return errors.New("its list of files is damaged")
		}
		name, err := cleanName(dirs[indexes[i]] + names[i])
		if err != nil {
			return fmt.Errorf("its file %.200q: %w", dirs[indexes[i]]+names[i], err)
		}
		f.Entries = append(f.Entries, Entry{Name: name, Mode: uint32(modes[i]), Size: int64(sizes[i]), Link: links[i]})
		if f.Entries[i].Mode&unix.S_IFMT == unix.S_IFREG {
			last[[2]uint64{devices[i], inodes[i]}] = i
		}
	}
	for i := range f.Entries {
		e := &f.Entries[i]
		if e.linked = i; e.Mode&unix.S_IFMT == unix.S_IFREG {
			e.linked = last[[2]uint64{devices[i], inodes[i]}]
		}
	}
	return nil
}

// cleanName makes a path of a header or an archive, which begins with a slash or with a dot, one below the root.
func cleanName(name string) (string, error) {
	clean := strings.TrimPrefix(strings.TrimPrefix(name, "."), "/")
	if clean == "" {
		return ".", nil
	}
	return clean, layer.CheckPath(clean, unix.PathMax-1)
}

// readRelations reads what the package provides and requires.
func (f *File) readRelations() (err error) {
	if f.Provides, err = f.relations(tagProvideName, tagProvideFlags, tagProvideVersion); err != nil {
		return err
	}
	f.Requires, err = f.relations(tagRequireName, tagRequireFlags, tagRequireVersion)
	return err
}

func (f *File) relations(nameTag, flagTag, versionTag uint32) ([]Relation, error) {
	l := &lists{h: f.header}
	names, flags, versions := l.texts(nameTag), l.numbers(flagTag), l.texts(versionTag)
	if l.err != nil {
		return nil, l.err
	}
	if len(names) > maxRelations || len(flags) != len(names) || len(versions) != len(names) {
		return nil, errors.New("its list of relations is damaged")
	}
	all := make([]Relation, len(names))
	for i, name := range names {
		if strings.HasPrefix(name, "(") {
			var err error
			if all[i], err = ParseRelation(name); err != nil {
				return nil, err
			}
			continue
		}
		// RPMSENSE_LESS, RPMSENSE_GREATER and RPMSENSE_EQUAL are bits 1 to 3.
		all[i] = Relation{Name: name, sense: sense(flags[i] >> 1 & 7), version: ParseVersion(versions[i])}
	}
	return all, nil
}

// Listed makes of the file what a list of packages would say of it, but for where it lies.
func (f *File) Listed() *Package {
	p := &Package{Name: f.Name, Arch: f.Arch, Version: f.Version(), Provides: f.Provides, Requires: f.Requires}
	for _, e := range f.Entries {
		p.Files = append(p.Files, path.Join("/", e.Name))
	}
	return p
}

// ErrUnsigned says that a package has no signature.
var ErrUnsigned = errors.New("it is not signed")

// Verify checks that one of the keys has signed the package's header, and that the rest of the file is what the header says: it reads
// all of it. Errors of signatures are those of [debian.Keyring].
func (f *File) Verify(keys *debian.Keyring, now time.Time) error {
	signatures, err := f.allSignatures()
	if err != nil {
		return err
	}
	if len(signatures) == 0 {
		return ErrUnsigned
	}
	for _, s := range signatures {
		if err = keys.Verify(f.signed, s, now); err == nil {
			return f.verifyPayload()
		}
	}
	return err
}

func (f *File) allSignatures() ([][]byte, error) {
	var all [][]byte
	for _, tag := range []uint32{tagSignatureRSA, tagSignatureDSA} {
		s, err := f.signatures.Bytes(tag)
		if err != nil {
			return nil, err
		}
		if s != nil {
			all = append(all, s)
		}
	}
	texts, err := f.signatures.Strings(tagSignatureOpenPGP)
	if err != nil {
		return nil, err
	}
	for _, text := range texts {
		s, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("its signature is damaged: %w", err)
		}
		all = append(all, s)
	}
	return all, nil
}

// verifyPayload checks the hash of the compressed files, which packages have since RPM 4.14.
func (f *File) verifyPayload() error {
	l := &lists{h: f.header}
	sums, hashes := l.texts(tagPayloadDigest), l.numbers(tagPayloadHash)
	if l.err != nil {
		return l.err
	}
	if len(sums) == 0 || len(hashes) == 0 || hashes[0] != hashSHA256 {
		return errors.New("its signed header has no SHA-256 of its files: it was made before RPM 4.14")
	}
	h := sha256.New()
	if _, err := io.Copy(h, f.payload); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != sums[0] {
		return errors.New("its files are not those that were signed")
	}
	return nil
}

// Files calls lay for each file of the package in the order of its archive: directories and links, and files with their content. Of
// hard links the last has the content, the others have none: link names it for all but the last, "" otherwise.
func (f *File) Files(lay func(e Entry, link string, content io.Reader) error) error {
	format, err := f.header.String(tagPayloadFormat)
	if err != nil {
		return err
	}
	compressor, err := f.header.String(tagCompressor)
	if err != nil {
		return err
	}
	if format != "" && format != "cpio" || compressor != "" && !slices.Contains(compressors, compressor) {
		return fmt.Errorf("its files are packed with %.20q as %.20q, and not as cpio with one of %s", compressor, format, strings.Join(compressors, ", "))
	}
	in, err := layer.Decompress(f.payload)
	if err != nil {
		return err
	}
	defer in.Close()
	return f.readCpio(in, lay)
}
