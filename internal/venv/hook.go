package venv

import (
	_ "embed"
	"os"
	"path/filepath"
)

// HookVariable names a packed environment, FILE.sqsh[:DIR], for [Hook].
const HookVariable = "SCONCE_VENV"

// Hook is a script by which enroot, and pyxis with it, mounts a packed environment in a container: a hook of a user's own, which needs no
// administrator (enroot's documentation, "Configuration", "Hooks").
//
//go:embed hook.sh
var Hook string

// HookFile is where enroot looks for the hook: in hooks.d of ENROOT_CONFIG_PATH, which is enroot in the user's directory of
// configurations unless it is set.
func HookFile() (string, error) {
	dir := os.Getenv("ENROOT_CONFIG_PATH")
	if dir == "" {
		config, err := os.UserConfigDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(config, "enroot")
	}
	return filepath.Join(dir, "hooks.d", "50-sconce-venv.sh"), nil
}
