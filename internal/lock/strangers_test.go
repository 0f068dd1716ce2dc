package lock_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
)

// TestFilesOfARecipe: of what lies in a recipe's directory, or above it, nothing runs on this machine and nothing is written anywhere else,
// whatever uv, Python, pip and git would do with it. What sconce does not take is refused by name, and an ordinary project is no worse off.
func TestFilesOfARecipe(t *testing.T) {
	const alpha, project = "[python]\npackages = [\"alpha\"]\n", "[python]\nproject = \".\"\n"
	const app = "[project]\nname = \"app\"\nversion = \"1\"\ndependencies = [\"alpha\"]\n"
	for name, test := range map[string]struct {
		recipe string
		files  map[string]string // TRAP is a program that must not run, or a place where nothing may be
		want   string            // of the error; "" where it is locked
	}{
		"an environment beside it":  {alpha, map[string]string{".venv/bin/python": "TRAP", ".venv/bin/python3": "TRAP", ".venv/pyvenv.cfg": "home = /usr/bin\n"}, ""},
		"an environment above it":   {alpha, map[string]string{"../.venv/bin/python": "TRAP", "../.venv/bin/python3": "TRAP", "../.venv/pyvenv.cfg": "home = /usr/bin\n"}, ""},
		"one of a project":          {project, map[string]string{"pyproject.toml": app, ".venv/bin/python": "TRAP", ".venv/bin/python3": "TRAP", ".venv/pyvenv.cfg": ""}, ""},
		".python-version":           {alpha, map[string]string{".python-version": "DIR/trap\n", "trap": "TRAP"}, ""},
		".env":                      {alpha, map[string]string{".env": "UV_PYTHON=DIR/trap\nUV_CACHE_DIR=DIR/cache\n", "trap": "TRAP"}, ""},
		"a module that shadows pip": {alpha, map[string]string{"pip/__init__.py": "open('MARK', 'w')\n", "encodings.py": "open('MARK', 'w')\n", "json.py": "open('MARK', 'w')\n"}, ""},
		"pip.conf":                  {alpha, map[string]string{"pip.conf": "[global]\nindex-url = http://127.0.0.1:9/\npython = DIR/trap\n", ".pip/pip.conf": "[global]\nindex-url = http://127.0.0.1:9/\n", "trap": "TRAP"}, ""},
		".netrc":                    {alpha, map[string]string{".netrc": "machine x login y\nwrong\n", "_netrc": "wrong\n"}, ""},
		"a repository of git":       {alpha, map[string]string{"HEAD": "ref: refs/heads/main\n", "objects/x": "", "refs/x": "", "config": "[core]\nfsmonitor = DIR/trap\nsshCommand = DIR/trap\npager = DIR/trap\n", "trap": "TRAP"}, ""},
		"pip.python":                {alpha, map[string]string{"uv.toml": "\n[pip]\npython = \"./trap\"\n", "trap": "TRAP"}, "uv.toml:3: sconce does not take \"pip.python\""},
		"cache-dir":                 {alpha, map[string]string{"uv.toml": "cache-dir = \"MARK\"\n"}, "uv.toml:1: sconce does not take \"cache-dir\""},
		"keyring":                   {alpha, map[string]string{"uv.toml": "keyring-provider = \"subprocess\"\n"}, "uv.toml:1: sconce does not take \"keyring-provider\""},
		"a Python to be brought":    {alpha, map[string]string{"uv.toml": "python-downloads = \"automatic\"\npython-preference = \"only-managed\"\npython-downloads-json-url = \"DIR/dl.json\"\n"}, "uv.toml:3: "},
		"words of uv":               {alpha, map[string]string{"uv.toml": "python-downloads = \"automatic\"\nfind-links = [\"./inspect python\"]\n"}, "inspect python"},
		"a proxy":                   {alpha, map[string]string{"uv.toml": "http-proxy = \"http://127.0.0.1:9\"\n"}, "\"http-proxy\""},
		"a key of another uv":       {alpha, map[string]string{"uv.toml": "runs = \"./trap\"\n"}, "uv.toml:1: sconce does not take \"runs\""},
		"files of this machine":     {alpha, map[string]string{"uv.toml": "find-links = [\"/etc\"]\n"}, "uv.toml:1: find-links: /etc is outside of the recipe's directory"},
		"files by a link":           {alpha, map[string]string{"uv.toml": "[[index]]\nurl = \"out\"\n", "out": "-> /etc"}, "uv.toml:2: index.url: "},
		"no TOML":                   {alpha, map[string]string{"uv.toml": "cache-dir = \"MARK\"\ncache-dir = \"MARK\"\n"}, "uv.toml:2"},
		"a project's settings": {project, map[string]string{"trap": "TRAP", "pyproject.toml": app + "[project.optional-dependencies]\nx = []\n[tool.uv]\ncache-dir = \"MARK\"\npackage = true\nkeyring-provider = \"subprocess\"\n" +
			"dev-dependencies = [\"beta\"]\npython-preference = \"only-managed\"\n[tool.uv.pip]\npython = \"./trap\"\nextra = [\"x\"]\n[tool.uv.build-backend]\nmodule-name = \"app\"\n" +
			"[tool.uv.workspace]\nmembers = [\"x/*\"]\n"}, ""},
		"a project's backend": {project, map[string]string{
			"setup.py": "open('MARK', 'w')\n", "trap.py": "open('MARK', 'w')\n",
			"pyproject.toml": strings.Replace(app, "dependencies = [\"alpha\"]", "dynamic = [\"dependencies\"]", 1) + "[build-system]\nrequires = []\nbuild-backend = \"trap\"\nbackend-path = [\".\"]\n",
		}, "depends = ["},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newBench(t, locktest.Base{}, w("alpha", "1.0"))
			b.dir = filepath.Join(b.dir, "recipe")
			mark := filepath.Join(t.TempDir(), "mark")
			b.write(map[string]string{"base.tar": string(locktest.Base{}.Tar(t))})
			for file, text := range test.files {
				if target, ok := strings.CutPrefix(text, "-> "); ok {
					if err := os.Symlink(target, filepath.Join(b.dir, file)); err != nil {
						t.Fatal(err)
					}
					continue
				}
				program := text == "TRAP"
				if program {
					text = "#!/bin/sh\necho \"$0 $*\" >>MARK\nexec python3 \"$@\"\n"
				}
				b.write(map[string]string{file: strings.NewReplacer("MARK", mark, "DIR", b.dir).Replace(text)})
				if program {
					if err := os.Chmod(filepath.Join(b.dir, file), 0o755); err != nil {
						t.Fatal(err)
					}
				}
			}
			t.Chdir(b.dir)
			if test.want != "" {
				if err := b.fails(test.recipe, test.want); fault.HintOf(err) == "" && strings.Contains(test.want, "sconce") {
					t.Errorf("%v: no hint", err)
				}
			} else {
				r, l := b.lock(test.recipe)
				wantPins(t, l, r, "alpha==1.0 requested")
			}
			if said, err := os.ReadFile(mark); err == nil {
				t.Errorf("on this machine ran: %s", said)
			} else if _, err := os.Stat(mark); err == nil {
				t.Error("uv has written outside")
			}
		})
	}
}

