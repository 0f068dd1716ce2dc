package engine

import (
	"os"

	"sconce.dev/sconce/internal/cluster"
)

// ExpandHere puts what the environment says in place of ${NAME}, and this directory in place of ${PWD}.
func ExpandHere(text string) (string, error) {
	return cluster.Expand(text, func(name string) (string, bool) {
		if name == "PWD" {
			if dir, err := os.Getwd(); err == nil {
				return dir, true
			}
		}
		return os.LookupEnv(name)
	})
}
