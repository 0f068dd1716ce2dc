package config

import (
	"fmt"

	"sconce.dev/sconce/internal/squashfs"
	"sconce.dev/sconce/internal/units"
)

// Files say how squashfs and SIF files are written. What is in them stays the same.
type Files struct {
	Compression string // as --sqsh-compression; "": nothing is said
	Level       int    // of Compression, as --sqsh-level; 0: its usual one
	BlockSize   string // as --sqsh-block-size; "": nothing is said
}

// files is the table.
type files struct {
	Compression *string `toml:"compression"`
	Level       *int    `toml:"level"`
	BlockSize   *string `toml:"block-size"`
}

// addFiles takes what f says of files that are written. Whoever names a compression names its level, or leaves it open.
func (c *Config) addFiles(f file) error {
	said := f.Files
	if said.Compression != nil {
		c.Files.Compression, c.Files.Level = *said.Compression, 0
	}
	if said.Level != nil {
		if said.Compression == nil {
			return fmt.Errorf("files: level = %d: name the compression that has it, too", *said.Level)
		}
		c.Files.Level = *said.Level
		if *said.Level < 1 {
			return fmt.Errorf("files: level = %d: levels begin with 1", *said.Level)
		}
	}
	if said.Compression != nil {
		compressor, err := squashfs.ParseCompressor(*said.Compression)
		if err != nil {
			return fmt.Errorf("files: %w", err)
		}
		if most := compressor.MaxLevel(); c.Files.Level > most {
			return fmt.Errorf("files: level = %d: the highest of %s is %d", c.Files.Level, compressor, most)
		}
	}
	if said.BlockSize != nil {
		if n, err := units.ParseSize(*said.BlockSize); err != nil || !squashfs.ValidBlockSize(n) {
			return fmt.Errorf("files: block-size = %q: it is a power of two from 4KiB to 1MiB", *said.BlockSize)
		}
		c.Files.BlockSize = *said.BlockSize
	}
	return nil
}
