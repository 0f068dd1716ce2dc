package cluster

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/spelling"
)

//go:embed profiles/*.toml
var builtIn embed.FS

// BuiltIn is where a profile is from that comes with sconce.
const BuiltIn = "built in"

// Dir is the directory beside a recipe that holds profiles of its own.
const Dir = "clusters"

// Found is a profile and where it is from: a file, or [BuiltIn].
type Found struct {
	Profile
	From    string
	Brought bool   // the file is one that neither the user nor the site keeps with their profiles: mostly a repository's
	Over    string // the user's or the site's file of that name, which it comes before; "" for none
}

// maxProfile bounds a profile in bytes.
const maxProfile = 64 << 10

// maxBases bounds how many profiles one may be made from.
const maxBases = 10

// Find returns the profile that name stands for. With a slash in it or .toml behind it, it is a file; else NAME.toml is
// looked for in directory clusters beside the recipe, in $XDG_CONFIG_HOME/sconce/clusters and in /etc/sconce/clusters,
// and last among those that come with sconce. recipe is the recipe's directory, "" without one; a relative file starts
// there, too. By name for what mounts or runs something at once, recipe is "": a file that a repository brings along decides that when the
// user names it, and not because the user stands beside it. Such a file asks for resources by its options and sets variables for images
// alone, see [CheckOption] and [CheckVariable].
//
// What a profile starts from is found in the same way and put in. Under its own name it means the next one of that name.
//
// Errors are of exit code 2.
func Find(name, recipe string) (Found, error) {
	f, err := find(name, recipe, nil)
	if err == nil && f.Runtime == "" && len(f.Starts) > 0 {
		f.Runtime = judgedAs(f.Starts[0])
	}
	return f, err
}

// find is Find without the profiles that have been taken already, which above names by where they are from.
func find(name, recipe string, above []string) (Found, error) {
	found, err := findOne(name, recipe, above)
	if err != nil || found.Base == "" {
		return found, err
	}
	if len(above) >= maxBases {
		return Found{}, fault.Usage(fmt.Errorf("cluster profile %s: it starts from more than %d others", found.From, maxBases))
	}
	base := found.Base
	if found.From != BuiltIn && isFile(base) && !filepath.IsAbs(base) {
		base = filepath.Join(filepath.Dir(found.From), base)
	}
	from, err := find(base, recipe, append(above, id(found.From, name)))
	if err != nil {
		return Found{}, fmt.Errorf("cluster profile %s: base: %w", found.From, err)
	}
	found.Profile = found.over(from.Profile)
	return found, nil
}

// over is a profile put over what it starts from.
func (p Profile) over(base Profile) Profile {
	merged := base.Override(p)
	merged.Name, merged.Base = p.Name, ""
	merged.Description = cmp.Or(p.Description, base.Description)
	return merged
}

// id tells apart profiles that come with sconce, which are all from one place.
func id(from, name string) string {
	if from == BuiltIn {
		return BuiltIn + " " + name
	}
	return from
}

func isFile(name string) bool { return strings.Contains(name, "/") || strings.HasSuffix(name, ext) }

