package device

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/child"
)

// askTime bounds how long nvidia-smi may take: it wakes GPUs up where nothing keeps the driver loaded.
const askTime = 10 * time.Second

// Capabilities returns the compute capabilities of this machine's NVIDIA GPUs, such as "9.0", each once. It asks nvidia-smi,
// since only the driver's libraries know; where that fails, nothing is known.
func Capabilities(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	out, err := child.Output(exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"))
	if err != nil {
		return nil
	}
	var list []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); strings.Contains(line, ".") {
			list = append(list, line)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
