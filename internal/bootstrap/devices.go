package bootstrap

import (
	"archive/tar"
	"io"
	"strings"
)

// withoutDevices drops what lies below /dev from a root file system's tar: every container runtime mounts its own /dev,
// and device nodes keep an ordinary user from unpacking the image.
func withoutDevices(r io.Reader) io.Reader {
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(filterDevices(pw, tar.NewReader(r))) }()
	return pr
}

func filterDevices(w io.Writer, in *tar.Reader) error {
	out := tar.NewWriter(w)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return out.Close()
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(h.Name, "./")
		if strings.HasPrefix(name, "dev/") && name != "dev/" {
			continue
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}
