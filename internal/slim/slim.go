// Package slim removes what an image has no need of: GPU code that the target GPUs cannot run, of one file and of whole images,
// and what is trimmed: symbols, files that patterns name, and caches of package managers.
//
// # The method
//
// A file keeps its size, and every image of GPU code that stays, a payload here, keeps its place. Regions, which
// package fatbin explains, are lists: the header of an entry says how long it is itself and how long its payload is, and so where
// the next entry begins. To take entries out of the list, the header of the next one that stays is written where the first of
// them began, with its own size grown until it reaches the payload, which did not move:
//
//	before   header payload | header payload | HEADER PAYLOAD | header payload
//	after    HEADER 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0   PAYLOAD   0 0 0 0 0 0 0
//
// Entries after the last one that stays become part of its padding. All that no longer belongs to anything is zero, so that it takes
// next to nothing in a compressed layer. The driver and the tools of the CUDA toolkit see only what stays. Offsets in a header count
// from its start and move with it; addresses, wrappers and the sizes of regions are as they were.
//
// # What stays
//
// Of each region, for each target GPU: the machine code for exactly its architecture, or else that for the best lower one of the same
// major number, after the rules of binary compatibility that package fatbin has. PTX stays, unless [DropWhereNative] is chosen.
// LTO-IR, kinds and flags that are not known, code outside the sections that nvcc fills, object files and archives are never touched.
// Images that are compressed as one stay or go together. A region of which nothing would stay keeps its smallest entry, since no
// toolkit makes empty ones. A file with anything unexpected in it is left alone, and the report says why.
package slim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// PTX is what happens to PTX, the code that the driver compiles when no machine code fits its GPU.
type PTX string

// The ways with PTX.
const (
	KeepPTX         PTX = "keep"              // so that other GPUs can still run the program
	DropWhereNative PTX = "drop-where-native" // from regions with machine code for all target GPUs; elsewhere the best stays
)

// Options say what stays.
type Options struct {
	GPUs []int // compute capabilities of the target GPUs, as 90 for 9.0; none: device code stays as it is
	PTX  PTX   // "" is KeepPTX

	// DropRelocatable reduces the input of device links (nvcc -rdc) that linked files still carry to the smallest entry of each
	// region, where the linked code has machine code for all target GPUs.
	DropRelocatable bool

	Strip         bool     // take symbols and debug information out of programs and libraries
	Remove        []string // patterns of files to leave out: "*.a", "/usr/share/doc/**", "**/tests/**"
	PackageCaches bool     // leave out what package managers keep to be quicker the next time
}

// codeVersion changes when the same options make other files.
const codeVersion = 2

// Key names the outcome: equal keys give equal files from equal files.
func (o Options) Key() string { return o.gpuKey() + o.trimKey() }

// gpuKey is the part of the key that is about device code.
func (o Options) gpuKey() string {
	gpus := make([]string, 0, len(o.GPUs))
	for _, sm := range o.gpus() {
		gpus = append(gpus, strconv.Itoa(sm))
	}
	key := fmt.Sprintf("slim-v%d gpu=%s ptx=%s", codeVersion, strings.Join(gpus, ","), o.ptx())
	if o.DropRelocatable {
		key += " relocatable=drop"
	}
	return key
}

// gpus are the target GPUs in order, each once.
func (o Options) gpus() []int {
	return slices.Compact(slices.Sorted(slices.Values(o.GPUs)))
}

func (o Options) ptx() PTX {
	if o.PTX == "" {
		return KeepPTX
	}
	return o.PTX
}

// check refuses options that mean nothing.
func (o Options) check() error {
	if len(o.GPUs) == 0 && !o.trims() {
		return fmt.Errorf("no GPU is named to slim for")
	}
	for _, sm := range o.GPUs {
		if sm < 10 || sm > 9999 {
			return fmt.Errorf("%d is no compute capability; 90 stands for 9.0", sm)
		}
	}
	if _, err := newRemover(o); err != nil {
		return err
	}
	if p := o.ptx(); p != KeepPTX && p != DropWhereNative {
		return fmt.Errorf("%q is no way to treat PTX; there are %q and %q", p, KeepPTX, DropWhereNative)
	}
	return nil
}
