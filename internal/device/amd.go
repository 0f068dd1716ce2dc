package device

import (
	"fmt"
	"io/fs"

	"sconce.dev/sconce/internal/fault"
)

// amd collects what ROCm needs: its libraries are all in the image, only the devices are missing. Which GPU is which is told
// to ROCm by a variable, as every process may open the one device file of the kernel's driver (ROCm documentation, "Running
// ROCm Docker containers").
func (h Host) amd(names []string) (*Edits, error) {
	if !h.exists("/dev/dri") {
		return nil, fault.Hint(fmt.Errorf("AMD's driver has no GPU: /dev/dri: %w", fs.ErrNotExist), "load the kernel module amdgpu")
	}
	e := &Edits{From: "AMD driver"}
	e.bind(h.path("/dev/kfd"), "/dev/kfd", false)
	e.bind(h.path("/dev/dri"), "/dev/dri", false)
	if names[0] != All {
		list := names[0]
		for _, n := range names[1:] {
			list += "," + n
		}
		e.Env = append(e.Env, "ROCR_VISIBLE_DEVICES="+list)
	}
	return e, nil
}
