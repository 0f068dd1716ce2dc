package sbatch

import (
	"slices"
	"strings"
)

// Option is an option of sbatch or srun as it was given.
type Option struct {
	Name  string // in its long form, without dashes
	Value string // as written, without quotes
	Given bool   // a value was given
	Fixed bool   // the value has no variables in it
	At    int    // where in the file, in bytes
}

// long are the short options of sbatch and srun with their long forms (Slurm 24.05, "sbatch", "srun").
var long = map[byte]string{
	'A': "account", 'a': "array", 'B': "extra-node-info", 'b': "begin", 'C': "constraint", 'c': "cpus-per-task", 'D': "chdir",
	'd': "dependency", 'e': "error", 'F': "nodefile", 'G': "gpus", 'H': "hold", 'h': "help", 'I': "immediate", 'i': "input",
	'J': "job-name", 'k': "no-kill", 'K': "kill-on-bad-exit", 'L': "licenses", 'l': "label", 'M': "clusters", 'm': "distribution",
	'N': "nodes", 'n': "ntasks", 'O': "overcommit", 'o': "output", 'p': "partition", 'Q': "quiet", 'q': "qos", 'r': "relative",
	'S': "core-spec", 's': "oversubscribe", 't': "time", 'T': "threads", 'u': "unbuffered", 'V': "version", 'v': "verbose",
	'W': "wait", 'w': "nodelist", 'x': "exclude", 'X': "disable-status", 'Z': "no-allocate",
}

// bare are the long options that take no value, or one behind an equals sign only; for the rest the next word is the value.
var bare = []string{
	"bcast", "compress", "contiguous", "container-entrypoint", "container-entrypoint-log", "container-mount-home", "container-readonly",
	"container-remap-root", "container-writable", "disable-status", "exact", "exclusive", "get-user-env", "help", "hold", "ignore-pbs",
	"immediate", "interactive", "kill-on-bad-exit", "kill-on-invalid-dep-wait", "label", "multi-prog", "nice", "no-allocate",
	"no-container-entrypoint", "no-container-mount-home", "no-container-remap-root", "no-kill", "no-requeue", "overcommit", "overlap",
	"oversubscribe", "parsable", "preserve-env", "propagate", "pty", "quiet", "reboot", "requeue", "resv-ports", "send-libs", "spread-job",
	"test-only", "unbuffered", "usage", "use-min-nodes", "verbose", "version", "wait-all-nodes", "x11",
}

// attached are the short options whose value, where there is one, is in the same word.
const attached = "HhIkKlOQsuVvXZ"

// parseOptions takes the options from the front of a list of words. tasks tells -W apart: it takes a number for srun and nothing for
// sbatch, whose short form means --wait.
func parseOptions(words []Word, batch bool) (options []Option, rest []Word) {
	for len(words) > 0 {
		w := words[0]
		if w.Text == "--" {
			return options, words[1:]
		}
		if len(w.Text) < 2 || w.Text[0] != '-' {
			break
		}
		words = words[1:]
		o, wants := option(w, batch)
		if wants && len(words) > 0 {
			o.Value, o.Given, o.Fixed = words[0].Text, true, words[0].Fixed
			words = words[1:]
		}
		options = append(options, o)
	}
	return options, words
}

// option reads one word, and reports whether the next word is its value.
func option(w Word, batch bool) (o Option, wants bool) {
	o = Option{At: w.At, Fixed: w.Fixed}
	if name, isLong := strings.CutPrefix(w.Text, "--"); isLong {
		o.Name, o.Value, o.Given = strings.Cut(name, "=")
		return o, !o.Given && !slices.Contains(bare, o.Name)
	}
	letter := w.Text[1]
	o.Name = long[letter]
	if o.Name == "" {
		o.Name = string(letter)
	}
	o.Value = strings.TrimPrefix(w.Text[2:], "=")
	o.Given = o.Value != ""
	if batch && letter == 'W' || strings.IndexByte(attached, letter) >= 0 {
		return o, false
	}
	return o, !o.Given
}

// Find returns the last option of a name, which is the one that counts.
func Find(options []Option, names ...string) (Option, bool) {
	for _, o := range slices.Backward(options) {
		if slices.Contains(names, o.Name) {
			return o, true
		}
	}
	return Option{}, false
}
