package source

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/sif"
	"sconce.dev/sconce/internal/squashfs"
)

// ClusterFile is a file that clusters run images from: a squashfs, alone (enroot, pyxis, the Container Engine) or in a SIF
// (Apptainer). Its file system can be read as it is, without importing it.
type ClusterFile struct {
	FS        *squashfs.Reader
	Partition *io.SectionReader // the bytes of the squashfs
	SIF       *sif.File         // nil for a squashfs alone

	file  *os.File
	reads *watched // what FS reads of Partition
}

// watched is a file of which a task is told how much of it is read.
type watched struct {
	io.ReaderAt
	task atomic.Pointer[progress.Task] // nil: nobody's
}

// ReadAt reads as the file does.
func (w *watched) ReadAt(p []byte, at int64) (int, error) {
	n, err := w.ReaderAt.ReadAt(p, at)
	if task := w.task.Load(); task != nil {
		task.Add(int64(n))
	}
	return n, err
}

// watch has a task progress as the file system is read.
func (c *ClusterFile) watch(task *progress.Task) {
	task.SetTotal(c.Partition.Size())
	c.reads.task.Store(task)
}

// OpenClusterFile opens a squashfs or SIF file, whichever it is by content. The caller closes it.
func OpenClusterFile(name string) (*ClusterFile, error) {
	f, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	c := &ClusterFile{file: f}
	if err := c.open(); err != nil {
		f.Close()
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return c, nil
}

// Close closes the file.
func (c *ClusterFile) Close() error { return c.file.Close() }

var errNoClusterFile = errors.New("it is neither a squashfs nor a SIF file")

func (c *ClusterFile) open() error {
	st, err := c.file.Stat()
	if err != nil {
		return err
	}
	head, err := readHead(c.file)
	if err != nil {
		return err
	}
	switch transport, at := recogniseCluster(head); transport {
	case Squashfs:
		c.Partition = io.NewSectionReader(c.file, at, st.Size()-at)
	case SIF:
		if c.SIF, err = sif.Open(c.file, st.Size()); err != nil {
			return err
		}
		c.Partition = c.SIF.Section(c.SIF.Partition)
	default:
		return errNoClusterFile
	}
	c.reads = &watched{ReaderAt: c.Partition}
	c.FS, err = squashfs.New(c.reads, c.Partition.Size())
	return err
}

// transport is what a reference to the file would say.
func (c *ClusterFile) transport() Transport {
	if c.SIF != nil {
		return SIF
	}
	return Squashfs
}

const (
	squashfsMagic = "hsqs"              // squashfs superblock
	launchLine    = "run-singularity\n" // ends the first line of a file that is a program
	headSize      = 64                  // bytes that are enough to recognise a squashfs or a SIF
)

// readHead reads what a file is recognised by.
func readHead(r io.ReaderAt) ([]byte, error) {
	head := make([]byte, headSize)
	n, err := r.ReadAt(head, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return head[:n], err
}

// recogniseCluster tells by a file's beginning what it is, and where its squashfs begins if that is told by it. Singularity
// 2 put the line that starts the program in front of a squashfs without anything else, and Apptainer still takes that.
func recogniseCluster(head []byte) (t Transport, at int64) {
	if sif.Recognise(head) {
		return SIF, 0
	}
	if i := bytes.Index(head, []byte(launchLine)); i >= 0 && bytes.HasPrefix(head, []byte("#!")) {
		at = int64(i + len(launchLine))
	}
	if bytes.HasPrefix(head[at:], []byte(squashfsMagic)) {
		return Squashfs, at
	}
	return "", 0
}
