package lock

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
)

// unfinished makes the file that uv writes to. It is beside the recipe, because uv writes the paths of local wheels relative to
// its output, and another one in each run: whatever may still write to that of an earlier run. Of those, of which one process at
// a time is here, what a killed one left goes.
func (k *locker) unfinished() (string, error) {
	stem := strings.TrimSuffix(pylockPath(k.recipe), ".toml")
	if filepath.Base(stem) == "pylock" {
		stem += ".unfinished" // PEP 751: a name, if any, stands between dots
	} else {
		stem += "-unfinished"
	}
	left, _ := filepath.Glob(quoteGlob(stem) + "-[0-9]*.toml") // the pattern is in order
	for _, name := range append(left, stem+".toml") {
		os.Remove(name)
	}
	f, err := os.CreateTemp(filepath.Dir(stem), filepath.Base(stem)+"-*.toml")
	if err != nil {
		return "", fmt.Errorf("lock: %w", err)
	}
	return f.Name(), errors.Join(f.Chmod(0o644), f.Close())
}

// quoteGlob makes a path a pattern that matches nothing else.
func quoteGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// lockCommand is what the package lock says it was made with.
const lockCommand = "sconce lock"

// markedCommand is lockCommand with a mark that no other run's output has; uv writes it into its output.
func markedCommand(out string) string {
	sum := sha256.Sum256([]byte(out))
	return lockCommand + " --run " + hex.EncodeToString(sum[:8])
}

// withoutMark takes the mark out of what uv wrote to out, and refuses what has none: it is not the answer to what was asked.
func withoutMark(text []byte, out string) ([]byte, error) {
	marked := []byte(markedCommand(out))
	if !bytes.Contains(text, marked) {
		return nil, fault.Hint(fmt.Errorf("run uv: it ended well, but what is in %s is not what it was asked for", out), "run `sconce lock` again")
	}
	return bytes.Replace(text, marked, []byte(lockCommand), 1), nil
}

// checkAnswer makes sure that uv's answer has what the recipe asks for.
func (k *locker) checkAnswer(text []byte) error {
	asked, err := requested(k.recipe)
	if err != nil {
		return err
	}
	missing := k.python.unmet(k.recipe, asked, text)
	if len(missing) == 0 {
		return nil
	}
	return fault.Hint(fmt.Errorf("run uv: its answer does not fit what was asked: %s", strings.Join(missing, "; ")), "run `sconce lock` again")
}

// unmet lists what is asked for by name and not met by a package lock, a text for each. What other settings of uv's may have
// replaced or left out is passed over, and so is what cannot be told: of a lock that cannot be read, others say why.
func (p *Python) unmet(r *recipe.Recipe, asked []string, text []byte) []string {
	packages, err := p.read(r, text)
	if err != nil || ruled(r) {
		return nil
	}
	versions := map[string]string{}
	for _, pkg := range packages {
		versions[python.NormalizeName(pkg.Name)] = pkg.Version
	}
	env := python.EnvironmentOf(p.Interpreter()).WithExtra("")
	var missing []string
	for _, line := range asked {
		q, err := python.ParseRequirement(line)
		if err != nil {
			continue // a form of requirements files
		}
		if q.Marker != nil {
			if holds, err := q.Marker.Evaluate(env); err != nil || !holds {
				continue
			}
		}
		name := python.NormalizeName(q.Name)
		if _, ok := p.protects(name); ok {
			continue
		}
		if _, ok := p.brings(name); ok {
			continue // uv was held to that version
		}
		locked, ok := versions[name]
		if !ok {
			missing = append(missing, fmt.Sprintf("%s is not in it", q.Name))
			continue
		}
		if v, err := python.ParseVersion(locked); err == nil && q.URL == "" && !q.Specifiers.Contains(v) {
			missing = append(missing, fmt.Sprintf("%s is %s in it, and %q was asked for", q.Name, locked, fetch.WithoutLogins(line)))
		}
	}
	return missing
}

// rulings are settings by which uv gives another version than what is asked for, or leaves it out.
var rulings = []string{"override-dependencies", "exclude-dependencies"}

// ruled reports whether such settings count for r, or the lock of the user's project does.
func ruled(r *recipe.Recipe) bool {
	if frozen(r) != "" || os.Getenv("UV_OVERRIDE") != "" || os.Getenv("UV_EXCLUDE") != "" {
		return true
	}
	files := []string{settingsFile(r), "/etc/uv/" + uvConfig}
	if home, err := os.UserConfigDir(); err == nil {
		files = append(files, filepath.Join(home, "uv", uvConfig))
	}
	if r.Python.Project != "" {
		files = append(files, filepath.Join(r.Resolve(r.Python.Project), projectFile))
	}
	for _, file := range files {
		if text, err := readFile(file); err == nil {
			for _, key := range rulings {
				if bytes.Contains(text, []byte(key)) {
					return true
				}
			}
		}
	}
	return false
}
