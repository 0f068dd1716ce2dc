package recipe

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/fault"
)

func TestParseCopy(t *testing.T) {
	for _, c := range []struct{ workdir, text, want string }{
		{"", "src:/opt/src", "src /opt/src"},
		{"", "a:b:/opt/", "a:b /opt/"},
		{"", "etc/*.conf:/etc/app/../", "etc/*.conf /etc/"},
		{"", "**/*.h:/", "**/*.h /"},
		{"/w", "src", "src /w/"},
		{"/w", "*.txt", "*.txt /w/"},
		{"/w", "src:.", "src /w"},
		{"/w", "src:../x/", "src /x/"},
		{"/w", "src:/abs", "src /abs"},
		{"/", "src:../../x", "src /x"},
	} {
		got, err := Step{Workdir: c.workdir}.ParseCopy(c.text)
		if s := got.Source + " " + got.Dest; err != nil || s != c.want {
			t.Errorf("%q in %q: got %q, %v, want %q", c.text, c.workdir, s, err, c.want)
		}
	}
}

func TestCopySource(t *testing.T) {
	r := &Recipe{Dir: "/r/x"}
	for source, want := range map[string]string{
		"src":          "/r/x src",
		"./src/":       "/r/x src",
		".":            "/r/x .",
		"**/*.c":       "/r/x **/*.c",
		"..":           "/r .",
		"../src":       "/r src",
		"../../*.c":    "/ *.c",
		"../a/*/b":     "/r/a */b",
		"/abs/dir":     "/abs dir",
		"/abs/dir/*.c": "/abs/dir *.c",
		"/abs":         "/ abs",
	} {
		dir, pattern := r.CopySource(Copy{Source: source})
		if got := dir + " " + pattern; got != want {
			t.Errorf("%q: got %q, want %q", source, got, want)
		}
	}
}

func TestParsePatch(t *testing.T) {
	for _, c := range []struct{ workdir, text, want string }{
		{"", "a.patch:/opt/src/", "a.patch /opt/src"},
		{"/w", "a.patch", "a.patch /w"},
		{"/w", "../a.patch:src", "../a.patch /w/src"},
	} {
		got, err := Step{Workdir: c.workdir}.ParsePatch(c.text)
		if s := got.File + " " + got.Dir; err != nil || s != c.want {
			t.Errorf("%q in %q: got %q, %v, want %q", c.text, c.workdir, s, err, c.want)
		}
	}
}

func TestStepArgs(t *testing.T) {
	s := Step{Run: "make"}
	if diff := cmp.Diff([]string{"/bin/sh", "-ec", "make"}, s.Args()); diff != "" {
		t.Error(diff)
	}
	s.Shell = []string{"/bin/bash", "-c"}
	if diff := cmp.Diff([]string{"/bin/bash", "-c", "make"}, s.Args()); diff != "" {
		t.Error(diff)
	}
	if no := false; !s.HasNetwork() || (Step{Network: &no}).HasNetwork() {
		t.Error("the network")
	}
}

