package cli

import (
	"fmt"
	"maps"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/units"
)

// inspectedFile is what `sconce inspect` shows of a squashfs or SIF file, besides the image's configuration.
type inspectedFile struct {
	Compression string            `json:"compression"`
	Level       int               `json:"level,omitempty"`
	BlockSize   int               `json:"blockSize"` // in bytes
	Inodes      int               `json:"inodes"`
	Fragments   int               `json:"fragments"`
	Objects     []inspectedObject `json:"objects,omitempty"` // of a SIF
}

type inspectedObject struct {
	ID     uint32 `json:"id"`
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Offset int64  `json:"offset"` // in bytes
	Size   int64  `json:"size"`   // in bytes
}

// inspectClusterFile reads the tables of a squashfs or SIF file, and nothing of what its files hold.
func inspectClusterFile(subject *engine.Subject) (*inspection, error) {
	c, err := subject.ClusterFile()
	if err != nil {
		return nil, err
	}
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	in := inspectConfig(&config)
	in.MediaType = "squashfs"
	if c.SIF != nil {
		in.MediaType = "SIF"
	}
	in.Digest = string(subject.Digest())
	info := c.FS.Info()
	in.Size = c.Partition.Size()
	in.File = &inspectedFile{
		Compression: info.Compressor.String(), Level: info.Level, BlockSize: info.BlockSize, Inodes: info.Inodes, Fragments: info.Fragments,
	}
	if c.SIF != nil {
		for _, o := range c.SIF.Objects {
			in.File.Objects = append(in.File.Objects, inspectedObject(o))
		}
	}
	return in, nil
}

// inspectConfig shows an image's configuration.
func inspectConfig(config *v1.ConfigFile) *inspection {
	in := &inspection{
		Created: config.Created.Time, Env: config.Config.Env, Entrypoint: config.Config.Entrypoint, Cmd: config.Config.Cmd,
		Workdir: config.Config.WorkingDir, User: config.Config.User, Labels: config.Config.Labels,
		Volumes: slices.Sorted(maps.Keys(config.Config.Volumes)),
	}
	if p := config.Platform(); p != nil {
		in.Platform = p.String()
	}
	return in
}

// size says how large the image is and in what.
func (in *inspection) size() string {
	if in.File == nil {
		return fmt.Sprintf("%s in %d layers", units.Size(in.Size), len(in.Layers))
	}
	compression := in.File.Compression
	if in.File.Level != 0 {
		compression += fmt.Sprintf(" (level %d)", in.File.Level)
	}
	return fmt.Sprintf("%s, %d inodes, %s, blocks of %d KiB", units.Size(in.Size), in.File.Inodes, compression, in.File.BlockSize>>10)
}

func (f *inspectedFile) table() [][]string {
	rows := [][]string{{"ID", "OBJECT", "NAME", "OFFSET", "SIZE"}}
	for _, o := range f.Objects {
		rows = append(rows, []string{fmt.Sprint(o.ID), o.Kind, o.Name, fmt.Sprint(o.Offset), units.Size(o.Size)})
	}
	return rows
}

var errNoManifest = fault.Usage(fault.Hint(fmt.Errorf("--raw: a squashfs or SIF file has no manifest"), "use --json"))
