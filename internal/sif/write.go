package sif

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sylabs/sif/v2/pkg/sif"
)

// Spec says what stands in a SIF file beside the file system. What is empty is left out.
type Spec struct {
	Arch     string // that the file system is for, by Go's name
	Deffile  []byte
	Metadata []byte // JSON
	Config   []byte // JSON
}

// launch is the first line of the file: an executable SIF starts its own runtime.
const launch = "#!/usr/bin/env run-singularity\n"

// capacity is how many objects a file has room for: as many as Apptainer gives one. Four are used; signatures and the list
// of what is in the image may come later.
const capacity = 48

// Write makes the empty file f a SIF. fill writes the squashfs file system at the offset base of f, which is a multiple of
// 4096 bytes, and returns its size; f must end where the file system ends. Header and descriptors are written last, so a
// file that was not finished is not taken for a SIF.
//
// The bytes depend on s and the file system alone: the file has the nil UUID and the times that Apptainer gives a
// reproducible build, Go's zero time.
func Write(f *os.File, s Spec, fill func(base int64) (size int64, err error)) error {
	inputs, err := s.inputs(&partition{f: f, fill: fill})
	if err != nil {
		return fmt.Errorf("write SIF: %w", err)
	}
	_, err = sif.CreateContainer(f,
		sif.OptCreateWithLaunchScript(launch),
		sif.OptCreateDeterministic(),
		sif.OptCreateWithDescriptorCapacity(capacity),
		sif.OptCreateWithDescriptors(inputs...),
		sif.OptCreateWithCloseOnUnload(false),
	)
	if err != nil {
		return fmt.Errorf("write SIF: %w", err)
	}
	return nil
}

// inputs lists the objects in the order of `apptainer build`.
func (s Spec) inputs(p *partition) ([]sif.DescriptorInput, error) {
	var inputs []sif.DescriptorInput
	for _, o := range []struct {
		kind sif.DataType
		name string
		data []byte
	}{
		{sif.DataDeffile, "", s.Deffile},
		{sif.DataGenericJSON, metadataName, s.Metadata},
		{sif.DataGenericJSON, configName, s.Config},
	} {
		if len(o.data) == 0 {
			continue
		}
		in, err := sif.NewDescriptorInput(o.kind, bytes.NewReader(o.data), sif.OptObjectName(o.name))
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, in)
	}
	in, err := sif.NewDescriptorInput(sif.DataPartition, p, sif.OptPartitionMetadata(sif.FsSquash, sif.PartPrimSys, s.Arch))
	if err != nil {
		return nil, fmt.Errorf("architecture %q: %w", s.Arch, err)
	}
	return append(inputs, in), nil
}

// partition is the file system as an object whose bytes are not copied: when its turn comes, it is written in place.
type partition struct {
	f    *os.File
	fill func(base int64) (int64, error)
}

// WriteTo implements io.WriterTo, which io.Copy prefers. The file stands where the object begins.
func (p *partition) WriteTo(io.Writer) (int64, error) {
	base, err := p.f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	size, err := p.fill(base)
	if err != nil {
		return 0, err
	}
	st, err := p.f.Stat()
	if err != nil {
		return 0, err
	}
	if size <= 0 || st.Size() != base+size {
		return 0, fmt.Errorf("the file system of %d bytes at %d does not end with the file, which has %d", size, base, st.Size())
	}
	return size, nil
}

// Read implements io.Reader, for the type system only.
func (p *partition) Read([]byte) (int, error) {
	return 0, errors.New("the file system is written in place and cannot be read")
}