func TestParseLink(t *testing.T) {
	for text, want := range map[string]Link{
		"/opt/app/bin/app:/usr/local/bin/":    {"/opt/app/bin/app", "/usr/local/bin/app"},
		"../lib/./x.so.1:/opt/lib/../x.so":    {"../lib/./x.so.1", "/opt/x.so"},
		"libmpi.so.40":                        {"libmpi.so.40", "/w/libmpi.so.40"},
		"a:b:c":                               {"a:b", "/w/c"},
		"/opt/cuda-12.8:/usr/local/cuda":      {"/opt/cuda-12.8", "/usr/local/cuda"},
		strings.Repeat("x", maxTarget) + ":y": {strings.Repeat("x", maxTarget), "/w/y"},
	} {
		if got, err := (Step{Workdir: "/w"}).ParseLink(text); got != want || err != nil {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", ":", "x:", ":/x", "x", "x:y", "/:/", "..:/", "a\x00:/b", strings.Repeat("x", maxTarget+1) + ":/y"} {
		if got, err := (Step{}).ParseLink(text); err == nil {
			t.Errorf("%s: %+v, want an error", text, got)
		}
	}
}

func TestStepTitle(t *testing.T) {
	for want, s := range map[string]Step{
		"tools":             {Name: "tools", Run: "make"},
		"make -C src":       {Run: "\n\nmake -C src\nmake install"},
		"copy a:/b c:/d":    {Copy: []string{"a:/b", "c:/d"}},
		"patch a.patch:/b":  {Patch: []string{"a.patch:/b"}},
		"copy a:/b first":   {Name: "copy a:/b first"},
		"tab here":          {Run: "tab\there"},
		"make one two thre": {Run: "make one two thre"},
	} {
		if got := s.Title(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	long := Step{Run: strings.Repeat("é", 100)}
	if got := []rune(long.Title()); len(got) != maxTitle || got[maxTitle-1] != '…' {
		t.Errorf("got %q", string(got))
	}
}

// A recipe that an editor on Windows has saved has the script that it seems to have.
func TestScriptLines(t *testing.T) {
	r, err := parseVariant([]byte(strings.ReplaceAll(minimal+"[[step]]\nrun = \"\"\"\nmake \\\n  all\n\tmake install\n\"\"\"\n", "\n", "\r\n")), FileName, t.TempDir(), "")
	if err != nil {
		t.Fatal(render(err))
	}
	if got, want := r.Steps[0].Run, "make all\n\tmake install\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := r.Steps[0].Line; got != 3 {
		t.Errorf("line %d", got)
	}
}

func TestParseMount(t *testing.T) {
	ssh := Mount{Kind: "ssh", ID: "default", Required: true}
	for text, want := range map[string]Mount{
		"cache:mine:/x":                         {Kind: "cache", ID: "mine", Target: "/x", Sharing: "shared"},
		"cache:mine:/x/../y/:private:mode=0700": {Kind: "cache", ID: "mine", Target: "/y", Sharing: "private", Mode: 0o700},
		"cache:mine:/x:ro:uid=1000:gid=100":     {Kind: "cache", ID: "mine", Target: "/x", Sharing: "shared", ReadOnly: true, UID: 1000, GID: 100},
		"cache:/root/.cache/x":                  {Kind: "cache", ID: "root-.cache-x", Target: "/root/.cache/x", Sharing: "shared"},
		"cache:pip":                             {Kind: "cache", ID: "pip", Target: "/var/cache/pip", Sharing: "shared", Variables: []string{"PIP_CACHE_DIR=/var/cache/pip"}},
		"cache:uv:/uv:locked": {
			Kind: "cache", ID: "uv", Target: "/uv", Sharing: "locked", Variables: []string{"UV_CACHE_DIR=/uv", "UV_LINK_MODE=copy"},
		},
		"type=cache,target=/a/b":                          {Kind: "cache", ID: "a-b", Target: "/a/b", Sharing: "shared"},
		"type=cache,id=npm,sharing=locked":                {Kind: "cache", ID: "npm", Target: "/var/cache/npm", Sharing: "locked", Variables: []string{"npm_config_cache=/var/cache/npm"}},
		"dst=/a,id=x,type=cache,readonly":                 {Kind: "cache", ID: "x", Target: "/a", Sharing: "shared", ReadOnly: true},
		"bind:src:/src":                                   {Kind: "bind", Source: "/r/src", Target: "/src", ReadOnly: true},
		"bind:../src:/src:rw":                             {Kind: "bind", Source: "/src", Target: "/src"},
		"bind:/abs:/src:ro":                               {Kind: "bind", Source: "/abs", Target: "/src", ReadOnly: true},
		"bind:ro:/src":                                    {Kind: "bind", Source: "/r/ro", Target: "/src", ReadOnly: true},
		"type=bind,src=.,destination=/src,readwrite":      {Kind: "bind", Source: "/r", Target: "/src"},
		"type=bind,source=src,target=/src,readonly=false": {Kind: "bind", Source: "/r/src", Target: "/src"},
		"tmpfs:/x":                     {Kind: "tmpfs", Target: "/x"},
		"tmpfs:/x:size=1.5G:mode=1777": {Kind: "tmpfs", Target: "/x", Size: 3 << 29, Mode: 0o1777},
		"secret:token":                 {Kind: "secret", ID: "token", Target: "/run/secrets/token", Required: true},
		"secret:token:env=TOKEN":       {Kind: "secret", ID: "token", Env: "TOKEN", Required: true},
		"secret:token:/root/.netrc:env=TOKEN:optional":        {Kind: "secret", ID: "token", Target: "/root/.netrc", Env: "TOKEN"},
		"type=secret,id=token,target=/t,mode=0440,required=0": {Kind: "secret", ID: "token", Target: "/t", Mode: 0o440},
		"ssh":                    ssh,
		"type=ssh":               ssh,
		"type=ssh,required=true": ssh,
		"ssh:deploy:optional":    {Kind: "ssh", ID: "deploy"},
		"ssh:/agent":             {Kind: "ssh", ID: "default", Target: "/agent", Required: true},
	} {
		got, err := (&Recipe{Dir: "/r"}).ParseMount(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if diff := cmp.Diff([]Mount{want}, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

// apt has two places, which go together: its lists are of no use without the packages that they name.
func TestParseMountOfApt(t *testing.T) {
	mounts, err := (&Recipe{}).ParseMount("cache:apt")
	if err != nil || len(mounts) != 2 {
		t.Fatal(mounts, err)
	}
	for i, want := range []string{"apt /var/cache/apt locked", "apt-lists /var/lib/apt/lists locked"} {
		if got := mounts[i].ID + " " + mounts[i].Target + " " + mounts[i].Sharing; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if !strings.Contains(mounts[0].Files["/etc/apt/apt.conf.d/docker-clean"], "Keep-Downloaded-Packages") {
		t.Errorf("files: %v", mounts[0].Files)
	}
}

// Every kind's own example can be written, and its error tells it.
func TestMountKinds(t *testing.T) {
	if len(mountOrder) != len(mountKinds) {
		t.Error("mountOrder lacks a kind")
	}
	for kind, k := range mountKinds {
		if _, err := parseMount(k.example); err != nil {
			t.Errorf("%s: %v", k.example, err)
		}
		_, err := parseMount(kind + ":")
		if hint := fault.HintOf(err); err == nil || !strings.Contains(hint, k.example) {
			t.Errorf("%s: %v, hint %q", kind, err, hint)
		}
	}
	for name := range knownCaches {
		if _, err := parseMount("cache:" + name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseMount(f *testing.F) {
	for _, text := range []string{"cache:apt", "type=cache,id=x,target=/x", "bind:a:/b:rw", "secret:a:env=B", "ssh", "tmpfs:/x:size=1G", "tmpfs:/0:/", "cache:/0:/"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		mounts, err := parseMount(text)
		if (err == nil) == (len(mounts) == 0) {
			t.Fatalf("%d mounts, %v", len(mounts), err)
		}
		if err != nil && fault.HintOf(err) == "" {
			t.Fatalf("no hint: %v", err)
		}
	})
}

func TestJobMemory(t *testing.T) {
	if got := (Compile{MemoryPerJob: "2GiB"}).JobMemory(); got != 2<<30 || (Compile{}).JobMemory() != 0 {
		t.Errorf("got %d", got)
	}
}

func TestPushes(t *testing.T) {
	no := false
	if (Cache{}).Pushes() || !(Cache{Registry: "r.example.org/x"}).Pushes() || (Cache{Registry: "r.example.org/x", Push: &no}).Pushes() {
		t.Error("to nowhere, not at all, or in spite of the recipe")
	}
}