// stranger is an index that notes what it is asked.
type stranger struct {
	*locktest.Index
	URL string

	mu    sync.Mutex
	asked []string
	texts map[string]string
}

func newStranger(t *testing.T, wheels ...locktest.Wheel) *stranger {
	s := &stranger{Index: locktest.NewIndex(t, wheels...), texts: map[string]string{}}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r.URL.String()+" "+r.Header.Get("Authorization"))
		text, ok := s.texts[r.URL.Path]
		s.mu.Unlock()
		switch {
		case ok:
			fmt.Fprint(rw, text)
		case strings.HasPrefix(r.URL.Path, "/private/") && r.Header.Get("Authorization") == "":
			rw.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(rw, "who are you?", http.StatusUnauthorized)
		default:
			r.URL.Path = strings.TrimPrefix(r.URL.Path, "/private")
			s.ServeHTTP(rw, r)
		}
	}))
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// TestLoginsAreNotForStrangers: a login by the name of an index, and the value of a variable, reach no server that only the recipe names, by whatever
// way it asks for them.
func TestLoginsAreNotForStrangers(t *testing.T) {
	const secret = "S3cret-47"
	for name, test := range map[string]struct {
		recipe string
		files  map[string]string // URL is the stranger's server
		want   string
	}{
		"an index by its name": {"packages = [\"alpha\"]\n", map[string]string{"uv.toml": "[[index]]\nname = \"corp\"\nurl = \"URL/simple\"\n"}, ""},
		"of a project": {"project = \".\"\n", map[string]string{"pyproject.toml": "[project]\nname = \"app\"\nversion = \"1\"\ndependencies = [\"alpha\"]\n" +
			"[[tool.uv.index]]\nname = \"corp\"\nurl = \"URL/simple\"\n[tool.uv.sources]\nalpha = { index = \"corp\" }\n"}, ""},
		"one that asks":           {"packages = [\"alpha\"]\n", map[string]string{"uv.toml": "[[index]]\nname = \"corp\"\nurl = \"URL/private/simple\"\nauthenticate = \"always\"\n"}, "private/simple"},
		"a requirements file":     {"requirements = [\"r.txt\"]\n", map[string]string{"r.txt": "# x\n--extra-index-url URL/${CI_TOKEN}/simple\nalpha\n"}, "r.txt:2: the variable CI_TOKEN is not put into an address of 127.0.0.1"},
		"one that it includes":    {"requirements = [\"r.txt\"]\n", map[string]string{"r.txt": "-c c.txt\n", "c.txt": "alpha @ URL/${UV_INDEX_CORP_PASSWORD}/alpha-1.0-py3-none-any.whl\n"}, "c.txt:1: "},
		"one of a server":         {"requirements = [\"r.txt\"]\n", map[string]string{"r.txt": "-r URL/r.txt\nalpha\n"}, ""},
		"in place of the host":    {"requirements = [\"r.txt\"]\n", map[string]string{"r.txt": "--extra-index-url http://${CI_TOKEN}.example.org/simple\nalpha\n"}, "is not put into an address of another server"},
		"packages":                {"packages = [\"alpha @ URL/${CI_TOKEN}/alpha-1.0-py3-none-any.whl\"]\n", nil, "packages under [python]: the variable CI_TOKEN"},
		"a project's dependency":  {"project = \".\"\n", map[string]string{"pyproject.toml": "[project]\nname = \"app\"\nversion = \"1\"\ndependencies = [\"alpha @ URL/${CI_TOKEN}/alpha-1.0-py3-none-any.whl\"]\n"}, "alpha"},
		"the metadata of a wheel": {"packages = [\"beta @ URL/files/beta-1.0-py3-none-any.whl\"]\n", nil, ""},
		"a tab in an address":     {"requirements = [\"r.txt\"]\n", map[string]string{"r.txt": "--extra-index-url OWN\t.example.org/${CI_TOKEN}/simple\nalpha\n"}, "CI_TOKEN stands in a line with a tab"},
		"a token of uv's own":     {"requirements = [\"r.txt\"]\n", map[string]string{"r.txt": "--extra-index-url URL/${UV_PUBLISH_TOKEN}/simple\nalpha\n"}, "UV_PUBLISH_TOKEN"},
	} {
		t.Run(name, func(t *testing.T) {
			b, own := newBench(t, locktest.Base{}, w("alpha", "1.0"))
			s := newStranger(t, w("alpha", "0.1"))
			s.Add(t, w("beta", "1.0", "alpha @ "+s.URL+"/${CI_TOKEN}/${GIT_CONFIG_VALUE_0}/${UV_INDEX_CORP_PASSWORD}/${HTTPS_PROXY}/alpha-0.1-py3-none-any.whl"))
			s.texts["/r.txt"] = "--extra-index-url " + s.URL + "/${CI_TOKEN}/${UV_INDEX_CORP_PASSWORD}/simple\n"
			t.Setenv("CI_TOKEN", secret)
			t.Setenv("UV_INDEX_CORP_USERNAME", "me")
			t.Setenv("UV_INDEX_CORP_PASSWORD", secret)
			t.Setenv("UV_PUBLISH_TOKEN", secret)
			t.Setenv("GIT_CONFIG_COUNT", "1")
			t.Setenv("GIT_CONFIG_KEY_0", "http.extraHeader")
			t.Setenv("GIT_CONFIG_VALUE_0", secret)
			t.Setenv("HTTPS_PROXY", "http://me:"+secret+"@127.0.0.1:9")
			for file, text := range test.files {
				b.write(map[string]string{file: strings.NewReplacer("URL", s.URL, "OWN", own.URL).Replace(text)})
			}
			text := "[python]\n" + strings.ReplaceAll(test.recipe, "URL", s.URL)
			if test.want != "" {
				if err := b.fails(text, test.want); strings.Contains(fmt.Sprint(err), secret) {
					t.Errorf("the error shows the secret: %v", err)
				}
			} else {
				b.lock(text)
			}
			said := strings.Join(s.asked, "\n")
			for _, hidden := range []string{secret, "Basic "} {
				if strings.Contains(said, hidden) {
					t.Errorf("the server was asked\n%s", said)
				}
			}
			if told := b.events.Everything(); strings.Contains(told, secret) {
				t.Errorf("the secret is in what is said: %s", told)
			}
			if strings.Contains(name, "index by its name") && !strings.Contains(strings.Join(b.events.Texts(progress.Warning), "\n"), "UV_INDEX_CORP_PASSWORD is not sent to 127.0.0.1") {
				t.Errorf("nothing is said of the login: %q", b.events.Texts(progress.Warning))
			}
		})
	}
}

// TestLoginsByPermission: a host that the user lets see logins gets them.
func TestLoginsByPermission(t *testing.T) {
	b, _ := newBench(t, locktest.Base{})
	s := newStranger(t, w("alpha", "1.0"))
	t.Setenv("UV_INDEX_CORP_USERNAME", "me")
	t.Setenv("UV_INDEX_CORP_PASSWORD", "p")
	t.Setenv("PLACE", "private")
	b.write(map[string]string{
		"uv.toml": "[[index]]\nname = \"corp\"\nurl = \"" + s.URL + "/private/simple\"\ndefault = true\n",
		"r.txt":   "--find-links " + s.URL + "/${PLACE}/simple/alpha/\nalpha\n",
	})
	r := b.recipe("[python]\nrequirements = [\"r.txt\"]\n")
	r.LoginHosts = []string{"127.0.0.1"}
	l, err := b.make(r, lock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	wantPins(t, l, r, "alpha==1.0 requested")
	if said := strings.Join(s.asked, "\n"); !strings.Contains(said, "Basic bWU6cA==") || !strings.Contains(said, "/private/simple/alpha/") {
		t.Errorf("the server was asked\n%s", said)
	}
}
