package condalock

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/reach"
)

func TestChannels(t *testing.T) {
	files := map[string]string{
		".condarc": `channels: [mylab]
channel_alias: https://mirror.example.org/conda/
custom_channels:
  mylab: https://conda.example.org
  secret: https://conda.example.org/t/${LAB_TOKEN}
  disk: /data/channels
  bioconda: https://artifactory.example.org/api/conda
custom_multichannels:
  everything: [mylab, conda-forge]
  loop: [loop]
mirrored_channels:
  nvidia: [https://me:hunter22@nvidia.example.org/x, oci://registry.example.org/nvidia]
`,
		".config/rattler/config.toml": `[mirrors]
"https://conda.anaconda.org/pytorch" = ["https://a.example.org/pytorch", "https://b.example.org/pytorch"]
`,
	}
	c := config(t, files, "LAB_TOKEN", "tk-12345")
	for _, test := range []struct{ name, want string }{
		{"conda-forge", "https://conda.anaconda.org/conda-forge"},
		{"conda-forge/label/rc", "https://conda.anaconda.org/conda-forge/label/rc"},
		{"conda-forge/linux-64", "https://conda.anaconda.org/conda-forge"},
		{"bioconda", "https://conda.anaconda.org/bioconda"},
		{"mylab", "https://conda.example.org/mylab"},
		{"secret", "https://conda.example.org/secret"},
		{"disk", "file:///data/channels/disk"},
		{"./here", "file:///project/here"},
		{"/there/", "file:///there"},
		{"file:///there", "file:///there"},
		{"~/own", "file://" + c.variable("HOME") + "/own"},
		{"https://x.example.org/t/tk-98765/chan/noarch", "https://x.example.org/chan"},
		{"https://me:hunter22@y.example.org/chan/", "https://y.example.org/chan"},
		{"everything", "https://conda.example.org/mylab https://conda.anaconda.org/conda-forge"},
		{"defaults", "https://repo.anaconda.com/pkgs/main https://repo.anaconda.com/pkgs/r"},
		{"pkgs/main", "https://repo.anaconda.com/pkgs/main"},
	} {
		found, err := c.Channels([]string{test.name}, "/project")
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		var got []string
		for _, one := range found {
			got = append(got, one.URL)
			if strings.Contains(one.Name, "hunter22") || strings.Contains(one.Name, "tk-98765") {
				t.Errorf("%s: its name has the login", one.Name)
			}
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s is %v, want %s", test.name, got, test.want)
		}
	}
	for name, want := range map[string]string{
		"loop": "it stands for itself", "/": "root directory", "a b": "not the name", "ftp://x.example.org/c": "begin with http://", "": "no name", "https://x.example.org/t/other/chan": "two different logins", "https:///x": "no host",
		"https://x.example.org/$NOT_SET": "the variable NOT_SET, which is not set", "https://x.example.org/c?key=1": "a query",
	} {
		if _, err := c.Channels([]string{name}, "/"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("channel %q: %v, want %s", name, err, want)
		}
	}
	for address, want := range map[string][]string{
		"https://conda.anaconda.org/conda-forge/noarch/a-1-0.conda": {"https://mirror.example.org/conda/conda-forge/noarch/a-1-0.conda"},
		"https://conda.anaconda.org/bioconda/noarch/a-1-0.conda":    {"https://artifactory.example.org/api/conda/bioconda/noarch/a-1-0.conda"},
		"https://conda.anaconda.org/nvidia/noarch/a-1-0.conda":      {"https://nvidia.example.org/x/noarch/a-1-0.conda"},
		"https://conda.anaconda.org/pytorch/noarch/a-1-0.conda": {
			"https://a.example.org/pytorch/noarch/a-1-0.conda", "https://b.example.org/pytorch/noarch/a-1-0.conda",
		},
		"https://conda.example.org/mylab/noarch/a-1-0.conda": {"https://conda.example.org/mylab/noarch/a-1-0.conda"},
	} {
		if diff := cmp.Diff(want, c.Places(address)); diff != "" {
			t.Errorf("places of %s: -want +got:\n%s", address, diff)
		}
	}
	if at, _ := c.Logins.Authorize("https://conda.example.org/secret/noarch/a-1-0.conda"); at != "https://conda.example.org/t/tk-12345/secret/noarch/a-1-0.conda" {
		t.Errorf("with the token: %s", at)
	}
	if _, header := c.Logins.Authorize("https://nvidia.example.org/x/noarch/a-1-0.conda"); header.Get("Authorization") != "Basic bWU6aHVudGVyMjI=" {
		t.Errorf("with the password: %v", header)
	}
}

