package condalock

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/reach"
)

// Config is where channels are and how they are reached for this user: what conda and rattler would read.
type Config struct {
	Usual           []string            // the channels of one who names none; nil when nothing is configured
	DefaultChannels []string            // what "defaults" stands for; nil: Anaconda's
	Alias           string              // where channels are that are named by a word; "" for usualAlias
	Custom          map[string]string   // by a channel's name: the address or path above it
	Multi           map[string][]string // names that stand for several channels
	Mirrors         map[string][]string // by the usual address of a channel, or of what is above it: where to go instead
	Priority        string              // "strict", "flexible", "disabled" or ""
	Pinned          []string            // what chosen packages must fit, whoever asks for them: "numpy 1.*"
	Logins          *Logins
	Reach           reach.Bounds // which directories of this machine a channel that only the recipe names may be, once its variables are replaced
	Hosts           []string     // that may see variables although only a recipe names them: HOST or HOST:PORT

	lookup  func(string) (string, bool)
	mirrors map[string][]string // mirrored_channels, by names and addresses as they are written
	verify  string              // ssl_verify: "", "false", or a file of certificates
	proxies map[string]string   // proxy_servers, by scheme, "all", or one of them with a host: https://conda.example.org
	rattler map[string]any      // rattler's configuration, all files in one
}

// ReadConfig reads the configuration of conda (.condarc in all places, CONDA_… variables) and of rattler (config.toml), and the
// logins that both keep. lookup is [os.LookupEnv]. A file that cannot be understood is an error that names it.
func ReadConfig(lookup func(string) (string, bool)) (*Config, error) {
	c := &Config{
		Custom: map[string]string{}, Multi: map[string][]string{}, Mirrors: map[string][]string{},
		lookup: lookup, mirrors: map[string][]string{}, proxies: map[string]string{}, rattler: map[string]any{},
	}
	c.Logins = &Logins{entries: map[string]entry{}}
	if err := c.readConda(); err != nil {
		return nil, err
	}
	if err := c.readRattler(); err != nil {
		return nil, err
	}
	if err := c.Logins.read(c); err != nil {
		return nil, err
	}
	return c, c.findMirrors()
}

// UsualChannels are the channels of one who names none: those that are configured, else conda-forge.
func (c *Config) UsualChannels() []string {
	if len(c.Usual) == 0 {
		return []string{"conda-forge"}
	}
	return c.Usual
}

// variable returns the value of an environment variable, or "".
func (c *Config) variable(name string) string {
	value, _ := c.lookup(name)
	return value
}

// condarcPlaces are the files and directories in which conda looks, the last one going before (conda's documentation, "Searching
// for .condarc").
func (c *Config) condarcPlaces() []string {
	var all []string
	add := func(dir string) {
		all = append(all, dir+"/.condarc", dir+"/condarc", dir+"/condarc.d/")
	}
	add("/etc/conda")
	add("/var/lib/conda")
	if dir := c.variable("CONDA_ROOT"); dir != "" {
		add(dir)
	}
	if dir := c.variable("XDG_CONFIG_HOME"); dir != "" {
		add(dir + "/conda")
	}
	if home := c.variable("HOME"); home != "" {
		add(home + "/.config/conda")
		add(home + "/.conda")
		all = append(all, home+"/.condarc")
	}
	if dir := c.variable("CONDA_PREFIX"); dir != "" {
		add(dir)
	}
	if file := c.variable("CONDARC"); file != "" {
		all = append(all, file)
	}
	return all
}

func (c *Config) readConda() error {
	final := map[string]bool{}
	for _, place := range c.condarcPlaces() {
		files := []string{place}
		if strings.HasSuffix(place, "/") {
			files, _ = filepath.Glob(place + "*")
			files = slices.DeleteFunc(files, func(f string) bool { return !strings.HasSuffix(f, ".yml") && !strings.HasSuffix(f, ".yaml") })
			slices.Sort(files)
		}
		for _, file := range files {
			if err := c.readCondarc(file, final); err != nil {
				return err
			}
		}
	}
	c.condaVariables()
	return nil
}

