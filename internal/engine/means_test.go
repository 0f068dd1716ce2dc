package engine

import (
	"slices"
	"testing"

	"sconce.dev/sconce/internal/config"
	"sconce.dev/sconce/internal/reach"
)

// TestAllowPaths: what the user has named counts, by a flag, in a configuration or as a mirror there, and nothing beside it.
func TestAllowPaths(t *testing.T) {
	t.Setenv(reach.Variable, "")
	defer reach.Allow(nil)
	AllowPaths([]string{"/srv/flag"}, config.Config{
		AllowPaths: []string{"/srv/images"}, Mirrors: map[string]string{"debian": "file:///srv/debian", "ubuntu": "http://mirror.example.org/srv/ubuntu"},
	})
	bounds := reach.In("the build context", t.TempDir())
	for path, want := range map[string]bool{
		"/srv/flag/x": true, "/srv/images/x.sqsh": true, "/srv/debian/dists": true, "/srv/ubuntu": false, "/srv": false, "/srv/debian-security": false,
	} {
		if got := bounds.Check(path) == nil; got != want {
			t.Errorf("%s: %t, want %t", path, got, want)
		}
	}
}

// TestHostConfigOfRecipe: a recipe alone gets certificates. What else this machine has of what it asks for is withheld, unless the user asks too.
func TestHostConfigOfRecipe(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, name := range []string{"UV_CONFIG_FILE", "PIP_INDEX_URL"} {
		t.Setenv(name, "")
	}
	t.Setenv("PIP_CONFIG_FILE", "means_test.go")
	t.Setenv("SSL_CERT_FILE", "means_test.go")
	asked := []string{"ca", "pip"}
	for _, test := range []struct {
		flags           []string
		site            *[]string
		shown, withheld []string
	}{
		{nil, nil, []string{"ca"}, []string{"pip"}},
		{nil, &[]string{"pip"}, []string{"pip", "ca"}, nil},
		{[]string{"pip"}, nil, []string{"pip"}, nil},
		{[]string{}, nil, nil, nil},
	} {
		host, err := ReadHost(test.flags, config.Config{HostConfig: test.site})
		if err != nil {
			t.Fatal(err)
		}
		c, withheld, err := host(asked)
		if err != nil || !slices.Equal(c.Kinds, test.shown) || !slices.Equal(withheld, test.withheld) {
			t.Errorf("flags %q: shown %q, withheld %q, %v, want %q and %q", test.flags, c.Kinds, withheld, err, test.shown, test.withheld)
		}
	}
}