func TestReadConfig(t *testing.T) {
	lab := t.TempDir()
	write(t, filepath.Join(lab, "condarc.d", "1.yml"), "channel_priority: strict  #!final\nchannels: [lab]\n")
	rc := filepath.Join(t.TempDir(), "rc.yml")
	write(t, rc, "channel_priority: disabled\nchannels: [mine, lab]\npinned_packages: [numpy 1.*]\nssl_verify: false\nproxy_servers: {https: 'http://proxy.example.org:3128'}\n")
	c := config(t, map[string]string{".condarc": "channels:\n  - conda-forge\npinned_packages: [python 3.12.*]\n"}, "CONDA_ROOT", lab, "CONDARC", rc)
	if got := strings.Join(c.Usual, " "); got != "mine lab conda-forge" {
		t.Errorf("channels %s", got)
	}
	if got := strings.Join(c.Pinned, ", "); got != "numpy 1.*, python 3.12.*" {
		t.Errorf("pinned: %s", got)
	}
	if c.Priority != "strict" {
		t.Errorf("priority %s, although a file wants strict kept", c.Priority)
	}
	if text, plain, err := c.solverConfig(); err != nil || plain || !strings.Contains(text, "tls-no-verify = true") {
		t.Errorf("for the solver: %s, %v", text, err)
	}
	if env, err := c.environment(nil); err != nil || !cmp.Equal(env, []string{"HTTPS_PROXY=http://proxy.example.org:3128", "https_proxy=http://proxy.example.org:3128"}) {
		t.Errorf("variables: %v, %v", env, err)
	}
	c = config(t, nil, "CONDA_CHANNELS", "a,b", "CONDA_CHANNEL_PRIORITY", "flexible", "CONDA_CHANNEL_ALIAS", "https://x.example.org", "CONDA_PINNED_PACKAGES", "a >1,<2&b")
	if !cmp.Equal(c.Usual, []string{"a", "b"}) || !cmp.Equal(c.Pinned, []string{"a >1,<2", "b"}) || c.Priority != "flexible" || c.Alias != "https://x.example.org" {
		t.Errorf("of variables: %+v", c)
	}
	for file, text := range map[string]string{
		".condarc":                    "channels: [a\n",
		".conda/condarc":              "custom_channels: [a]\n",
		".config/rattler/config.toml": "x = \n",
		".rattler/credentials.json":   `{"host": "tk-98765"}`,
	} {
		dir := home(t, map[string]string{file: text})
		_, err := ReadConfig(variables("HOME", dir))
		if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, file)) || strings.Contains(err.Error(), "tk-98765") {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestLicenses(t *testing.T) {
	c := config(t, nil)
	for name, want := range map[string]bool{
		"defaults": true, "https://repo.anaconda.com/pkgs/main": true, "anaconda": true, "conda-forge": false, "bioconda": false,
	} {
		found, err := c.Channels([]string{name}, "/")
		if err != nil {
			t.Fatal(err)
		}
		_, err = checkLicenses(found, false)
		if got := err != nil && strings.Contains(fault.HintOf(err), "accept-licenses = true"); got != want {
			t.Errorf("%s: asks for acceptance: %v, want %v", name, got, want)
		}
		warnings, err := checkLicenses(found, true)
		if err != nil || len(warnings) > 0 != want {
			t.Errorf("%s, accepted: %v, %v", name, warnings, err)
		}
	}
}

// TestSolveWithLogins has a channel that lets nobody in without a login, in each form that conda and rattler know. No answer
// and no request file of the solver's cache shows it.
func TestSolveWithLogins(t *testing.T) {
	const secret = "tk-1234567"
	basic := func(w http.ResponseWriter, r *http.Request) bool {
		_, password, _ := r.BasicAuth()
		return allowed(w, password == secret)
	}
	bearer := func(w http.ResponseWriter, r *http.Request) bool {
		return allowed(w, r.Header.Get("Authorization") == "Bearer "+secret)
	}
	inPath := func(w http.ResponseWriter, r *http.Request) bool {
		rest, ok := strings.CutPrefix(r.URL.Path, "/t/"+secret)
		r.URL.Path = rest
		return allowed(w, ok)
	}
	for _, test := range []struct {
		name    string
		check   func(w http.ResponseWriter, r *http.Request) bool
		channel string // HOST stands for the server
		files   map[string]string
		env     []string
	}{
		{"a password in the address", basic, "http://me:" + secret + "@HOST/channel", nil, nil},
		{"conda's token in a variable", inPath, "http://HOST/t/${LAB}/channel", nil, []string{"LAB", secret}},
		{"rattler's file, a token", bearer, "http://HOST/channel", map[string]string{".rattler/credentials.json": `{"127.0.0.1": {"BearerToken": "` + secret + `"}}`}, nil},
		{"RATTLER_AUTH_FILE, conda's token", inPath, "http://HOST/channel", map[string]string{"auth.json": `{"127.0.0.1": {"CondaToken": "` + secret + `"}}`}, nil},
		{"netrc", basic, "http://HOST/channel", map[string]string{".netrc": "machine 127.0.0.1 login me password " + secret + "\n"}, nil},
		{"a mirror in .condarc", basic, "mine", map[string]string{".condarc": "channel_alias: http://me:" + secret + "@HOST\n"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			channel := serve(t, torchChannel())
			channel.check = test.check
			host := strings.TrimPrefix(channel.URL, "http://")
			dir := home(t, test.files)
			if text, ok := test.files[".condarc"]; ok {
				write(t, filepath.Join(dir, ".condarc"), strings.ReplaceAll(text, "HOST", host))
				channel.name = test.channel
			}
			c, err := ReadConfig(variables(append([]string{"HOME", dir, "RATTLER_AUTH_FILE", filepath.Join(dir, "auth.json")}, test.env...)...))
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv("NETRC", filepath.Join(dir, ".netrc"))
			c.Hosts = []string{"127.0.0.1"} // of which a channel may name variables
			s := solver(t, c)
			a, err := s.Solve(t.Context(), oneChannel(t, strings.ReplaceAll(test.channel, "HOST", host)))
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range a.Packages {
				if strings.Contains(p.URL+p.Channel, secret) || strings.Contains(p.URL+p.Channel, "@") {
					t.Errorf("the login is in %s, %s", p.URL, p.Channel)
				}
			}
			if test.channel == "mine" && a.Packages[0].Channel != "https://conda.anaconda.org/mine" {
				t.Errorf("the mirror is in the answer: %s", a.Packages[0].Channel)
			}
			if file := holding(t, s.Store.Dir(), secret); file != "" {
				t.Errorf("the login is in the store: %s", file)
			}
		})
	}
}

func allowed(w http.ResponseWriter, ok bool) bool {
	if !ok {
		w.WriteHeader(http.StatusUnauthorized)
	}
	return ok
}

// holding finds a file below dir with a text in it or in its name.
func holding(t *testing.T, dir, text string) string {
	t.Helper()
	found := ""
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || found != "" {
			return err
		}
		if strings.Contains(d.Name(), text) {
			found = path
		}
		if d.Type().IsRegular() {
			content, err := os.ReadFile(path)
			if err == nil && strings.Contains(string(content), text) {
				found = path
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func FuzzChannel(f *testing.F) {
	f.Add("https://me:pw@x.example.org:80/t/tk/chan/linux-64")
	f.Add("conda-forge/label/x")
	f.Fuzz(func(t *testing.T, name string) {
		c, err := ReadConfig(variables())
		if err != nil {
			t.Fatal(err)
		}
		found, err := c.Channels([]string{name}, "/project")
		if err != nil {
			return
		}
		for _, one := range found {
			if !schemed.MatchString(one.URL) || withoutLogins(one.URL) != one.URL || strings.HasSuffix(one.URL, "/") {
				t.Errorf("%q is %q", name, one.URL)
			}
		}
	})
}

// TestVariablesOfChannels: a channel that a recipe names shows variables to no server but the user's own.
func TestVariablesOfChannels(t *testing.T) {
	const condarc = "custom_channels: {lab: https://lab.example.org/conda}\nchannels: [\"https://usual.example.org/t/$TOKEN/c\"]\n" +
		"channel_alias: https://alias.example.org\nmirrored_channels: {conda-forge: [\"https://mirror.example.org:8443/f\"]}\n"
	for name, want := range map[string]bool{
		"https://stranger.example.org/$TOKEN/c":       false,
		"https://stranger.example.org/conda-${TOKEN}": false,
		"http://$TOKEN.example.org/c":                 false,
		"$WHOLE":                                      false,
		"https://mirror.example.org/t/$TOKEN/c":       false, // another port
		"https://lab.example.org/t/$TOKEN/c":          true,
		"https://alias.example.org/t/$TOKEN/c":        true,
		"https://mirror.example.org:8443/$TOKEN/c":    true,
		"https://usual.example.org/t/$TOKEN/c":        true,
		"https://let.example.org/t/$TOKEN/c":          true,
		"https://kept.example.org/t/$TOKEN/c":         true,
		"/data/$TOKEN/c":                              true,
		"$HOME/c":                                     false,
		"file:///$TOKEN/c":                            false,
		"/data/../$TOKEN/c":                           false,
	} {
		c := config(t, map[string]string{".condarc": condarc, ".rattler/credentials.json": `{"kept.example.org": {"BearerToken": "x"}}`},
			"TOKEN", "S3cret", "WHOLE", "https://stranger.example.org/S3cret")
		c.Hosts, c.Reach = []string{"let.example.org"}, reach.In("the recipe's directory", "/data")
		_, err := c.Channels([]string{name}, t.TempDir())
		if (err == nil) != want || err != nil && (strings.Contains(err.Error()+fault.HintOf(err), "S3cret") || !strings.Contains(fault.HintOf(err), "--allow-")) {
			t.Errorf("%s: %v; %s", name, err, fault.HintOf(err))
		}
	}
}

// TestConfigurationBesideARecipe: conda's and rattler's files count where their user keeps them, not where a recipe brings them.
func TestConfigurationBesideARecipe(t *testing.T) {
	dir := t.TempDir()
	for _, file := range []string{".condarc", "condarc", ".conda/.condarc", ".config/conda/condarc", "condarc.d/x.yml"} {
		write(t, filepath.Join(dir, file), "channels: [https://stranger.example.org/c]\nproxy_servers: {all: 'http://stranger.example.org'}\nssl_verify: false\n")
	}
	write(t, filepath.Join(dir, ".rattler/credentials.json"), "not JSON")
	write(t, filepath.Join(dir, "rattler/config.toml"), "tls-no-verify = true\n")
	t.Chdir(dir)
	c := config(t, nil)
	if c.Usual != nil || c.hasProxies() || c.verify != "" || len(c.rattler) > 0 {
		t.Errorf("%+v", c)
	}
}