// readCondarc reads a file over what was read. final are the keys that an earlier file wants kept, by a comment "#!final".
func (c *Config) readCondarc(file string, final map[string]bool) error {
	text, err := ctxio.ReadFile(file, maxFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || isDirectory(file) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("conda's configuration: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return yamlError(file, err)
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		return nil
	}
	for key, value := range pairs(doc.Content[0]) {
		if final[key.Value] {
			continue
		}
		if err := c.condaKey(key.Value, follow(value)); err != nil {
			return fmt.Errorf("%s:%d:%d: %s: %w", file, value.Line, value.Column, key.Value, err)
		}
		final[key.Value] = strings.Contains(key.LineComment+value.LineComment, "#!final")
	}
	return nil
}

func isDirectory(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.IsDir()
}

// condaKey takes one key of a .condarc. A list of a file that goes before is put in front of the others', as conda does.
func (c *Config) condaKey(key string, n *yaml.Node) error {
	switch key {
	case "channels":
		return prepend(n, &c.Usual)
	case "default_channels":
		return prepend(n, &c.DefaultChannels)
	case "channel_alias":
		return n.Decode(&c.Alias)
	case "custom_channels":
		return merge(n, c.Custom)
	case "custom_multichannels":
		return merge(n, c.Multi)
	case "mirrored_channels":
		return merge(n, c.mirrors)
	case "proxy_servers":
		return merge(n, c.proxies)
	case "pinned_packages":
		return prepend(n, &c.Pinned)
	case "channel_priority":
		return c.setPriority(n.Value)
	case "ssl_verify":
		c.setVerify(n.Value)
	}
	return nil
}

func prepend(n *yaml.Node, to *[]string) error {
	var list []string
	if n.Kind == yaml.ScalarNode && n.ShortTag() != "!!null" {
		list = []string{n.Value}
	} else if err := n.Decode(&list); err != nil {
		return errors.New("it is not a list of text")
	}
	for _, item := range *to {
		if !slices.Contains(list, item) {
			list = append(list, item)
		}
	}
	*to = list
	return nil
}

func merge[V any](n *yaml.Node, to map[string]V) error {
	var m map[string]V
	if err := n.Decode(&m); err != nil {
		return errors.New("it is not a mapping of the kind that conda knows")
	}
	maps.Copy(to, m)
	return nil
}

func (c *Config) setPriority(value string) error {
	switch strings.ToLower(value) {
	case "strict", "flexible", "disabled":
		c.Priority = strings.ToLower(value)
	case "true", "yes", "on", "1":
		c.Priority = "flexible"
	case "false", "no", "off", "0":
		c.Priority = "disabled"
	default:
		return fmt.Errorf("%q is not strict, flexible or disabled", value)
	}
	return nil
}

func (c *Config) setVerify(value string) {
	switch strings.ToLower(value) {
	case "false", "no", "off", "0":
		c.verify = "false"
	case "true", "yes", "on", "1", "<system>", "truststore", "":
		c.verify = ""
	default:
		c.verify = value
	}
}

// condaVariables takes the variables that conda knows for its keys, which go before files.
func (c *Config) condaVariables() {
	if list := c.variable("CONDA_CHANNELS"); list != "" {
		c.Usual = strings.Split(list, ",")
	}
	if list := c.variable("CONDA_DEFAULT_CHANNELS"); list != "" {
		c.DefaultChannels = strings.Split(list, ",")
	}
	if alias := c.variable("CONDA_CHANNEL_ALIAS"); alias != "" {
		c.Alias = alias
	}
	if list := c.variable("CONDA_PINNED_PACKAGES"); list != "" {
		c.Pinned = strings.Split(list, "&") // a comma is part of a version
	}
	if p := c.variable("CONDA_CHANNEL_PRIORITY"); p != "" {
		_ = c.setPriority(p) // conda, too, goes on with what it had
	}
	if v, ok := c.lookup("CONDA_SSL_VERIFY"); ok {
		c.setVerify(v)
	}
}

// rattlerPlaces are the files that all tools made with rattler read, the last one going before (rattler_config, "locations").
func (c *Config) rattlerPlaces() []string {
	all := []string{"/etc/rattler/config.toml"}
	if dir := c.variable("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		all = append(all, dir+"/rattler/config.toml")
	} else if home := c.variable("HOME"); home != "" {
		all = append(all, home+"/.config/rattler/config.toml")
	}
	if dir := c.variable("RATTLER_HOME"); dir != "" {
		all = append(all, dir+"/config.toml")
	}
	return all
}

func (c *Config) readRattler() error {
	for _, file := range c.rattlerPlaces() {
		text, err := ctxio.ReadFile(file, maxFile)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return fmt.Errorf("rattler's configuration: %w", err)
		}
		var found map[string]any
		if err := toml.Unmarshal(text, &found); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		mergeTables(c.rattler, found)
	}
	return nil
}

