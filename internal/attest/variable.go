package attest

import (
	"os"
	"sync"
)

// withheld are variables that [Withhold] has taken, by name.
var withheld struct {
	sync.Mutex
	values map[string]string
}

// Withhold takes a variable out of the environment of this process, and returns its value now and whenever it is asked again. Programs that
// this one starts get a copy of its environment, and sbatch even writes it into its controller's state: what signs is not for them. found is
// false when there is none, nor was one.
func Withhold(name string) (value string, found bool) {
	withheld.Lock()
	defer withheld.Unlock()
	if value, found = os.LookupEnv(name); !found {
		value, found = withheld.values[name]
		return value, found
	}
	if os.Unsetenv(name) == nil {
		if withheld.values == nil {
			withheld.values = make(map[string]string)
		}
		withheld.values[name] = value
	}
	return value, true
}

// Environ is the environment with all that was withheld, for a process that does this one's work elsewhere.
func Environ() []string {
	withheld.Lock()
	defer withheld.Unlock()
	env := os.Environ()
	for name, value := range withheld.values {
		env = append(env, name+"="+value)
	}
	return env
}
