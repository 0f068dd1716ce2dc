package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/runtimefiles"
	"sconce.dev/sconce/internal/squashfs"
)

// makeClusterImage makes an image of one layer from a squashfs or SIF file. The same file gives the same image, under any
// name.
func makeClusterImage(ctx context.Context, ref Ref, o Options, task *progress.Task) (*image.Image, error) {
	c, err := OpenClusterFile(ref.Value)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if t := c.transport(); t != ref.Transport {
		return nil, fault.Hint(fmt.Errorf("%s is not a %s file", ref.Value, ref.Transport), fmt.Sprintf("use %s:%s", t, ref.Value))
	}
	c.watch(task)
	im, err := c.makeImage(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ref.Value, err)
	}
	return im, nil
}

func (c *ClusterFile) makeImage(ctx context.Context, o Options) (*image.Image, error) {
	was, err := c.Config()
	if err != nil {
		return nil, err
	}
	platform, err := choosePlatform(was.Platform(), o) // before the whole file is read
	if err != nil {
		return nil, err
	}
	desc, err := c.Layer(ctx, o.Store, "")
	if err != nil {
		return nil, err
	}
	return image.Assemble(ctx, o.Store, image.Spec{
		Platform:  platform,
		Additions: []image.Addition{{Layer: desc, CreatedBy: "root file system of a squashfs"}},
		Created:   was.Created.Time,
		Edit:      func(config *v1.Config) { *config = was.Config },
	})
}

// Config finds out the configuration of the image that the file is or was made of: from sconce's own record, from the OCI
// configuration in a SIF, from the files of enroot or Apptainer, in this order. Its architecture is that of the programs
// in it when nothing else tells, and empty when there are none either. The list of layers means nothing here.
func (c *ClusterFile) Config() (v1.ConfigFile, error) {
	found, err := runtimefiles.Recover(c.readFile)
	if err != nil {
		return v1.ConfigFile{}, err
	}
	was := found.Config
	if found.From != runtimefiles.FromRecord && c.SIF != nil && len(c.SIF.Config) > 0 {
		if was.Config, err = c.ociConfig(found); err != nil {
			return was, err
		}
	}
	if was.Architecture == "" {
		platform, err := c.detectPlatform()
		if err != nil {
			return was, err
		}
		was.OS, was.Architecture = platform.OS, platform.Architecture
	}
	return was, nil
}

// ociConfig is the configuration of the image that Apptainer built a SIF from. A recipe of Apptainer's may have given it
// another run script or environment, which are in the root file system only: then Apptainer's way to start it remains.
func (c *ClusterFile) ociConfig(found runtimefiles.Recovered) (v1.Config, error) {
	var config v1.Config
	if err := json.Unmarshal(c.SIF.Config, &config); err != nil {
		return config, fmt.Errorf("read oci-config.json: %w", err)
	}
	if found.From != runtimefiles.FromApptainer {
		return config, nil
	}
	own, err := c.hasOwnScripts()
	if own {
		config.Entrypoint, config.Cmd = found.Config.Config.Entrypoint, nil
	}
	return config, err
}

// What `apptainer build` writes of a recipe. Without %runscript the first runs what the OCI image says, and without
// %environment the second holds comments only.
const (
	runScript         = "/.singularity.d/runscript"
	ociRunScript      = "OCI_ENTRYPOINT="
	environmentScript = "/.singularity.d/env/90-environment.sh"
)

func (c *ClusterFile) hasOwnScripts() (bool, error) {
	run, err := c.readFile(runScript)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	environment, err := c.readFile(environmentScript)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return len(run) > 0 && !bytes.Contains(run, []byte(ociRunScript)) || hasCode(environment), nil
}

// hasCode reports whether a shell script has more than comments.
func hasCode(script []byte) bool {
	for line := range bytes.Lines(script) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return true
		}
	}
	return false
}

// detectPlatform asks the SIF, then the programs.
func (c *ClusterFile) detectPlatform() (v1.Platform, error) {
	if c.SIF != nil && c.SIF.Arch != "" {
		return v1.Platform{OS: "linux", Architecture: c.SIF.Arch}, nil
	}
	p, err := detectPlatform(c.openFile)
	if p == nil || err != nil {
		return v1.Platform{}, err
	}
	return *p, nil
}

// openFile opens a regular file. The error wraps fs.ErrNotExist when there is none under the name, whatever the reason.
func (c *ClusterFile) openFile(name string) (io.ReadCloser, error) {
	f, err := c.FS.Lookup(name, true)
	if errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) || err == nil && f.Type != squashfs.Regular {
		err = &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	if err != nil {
		return nil, err
	}
	return io.NopCloser(f.Content()), nil
}

// maxFile is the largest of the files that say something about an image, in bytes.
const maxFile = 16 << 20

// readFile reads one of them.
func (c *ClusterFile) readFile(name string) ([]byte, error) {
	r, err := c.openFile(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := ctxio.ReadAtMost(r, maxFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return data, nil
}
