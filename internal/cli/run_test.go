package cli

import (
	"testing"

	"sconce.dev/sconce/internal/engine"
)

func TestGPUFlagWithoutEquals(t *testing.T) {
	for image, wrong := range map[string]bool{
		"0": true, "0,1": true, "all": true, "nvidia.com/gpu=0": true, "llm-train": false, "9b3c1f0e77aa": false, "123456": false,
		"docker://debian:12": false, "./a=b/x.sqsh": false,
	} {
		if err := checkGPUFlag(engine.RunOptions{GPU: engine.AllGPUs, Image: image}); (err != nil) != wrong {
			t.Errorf("--gpu %s: %v", image, err)
		}
		if err := checkGPUFlag(engine.RunOptions{Image: image}); err != nil {
			t.Errorf("%s without --gpu: %v", image, err)
		}
	}
}
