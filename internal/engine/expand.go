package engine

import (
	"fmt"
	"os"

	"sconce.dev/sconce/internal/fault"
)

// ExpandHere puts what the environment says in place of ${NAME}, and this directory in place of ${PWD}.
func ExpandHere(text string) (string, error) {
	var missing []string
	out := os.Expand(text, func(name string) string {
		if name == "PWD" {
			dir, err := os.Getwd()
			if err == nil {
				return dir
			}
		}
		value, ok := os.LookupEnv(name)
		if !ok {
			missing = append(missing, name)
		}
		return value
	})
	if len(missing) > 0 {
		return "", fault.Usage(fault.Hint(fmt.Errorf("the variable %s is not set here", missing[0]), "set it, or name a path without it in the profile"))
	}
	return out, nil
}
