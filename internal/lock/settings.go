package lock

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/recipe"
)

// uvSettings is what sconce reads of uv's configuration (uv's reference, "Settings"): where the indexes are, so that
// wheels are downloaded with the credentials that uv resolves with. uv itself reads all of it.
type uvSettings struct {
	Index []struct {
		Name    string `toml:"name"`
		URL     string `toml:"url"`
		Default bool   `toml:"default"`
	} `toml:"index"`
	IndexURL      string      `toml:"index-url"`
	ExtraIndexURL []string    `toml:"extra-index-url"`
	FindLinks     []string    `toml:"find-links"`
	NoIndex       bool        `toml:"no-index"`
	RequireHashes bool        `toml:"require-hashes"` // under pip
	Pip           *uvSettings `toml:"pip"`
}

// addresses lists the addresses in s, without the names that some of them have.
func (s *uvSettings) addresses() []string {
	if s == nil {
		return nil
	}
	var all []string
	for _, index := range s.Index {
		all = append(all, index.URL)
	}
	all = append(all, s.IndexURL)
	all = append(all, s.ExtraIndexURL...)
	all = append(all, s.FindLinks...)
	return slices.DeleteFunc(append(all, s.Pip.addresses()...), func(a string) bool { return a == "" })
}

// choosesIndex reports whether s says where packages come from.
func (s *uvSettings) choosesIndex() bool {
	return s != nil && (len(s.Index) > 0 || s.IndexURL != "" || len(s.ExtraIndexURL) > 0 || s.NoIndex || s.Pip.choosesIndex())
}

// uvConfig is the name of uv's own configuration file.
const uvConfig = "uv.toml"

// settingsFile returns the uv.toml that counts for r, or "": the one beside the recipe, else the one of the project.
func settingsFile(r *recipe.Recipe) string {
	for _, dir := range []string{r.Dir, r.Resolve(r.Python.Project)} {
		if file := filepath.Join(dir, uvConfig); exists(file) {
			return file
		}
	}
	return ""
}

// isolatedProject is a project of nothing, whose directory uv takes for the root of all it needs to know.
const isolatedProject = "[project]\nname = \"sconce-lock\"\nversion = \"0\"\n"

// settingsOf reads uv's settings that come with r: those of the uv.toml that counts, else those of the project. It returns nil where there are
// none, or the user says that none count.
func settingsOf(r *recipe.Recipe) (*recipeSettings, error) {
	file := settingsFile(r)
	if file == "" && r.Python.Project != "" {
		file = filepath.Join(r.Resolve(r.Python.Project), projectFile)
	}
	if file == "" || os.Getenv(noConfig) != "" || !exists(file) {
		return nil, nil
	}
	return readSettings(r, file)
}

// writeSettings makes dir the directory in which uv finds settings, which may be nil, with metadata added.
//
// uv by itself looks in all directories above the recipe, and lets the settings of a project that it finds there win over
// a uv.toml in between: what a recipe means would depend on where it lies.
func writeSettings(dir string, settings *recipeSettings, metadata []dependencyMetadata) error {
	text, err := settings.text()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, projectFile), []byte(isolatedProject), 0o644),
		os.WriteFile(filepath.Join(dir, uvConfig), withMetadata(text, metadata), 0o600), // it may hold logins
	)
}

// userSettings returns uv's settings as they count for r, the most special first: those beside the recipe, the user's, the
// machine's. What cannot be read is left out: uv says what is wrong with it.
func userSettings(r *recipe.Recipe) []*uvSettings {
	var all []*uvSettings
	if r.Python.Project != "" { // tool.uv.sources name indexes of the project whatever else counts
		if p, err := readProject(r.Resolve(r.Python.Project)); err == nil && p.Tool.UV != nil {
			all = append(all, p.Tool.UV)
		}
	}
	if file := settingsFile(r); file != "" && os.Getenv("UV_CONFIG_FILE") == "" && os.Getenv(noConfig) == "" {
		all = append(all, readUV(file)...)
	}
	return append(all, ownSettings()...)
}

// ownSettings are those of the user and the machine.
func ownSettings() []*uvSettings {
	if path := os.Getenv("UV_CONFIG_FILE"); path != "" {
		return readUV(path)
	}
	if os.Getenv(noConfig) != "" {
		return nil
	}
	var all []*uvSettings
	for _, dir := range configDirs() {
		all = append(all, readUV(filepath.Join(dir, "uv", uvConfig))...)
	}
	return all
}

