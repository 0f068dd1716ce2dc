package fatbin

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Bundle is one of ROCm's offload bundles: the same code for several targets (Clang documentation, "Clang Offload Bundler").
type Bundle struct {
	Member      string // of an archive
	Section     string
	Offset      int64       // in the file
	Size        int64       // bytes, as far as the bundle tells
	Compression Compression // Stored, Zstd, or Zlib: the whole bundle is packed
	Targets     []Target
}

// Zlib is a compression of offload bundles only.
const Zlib Compression = "zlib"

// Target is the code for one target.
type Target struct {
	ID     string // as "hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+", or "host-x86_64-unknown-linux--"
	Offset int64  // in the unpacked bundle
	Size   int64  // bytes
}

const (
	bundleMagic  = "__CLANG_OFFLOAD_BUNDLE__"
	packedMagic  = "CCOB"
	maxTargets   = 4096
	maxTargetID  = 256 // bytes
	maxBundles   = 1 << 16
	targetFields = 24       // bytes: offset, size, length of the ID
	maxWindow    = 64 << 20 // bytes that zstd may look back

	packedZlib, packedZstd = 0, 1 // llvm::compression::Format
)

func isBundle(head []byte) bool {
	return bytes.HasPrefix(head, []byte(bundleMagic)) || bytes.HasPrefix(head, []byte(packedMagic))
}

// bundles reads the bundles in [off, end), with zeros between them.
func (s *scanner) bundles(off, end int64, section string) error {
	for {
		var err error
		if off, err = s.skipZeros(off, end); err != nil || off == end {
			return err
		}
		if len(s.file.Bundles) == maxBundles {
			return limitError(fmt.Sprintf("it has more than %d offload bundles", maxBundles))
		}
		b, err := s.bundle(off, end)
		if err != nil {
			return s.note(err)
		}
		b.Member, b.Section = s.member, section
		s.file.Bundles = append(s.file.Bundles, b)
		off += b.Size
	}
}

func (s *scanner) bundle(off, end int64) (Bundle, error) {
	head, err := s.head(off, end)
	if err != nil {
		return Bundle{}, err
	}
	switch {
	case bytes.HasPrefix(head, []byte(bundleMagic)):
		b := Bundle{Offset: off, Compression: Stored}
		in := s.stream(off, end-off)
		size, err := s.targets(&b, in)
		if in.err != nil {
			return b, in.err
		}
		if err == nil && size > end-off {
			err = badf(off, "an offload bundle of %d bytes where %d are left", size, end-off)
		}
		b.Size = size
		return b, err
	case bytes.HasPrefix(head, []byte(packedMagic)) && len(head) >= 32:
		return s.packedBundle(off, end, head)
	}
	return Bundle{}, badf(off, "no offload bundle begins here")
}

// packedBundle reads a compressed bundle: "CCOB", u16 version, u16 method, then by version the sizes of the file and of the
// unpacked bundle (1: u32, of the latter only; 2: u32; 3: u64), and a hash of 8 bytes.
func (s *scanner) packedBundle(off, end int64, head []byte) (Bundle, error) {
	b := Bundle{Offset: off, Size: end - off}
	headerSize := int64(0)
	switch version := le.Uint16(head[4:]); version {
	case 1:
		headerSize = 20
	case 2:
		headerSize, b.Size = 24, int64(le.Uint32(head[8:]))
	case 3:
		headerSize, b.Size = 32, int64(min(le.Uint64(head[8:]), 1<<62))
	default:
		return b, badf(off, "a compressed offload bundle of version %d", version)
	}
	if b.Size <= headerSize || b.Size > end-off {
		return b, badf(off, "a compressed offload bundle of %d bytes where %d are left", b.Size, end-off)
	}
	in := s.stream(off+headerSize, b.Size-headerSize)
	err := s.packedTargets(&b, le.Uint16(head[6:]), in)
	if in.err != nil {
		return b, in.err
	}
	return b, err
}

// stream reads n bytes at off, and keeps the errors that are not theirs.
func (s *scanner) stream(off, n int64) *payload {
	return &payload{ctx: context.Background(), in: io.NewSectionReader(s.r, off, n)}
}

// packedTargets reads the table of a compressed bundle.
func (s *scanner) packedTargets(b *Bundle, method uint16, payload io.Reader) error {
	var unpacked io.Reader
	switch method {
	case packedZlib:
		z, err := zlib.NewReader(payload)
		if err != nil {
			return badf(b.Offset, "an offload bundle of zlib: %v", err)
		}
		unpacked, b.Compression = z, Zlib
	case packedZstd:
		z, err := newZstd(payload)
		if err != nil {
			return badf(b.Offset, "an offload bundle of zstd: %v", err)
		}
		defer z.Close()
		unpacked, b.Compression = z, Zstd
	default:
		return badf(b.Offset, "an offload bundle of compression %d", method)
	}
	_, err := s.targets(b, unpacked)
	return err
}

// newZstd unpacks without goroutines and within bounds.
func newZstd(r io.Reader) (*zstd.Decoder, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
}

// targets reads the table of an unpacked bundle and gives where the last target ends.
func (s *scanner) targets(b *Bundle, r io.Reader) (size int64, err error) {
	head := make([]byte, len(bundleMagic)+8)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, b.damaged(err)
	}
	count := le.Uint64(head[len(bundleMagic):])
	if !bytes.HasPrefix(head, []byte(bundleMagic)) || count > maxTargets {
		return 0, badf(b.Offset, "an offload bundle of %d targets, or none", count)
	}
	size = int64(len(head))
	for range count {
		if err := s.count(); err != nil {
			return 0, err
		}
		t, err := b.readTarget(r)
		if err != nil {
			return 0, err
		}
		b.Targets = append(b.Targets, t)
		size = max(size, t.Offset+t.Size)
	}
	return size, nil
}

func (b *Bundle) readTarget(r io.Reader) (t Target, err error) {
	var fields [targetFields]byte
	if _, err := io.ReadFull(r, fields[:]); err != nil {
		return t, b.damaged(err)
	}
	offset, size, length := le.Uint64(fields[:]), le.Uint64(fields[8:]), le.Uint64(fields[16:])
	if offset > maxUnpacked || size > maxUnpacked || length > maxTargetID {
		return t, badf(b.Offset, "a target of %d bytes at %d with a name of %d", size, offset, length)
	}
	id := make([]byte, length)
	if _, err := io.ReadFull(r, id); err != nil {
		return t, b.damaged(err)
	}
	return Target{ID: string(id), Offset: int64(offset), Size: int64(size)}, nil
}

// damaged says that a bundle could not be read.
func (b *Bundle) damaged(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return badf(b.Offset, "read the table of an offload bundle: %v", err)
}
