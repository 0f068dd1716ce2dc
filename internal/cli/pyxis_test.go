package cli

import (
	"path/filepath"
	"testing"

	"sconce.dev/sconce/internal/config"
)

// A site that has put stores elsewhere than into homes finds what Slurm imports there as well.
func TestPyxisDirectory(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, name := range []string{"XDG_CACHE_HOME", "SCRATCH", "SCONCE_STORE"} {
		t.Setenv(name, "")
	}
	site := &app{config: config.Config{Store: "/site/ada/sconce"}}
	flag := &app{config: site.config, flags: globalFlags{store: "/flag/sconce/"}}
	for _, c := range []struct {
		app            *app
		dir            string
		variable, text string
		want           string
	}{
		{&app{}, "", "SCRATCH", "", filepath.Join(home, ".cache/sconce-pyxis")},
		{site, "", "SCRATCH", "", "/site/ada/sconce-pyxis"},
		{flag, "", "SCRATCH", "", "/flag/sconce-pyxis"},
		{site, "/images", "SCRATCH", "/scratch", "/images"},
		{site, "", "SCRATCH", "/scratch", "/scratch/.sconce-pyxis"},
		{site, "", "SCONCE_STORE", "/mine", "/mine-pyxis"},
		{&app{}, "", "SCONCE_STORE", "/mine", "/mine-pyxis"},
	} {
		t.Run(c.want, func(t *testing.T) {
			t.Setenv(c.variable, c.text)
			got, err := c.app.imageDir(pyxisOptions{dir: c.dir})
			if err != nil || got != c.want {
				t.Errorf("%s, %v; want %s", got, err, c.want)
			}
		})
	}
}
