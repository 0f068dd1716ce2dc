package registry

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every registry that there is a login for is named once, and no secret with it.
func TestLogins(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "REGISTRY_AUTH_FILE"} {
		t.Setenv(name, filepath.Join(dir, "nothing"))
	}
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("ENROOT_CONFIG_PATH", dir)
	if got := Logins(); len(got) != 0 {
		t.Errorf("there are none, but %v", got)
	}
	docker := write("config.json", `{"auths": {"https://index.docker.io/v1/": {"auth": "bWU6c2VjcmV0"}, "b.example.org/team": {}}, "credHelpers": {"a.example.org": "pass"}}`)
	enroot := write(".credentials", "machine c.example.org login me password secret\nmachine auth.docker.io login me password secret\n")
	got, err := json.Marshal(Logins())
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal([]Known{{"a.example.org", docker}, {"b.example.org/team", docker}, {"c.example.org", enroot}, {"docker.io", docker}})
	if err != nil || string(got) != string(want) || strings.Contains(string(got), "secret") {
		t.Errorf("got  %s\nwant %s (%v)", got, want, err)
	}
}
