package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/units"
)

// squashfsOptions are the flags of commands that write squashfs and SIF files.
type squashfsOptions struct {
	compression string
	level       int
	blockSize   string
	tailPacking bool
	noReuse     bool
	start       []string
	given       bool // the user asked for a compression, so that copying one as it is will not do
}

func addSquashfsFlags(cmd *cobra.Command, o *squashfsOptions) {
	f := cmd.Flags()
	f.StringVar(&o.compression, "sqsh-compression", "zstd", "compress .sqsh and .sif files by this `METHOD`: zstd, gzip, lz4 or none")
	f.IntVar(&o.level, "sqsh-level", 0, "`LEVEL` of that compression: 1 is fast, higher is smaller (default: zstd 3, gzip 6)")
	f.StringVar(&o.blockSize, "sqsh-block-size", "128KiB", "`SIZE` of the blocks of .sqsh and .sif files, a power of two from 4KiB to 1MiB")
	f.BoolVar(&o.tailPacking, "sqsh-tail-packing", false, "pack the ends of large files together too: slightly smaller, slower to read")
	f.BoolVar(&o.noReuse, "no-reuse", false, "compress .sqsh and .sif files anew instead of copying what was compressed for other images")
	complete(cmd, "sqsh-compression", "zstd", "gzip", "lz4", "none")
	complete(cmd, "sqsh-block-size", "64KiB", "128KiB", "256KiB", "1MiB")
}

// configureFiles sets what the flags of cmd leave open as the configuration has it. A level is one of the compression that it was named with.
func configureFiles(cmd *cobra.Command, c config.Files) {
	set := func(name, value string) {
		if f := cmd.Flags().Lookup(name); f != nil && !f.Changed && value != "" && value != "0" {
			_ = f.Value.Set(value) // which was checked where it was read
		}
	}
	if f := cmd.Flags().Lookup("sqsh-compression"); f != nil && !f.Changed {
		set("sqsh-compression", c.Compression)
		set("sqsh-level", strconv.Itoa(c.Level))
	}
	set("sqsh-block-size", c.BlockSize)
}

// addStartFlag adds the flag that orders a file by what is read at the start.
func addStartFlag(cmd *cobra.Command, o *squashfsOptions) {
	cmd.Flags().StringArrayVar(&o.start, "start", nil, "write what `CMD` reads together in .sqsh and .sif files, to start fast from slow disks (repeatable)")
}

// parse checks the flags.
func (o squashfsOptions) parse() (squashfs.Options, error) {
	c, err := squashfs.ParseCompressor(o.compression)
	if err != nil {
		return squashfs.Options{}, fault.Usage(fmt.Errorf("--sqsh-compression: %w", err))
	}
	switch most := c.MaxLevel(); {
	case most == 0 && o.level != 0:
		return squashfs.Options{}, fault.Usage(fmt.Errorf("--sqsh-level %d: without compression there are no levels", o.level))
	case o.level < 0 || o.level > most:
		return squashfs.Options{}, fault.Usage(fmt.Errorf("--sqsh-level %d: %s takes 1 to %d", o.level, c, most))
	}
	size, err := units.ParseSize(o.blockSize)
	if err != nil {
		return squashfs.Options{}, fault.Usage(fmt.Errorf("--sqsh-block-size: %w", err))
	}
	if !squashfs.ValidBlockSize(size) {
		return squashfs.Options{}, fault.Usage(fault.Hint(fmt.Errorf("--sqsh-block-size %s: it is no power of two from 4KiB to 1MiB", o.blockSize), "128KiB is a good choice"))
	}
	return squashfs.Options{Compression: c, Level: o.level, BlockSize: int(size), TailPacking: o.tailPacking}, nil
}

// writing puts together how images are written.
func (o squashfsOptions) writing(force bool) (engine.Writing, error) {
	sq, err := o.parse()
	return engine.Writing{Force: force, Squashfs: sq, NoReuse: o.noReuse, Exactly: o.given, Start: o.start}, err
}

// squashfsFlagsGiven reports whether the user chose how files are compressed.
func squashfsFlagsGiven(cmd *cobra.Command) bool {
	return cmd.Flags().Changed("sqsh-compression") || cmd.Flags().Changed("sqsh-level") ||
		cmd.Flags().Changed("sqsh-block-size") || cmd.Flags().Changed("sqsh-tail-packing")
}