// readUV reads a uv.toml.
func readUV(path string) []*uvSettings {
	data, err := readFile(path)
	s := &uvSettings{}
	if err != nil || toml.Unmarshal(data, s) != nil {
		return nil
	}
	return []*uvSettings{s}
}

// configDirs lists where programs keep their configuration, the user's first (XDG Base Directory Specification), and /etc.
func configDirs() []string {
	var dirs []string
	if home, err := os.UserConfigDir(); err == nil {
		dirs = append(dirs, home)
	}
	dirs = append(dirs, filepath.SplitList(cmp.Or(os.Getenv("XDG_CONFIG_DIRS"), "/etc/xdg"))...)
	return append(dirs, "/etc")
}

// pipSettings is where pip looks for packages (pip's documentation, "Configuration").
type pipSettings struct {
	index string
	extra []string
}

func (s pipSettings) addresses() []string {
	if s.index == "" {
		return s.extra
	}
	return append([]string{s.index}, s.extra...)
}

// readPip returns pip's settings: PIP_INDEX_URL and PIP_EXTRA_INDEX_URL, then PIP_CONFIG_FILE, then the user's files, then
// the machine's. What says something first counts.
func readPip() pipSettings {
	s := pipSettings{index: os.Getenv("PIP_INDEX_URL"), extra: strings.Fields(os.Getenv("PIP_EXTRA_INDEX_URL"))}
	for _, path := range pipFiles() {
		data, err := readFile(path)
		if err != nil {
			continue
		}
		values := parsePip(string(data))
		s.index = cmp.Or(s.index, strings.Join(values["index-url"], ""))
		if len(s.extra) == 0 {
			s.extra = values["extra-index-url"]
		}
	}
	return s
}

func pipFiles() []string {
	var files []string
	if path := os.Getenv("PIP_CONFIG_FILE"); path == os.DevNull {
		return nil // pip's way of saying that no file counts
	} else if path != "" {
		files = append(files, path)
	}
	if venv := os.Getenv("VIRTUAL_ENV"); venv != "" {
		files = append(files, filepath.Join(venv, "pip.conf"))
	}
	dirs := configDirs()
	files = append(files, filepath.Join(dirs[0], "pip", "pip.conf"))
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".pip", "pip.conf"))
	}
	for _, dir := range dirs[1:] {
		files = append(files, filepath.Join(dir, "pip", "pip.conf"))
	}
	return append(files, "/etc/pip.conf")
}

// parsePip reads the words of each key under [install] and [global] of a pip.conf. Lines that begin with a blank continue
// the one before; of two sections, [install] counts.
func parsePip(text string) map[string][]string {
	sections := make(map[string]map[string][]string)
	section, key := "", ""
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || strings.HasPrefix(trimmed, "#") || strings.HasPrefix(trimmed, ";"):
		case strings.HasPrefix(trimmed, "[") && strings.HasSuffix(trimmed, "]"):
			section, key = trimmed[1:len(trimmed)-1], ""
			if sections[section] == nil {
				sections[section] = make(map[string][]string)
			}
		case section == "":
		case (line[0] == ' ' || line[0] == '\t') && key != "":
			sections[section][key] = append(sections[section][key], strings.Fields(trimmed)...)
		default:
			if name, value, ok := strings.Cut(trimmed, "="); ok {
				key = strings.ReplaceAll(strings.TrimSpace(name), "_", "-")
				sections[section][key] = strings.Fields(value)
			}
		}
	}
	values := sections["global"]
	if values == nil {
		values = make(map[string][]string)
	}
	for key, words := range sections["install"] {
		values[key] = words
	}
	return values
}

// uvIndexes are the variables by which uv is told of indexes.
var uvIndexes = []string{"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_NO_INDEX"}

// indexEnvironment returns variables that give uv pip's indexes, when nothing tells uv of any.
func indexEnvironment(r *recipe.Recipe, files *requirements) []string {
	told := slices.ContainsFunc(uvIndexes, func(name string) bool { return os.Getenv(name) != "" }) ||
		slices.ContainsFunc(userSettings(r), (*uvSettings).choosesIndex) || len(files.addresses) > 0
	if told {
		return nil
	}
	pip := readPip()
	var env []string
	if pip.index != "" {
		env = append(env, "UV_DEFAULT_INDEX="+pip.index)
	}
	if len(pip.extra) > 0 {
		env = append(env, "UV_INDEX="+strings.Join(pip.extra, " "))
	}
	return env
}
