package clusterfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/runtimefiles"
	"sconce.dev/sconce/internal/sif"
	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/store"
)

// Partition returns the file system of a squashfs or SIF file of size bytes, and its size.
func Partition(f io.ReaderAt, size int64, isSIF bool) (io.ReaderAt, int64, error) {
	if !isSIF {
		return f, size, nil
	}
	s, err := sif.Open(f, size)
	if err != nil {
		return nil, 0, err
	}
	return s.Section(s.Partition), s.Partition.Size, nil
}

// CopyPartition copies the file system of a cluster file into f at base, in the kernel, without looking at it.
func CopyPartition(ctx context.Context, f *os.File, base int64, from *source.ClusterFile, task *progress.Task) error {
	outer, at, _ := from.Partition.Outer()
	part, ok := outer.(*os.File)
	if !ok {
		return errors.New("its file system is in no file")
	}
	if _, err := part.Seek(at, io.SeekStart); err != nil {
		return err
	}
	if _, err := f.Seek(base, io.SeekStart); err != nil {
		return err
	}
	// In pieces, so that it can be called off.
	for left := from.Partition.Size(); left > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.ReadFrom(io.LimitReader(part, min(left, copyPiece))) // copy_file_range(2)
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		left -= n
		task.Add(n)
	}
	return nil
}

// copyPiece is how many bytes are copied at once.
const copyPiece = 256 << 20

// WrapSquashfs makes the empty file f a SIF around the file system of another cluster file.
func WrapSquashfs(ctx context.Context, f *os.File, from *source.ClusterFile, task *progress.Task) error {
	spec, err := specOf(from)
	if err != nil {
		return err
	}
	return sif.Write(f, spec, func(base int64) (int64, error) {
		return from.Partition.Size(), CopyPartition(ctx, f, base, from, task)
	})
}

// specOf says about a file system what the SIF that it is in says, or what its own record does.
func specOf(from *source.ClusterFile) (sif.Spec, error) {
	if s := from.SIF; s != nil {
		return sif.Spec{Arch: s.Arch, Deffile: s.Deffile, Metadata: s.Metadata, Config: s.Config}, nil
	}
	config, err := from.Config()
	if err != nil {
		return sif.Spec{}, err
	}
	record, _ := recordOf(from.FS)
	return Spec(config, record.Manifest)
}

// maxRecord bounds the record of an image, in bytes.
const maxRecord = 16 << 20

// recordOf reads what a file system that sconce wrote says about its image.
func recordOf(r *squashfs.Reader) (runtimefiles.Record, error) {
	f, err := r.Lookup(runtimefiles.RecordPath, true)
	if err != nil {
		return runtimefiles.Record{}, err
	}
	if f.Type != squashfs.Regular || f.Size > maxRecord {
		return runtimefiles.Record{}, fmt.Errorf("%s is no record of an image", runtimefiles.RecordPath)
	}
	data := make([]byte, f.Size)
	if _, err := io.ReadFull(f.Content(), data); err != nil {
		return runtimefiles.Record{}, err
	}
	return runtimefiles.ParseRecord(data)
}

// Digest returns the digest of the image that a file system was written from by sconce. The error wraps fs.ErrNotExist when
// something else wrote it.
func Digest(r *squashfs.Reader) (store.Digest, error) {
	record, err := recordOf(r)
	if err == nil && record.Manifest == "" {
		err = errors.New("it was made of no image")
	}
	return record.Manifest, err
}

// Name returns the name of the image that a file system was written from by sconce, without its tag; "" when it had none, or when
// something else wrote the file system.
func Name(r *squashfs.Reader) string {
	record, err := recordOf(r)
	if err != nil {
		return ""
	}
	return record.Name
}

// Holds reports whether a file system is that of the image, written with these options. The level of a compressor that does
// not write it down is taken to be the one asked for.
func Holds(r *squashfs.Reader, in Input, o squashfs.Options) bool {
	if in.Digest == "" {
		return false
	}
	record, err := recordOf(r)
	return err == nil && record.Manifest == in.Digest && record.Start == in.StartDigest() && writtenWith(r.Info(), o)
}

func writtenWith(have squashfs.Info, want squashfs.Options) bool {
	if want.BlockSize == 0 {
		want.BlockSize = squashfs.DefaultBlockSize
	}
	return have.Compressor == want.Compression && have.BlockSize == want.BlockSize &&
		(have.Level == 0 || want.Level == 0 || have.Level == want.Level)
}

// OptionsOf returns the options that a file system was written with, as far as it says so.
func OptionsOf(r *squashfs.Reader) squashfs.Options {
	have := r.Info()
	return squashfs.Options{Compression: have.Compressor, Level: have.Level, BlockSize: have.BlockSize}
}

// compressedPart is the part of a root file system's size that zstd leaves of it, as experience has it.
const compressedPart = 0.45

// Estimate guesses how large the file system of an image will be, in bytes; 0 when nothing is known. Layers compressed
// with gzip are about as large as the same files compressed with zstd.
func Estimate(in Input, o squashfs.Options) int64 {
	var sum int64
	for _, l := range in.Layers {
		switch {
		case o.Compression == squashfs.Stored:
			sum += max(l.Size, l.Packed)
		case l.Packed > 0:
			sum += l.Packed
		default:
			sum += int64(float64(l.Size) * compressedPart)
		}
	}
	return sum
}

// RunsUnder reports whether a file system has what a runtime looks for: Apptainer, or else enroot.
func RunsUnder(r *squashfs.Reader, apptainer bool) bool {
	name := "/etc/rc"
	if apptainer {
		name = "/.singularity.d/actions/run"
	}
	f, err := r.Lookup(name, true)
	return err == nil && f.Type == squashfs.Regular
}