// mergeTables puts b over a, table by table.
func mergeTables(a, b map[string]any) {
	for key, value := range b {
		below, isTable := value.(map[string]any)
		if there, ok := a[key].(map[string]any); ok && isTable {
			mergeTables(there, below)
			continue
		}
		a[key] = value
	}
}

// findMirrors gathers the mirrors of both configurations, by usual addresses and without logins.
func (c *Config) findMirrors() error {
	all := map[string][]string{}
	if table, ok := c.rattler["mirrors"].(map[string]any); ok {
		for at, list := range table {
			all[at] = toList(list)
		}
	}
	maps.Copy(all, c.mirrors)
	for _, at := range slices.Sorted(maps.Keys(all)) {
		usual := at
		if !schemed.MatchString(at) {
			usual = usualAlias + "/" + at
		}
		usual = strings.TrimRight(withoutLogins(usual), "/")
		for _, place := range all[at] {
			place, err := c.expand(place)
			if err == nil {
				place, err = c.address(place)
			}
			if err != nil {
				return fmt.Errorf("mirror of %s: %w", usual, err)
			}
			c.Mirrors[usual] = append(c.Mirrors[usual], place)
		}
	}
	return nil
}

func toList(value any) []string {
	items, _ := value.([]any)
	var list []string
	for _, item := range items {
		if s, ok := item.(string); ok {
			list = append(list, s)
		}
	}
	return list
}

// Places returns where a file of a channel is, the best place first: on the mirrors of its channel, else at its own address.
func (c *Config) Places(address string) []string {
	best := ""
	for usual := range c.Mirrors {
		if strings.HasPrefix(address, usual+"/") && len(usual) > len(best) {
			best = usual
		}
	}
	var all []string
	for _, place := range c.Mirrors[best] {
		if strings.HasPrefix(place, "http://") || strings.HasPrefix(place, "https://") { // the solver alone speaks oci and s3
			all = append(all, place+strings.TrimPrefix(address, best))
		}
	}
	if len(all) == 0 {
		return []string{address}
	}
	return all
}

// notPlain are the keys of rattler's configuration that only its own client can follow.
var notPlain = []string{"tls-no-verify", "tls-root-certs", "proxy-config", "s3-options"}

// solverConfig is rattler's configuration for the solver, in TOML, without logins. plain says that nothing but mirrors is in it
// that a client needs.
func (c *Config) solverConfig() (text string, plain bool, err error) {
	table := map[string]any{}
	mergeTables(table, c.rattler)
	delete(table, "authentication-override-file") // it is among the logins
	delete(table, "mirrors")
	if c.verify == "false" {
		table["tls-no-verify"] = true
	}
	plain = !slices.ContainsFunc(notPlain, func(key string) bool { _, ok := table[key]; return ok })
	if len(c.Mirrors) > 0 {
		table["mirrors"] = c.Mirrors
	}
	b, err := toml.Marshal(table)
	return string(b), plain, err
}

// repodata says which forms of a channel's index the solver may use.
func (c *Config) repodata() map[string]bool {
	forms := map[string]bool{"sharded_enabled": true, "zstd_enabled": true, "bz2_enabled": true}
	table, _ := c.rattler["repodata-config"].(map[string]any)
	for key, form := range map[string]string{"disable-sharded": "sharded_enabled", "disable-zstd": "zstd_enabled", "disable-bzip2": "bz2_enabled"} {
		if off, ok := table[key].(bool); ok {
			forms[form] = !off
		}
	}
	return forms
}
