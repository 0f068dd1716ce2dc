package engine

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/term"

	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/searchpath"
	"sconce.dev/sconce/internal/users"
)

// environment puts the command's environment together: the image's, below it what programs cannot do without, above it
// what the user gave. Later values win. self is who runs it, nil for root.
func environment(self *users.Account, image, given []string) []string {
	env := []string{"PATH=" + searchpath.Default, "HOME=/root"}
	if self != nil {
		env = append(env[:1], "HOME="+self.Home, "USER="+self.Name, "LOGNAME="+self.Name)
	}
	if t := os.Getenv("TERM"); t != "" && term.IsTerminal(int(os.Stdin.Fd())) {
		env = append(env, "TERM="+t)
	}
	return merged(env, image, given)
}

// merged makes one environment of several. Later values win.
func merged(lists ...[]string) []string {
	at := map[string]int{}
	var out []string
	for _, list := range lists {
		for _, kv := range list {
			key, _, _ := strings.Cut(kv, "=")
			if i, ok := at[key]; ok {
				out[i] = kv
				continue
			}
			at[key] = len(out)
			out = append(out, kv)
		}
	}
	return out
}

// givenEnv reads what --env-file and --env say; the flags come last, so they win.
func givenEnv(files, flags []string) ([]string, error) {
	var env []string
	for _, name := range files {
		lines, err := readEnvFile(name)
		if err != nil {
			return nil, err
		}
		env = append(env, lines...)
	}
	for _, kv := range flags {
		kv, err := withValue(kv)
		if err != nil {
			return nil, fmt.Errorf("--env %w", err)
		}
		if kv != "" {
			env = append(env, kv)
		}
	}
	return env, nil
}

// readEnvFile reads lines of KEY=VALUE or KEY, as Docker does: a line that starts with # is a comment, quotes have no
// meaning.
func readEnvFile(name string) ([]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--env-file: %w", err)
	}
	defer f.Close()
	var env []string
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		kv, err := withValue(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if kv != "" {
			env = append(env, kv)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return env, nil
}

// withValue gives a variable that was named without a value the one it has here; "" when it has none.
func withValue(kv string) (string, error) {
	key, _, given := strings.Cut(kv, "=")
	if key == "" || strings.ContainsAny(key, " \t\x00") {
		return "", fmt.Errorf("%q: write KEY=VALUE, or KEY to pass on the value it has here", kv)
	}
	if given {
		return kv, nil
	}
	if v, ok := os.LookupEnv(key); ok {
		return key + "=" + v, nil
	}
	return "", nil
}

func parseBinds(specs []string) ([]sandbox.Bind, error) {
	binds := make([]sandbox.Bind, len(specs))
	for i, s := range specs {
		b, err := parseBind(s)
		if err != nil {
			return nil, fmt.Errorf("--bind %s: %w", s, err)
		}
		binds[i] = b
	}
	return binds, nil
}

// parseBind reads SRC[:DST[:ro]]. SRC may be relative; without DST the path in the image is that of SRC.
func parseBind(s string) (sandbox.Bind, error) {
	parts := strings.Split(s, ":")
	source, err := filepath.Abs(parts[0])
	if err != nil {
		return sandbox.Bind{}, err
	}
	b := sandbox.Bind{Source: source, Target: source}
	switch {
	case parts[0] == "" || len(parts) > 3:
		return b, errors.New("write SRC, SRC:DST or SRC:DST:ro")
	case len(parts) == 3 && parts[2] != "ro" && parts[2] != "rw":
		return b, fmt.Errorf("%q is neither ro nor rw", parts[2])
	}
	if len(parts) > 1 && parts[1] != "" {
		b.Target = parts[1]
	}
	if !filepath.IsAbs(b.Target) {
		return b, fmt.Errorf("%s, the path in the image, must be absolute", b.Target)
	}
	b.ReadOnly = len(parts) == 3 && parts[2] == "ro"
	_, err = os.Stat(source)
	return b, err
}