func findOne(name, recipe string, above []string) (Found, error) {
	if isFile(name) {
		if recipe != "" && !filepath.IsAbs(name) {
			name = filepath.Join(recipe, name)
		}
		if slices.Contains(above, name) {
			return Found{}, fault.Usage(fmt.Errorf("cluster profile %s starts from itself", name))
		}
		return load(name)
	}
	for _, dir := range directories(recipe) {
		file := filepath.Join(dir, name+ext)
		if slices.Contains(above, file) {
			continue
		}
		found, err := load(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if found.Brought {
			found.Over = kept(name)
		}
		return found, err
	}
	data, err := builtIn.ReadFile("profiles/" + name + ext)
	if err != nil || slices.Contains(above, id(BuiltIn, name)) {
		return Found{}, unknown(name, recipe, len(above) > 0)
	}
	return parseFound(data, name, BuiltIn)
}

const ext = ".toml"

// directories are those in which profiles are looked for by name. The first is a repository's, where there is a recipe.
func directories(recipe string) []string {
	var dirs []string
	if recipe != "" {
		dirs = append(dirs, filepath.Join(recipe, Dir))
	}
	return append(dirs, ownDirectories()...)
}

// ownDirectories are the user's and the site's.
func ownDirectories() []string {
	var dirs []string
	if config, err := os.UserConfigDir(); err == nil {
		dirs = append(dirs, filepath.Join(config, "sconce", Dir))
	}
	return append(dirs, filepath.Join("/etc/sconce", Dir))
}

// kept is the file of a profile that the user or the site keeps under a name, "" for none.
func kept(name string) string {
	for _, dir := range ownDirectories() {
		file := filepath.Join(dir, name+ext)
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	return ""
}

func unknown(name, recipe string, asBase bool) error {
	hint := "`sconce clusters` lists them; a file of your own is named with its path"
	if asBase {
		return fault.Usage(fault.Hint(fmt.Errorf("there is no other cluster %q", name), hint)) // List would read the same profiles again
	}
	all, _ := List(recipe)
	names := make([]string, 0, len(all))
	for _, f := range all {
		names = append(names, f.Name)
	}
	begins := func(known string) bool { return name != "" && strings.HasPrefix(known, name+"-") }
	if near := spelling.Nearest(name, names); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	} else if i := slices.IndexFunc(names, begins); i >= 0 {
		hint = fmt.Sprintf("did you mean %q?", names[i])
	}
	return fault.Usage(fault.Hint(fmt.Errorf("there is no cluster %q", name), hint))
}

// load reads a file. The error wraps fs.ErrNotExist when there is none.
func load(path string) (Found, error) {
	data, err := ctxio.ReadFile(path, maxProfile)
	if err != nil {
		return Found{}, fault.Usage(fmt.Errorf("read cluster profile: %w", err))
	}
	found, err := parseFound(data, strings.TrimSuffix(filepath.Base(path), ext), path)
	if err != nil || slices.Contains(ownDirectories(), filepath.Dir(path)) {
		return found, err
	}
	found.Brought = true
	if err := found.checkBrought(); err != nil {
		return Found{}, fault.Usage(fmt.Errorf("cluster profile %s: %w", path, err))
	}
	return found, nil
}

func parseFound(data []byte, name, from string) (Found, error) {
	p, err := parse(data)
	if err != nil {
		return Found{}, fault.Usage(fmt.Errorf("cluster profile %s: %w", from, err))
	}
	if p.Name == "" {
		p.Name = name
	}
	return Found{Profile: p, From: from}, nil
}

// List returns all profiles that [Find] finds by name, in the order of their names. What is wrong with others is told in wrong, an error
// for each: a slip in one file is no reason to know no cluster.
func List(recipe string) (all []Found, wrong []error) {
	names := map[string]bool{}
	for _, dir := range directories(recipe) {
		files, err := filepath.Glob(filepath.Join(globEscape(dir), "*"+ext))
		if err != nil {
			return nil, []error{err}
		}
		for _, f := range files {
			names[strings.TrimSuffix(filepath.Base(f), ext)] = true
		}
	}
	files, err := builtIn.ReadDir("profiles")
	if err != nil {
		return nil, []error{err}
	}
	for _, f := range files {
		names[strings.TrimSuffix(f.Name(), ext)] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		f, err := Find(name, recipe)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		f.Name = name // by which it is found, whatever it calls itself
		all = append(all, f)
	}
	return all, wrong
}

// globEscape makes a directory's name stand for itself in a pattern.
func globEscape(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// Expand puts values of variables in place of ${NAME} in a path of a profile. A variable that is not set is an error.
func Expand(path string, lookup func(name string) (value string, set bool)) (string, error) {
	missing := ""
	out := os.Expand(path, func(name string) string {
		value, ok := lookup(name)
		if !ok {
			missing = cmp.Or(missing, name)
		}
		return value
	})
	if missing != "" {
		return "", fault.Usage(fault.Hint(fmt.Errorf("the variable %s is not set here", missing), "set it, or name a path without it in the profile"))
	}
	return out, nil
}
