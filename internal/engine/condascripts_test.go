package engine_test

import (
	"runtime"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/conda/condatest"
	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/progress"
)

// linked is a package whose link script says in PREFIX/NAME.log how it was run, with a number that is another one each time.
func linked(name, more string) condatest.Package {
	p := plain(name, "1.0")
	p.Files["bin/."+name+"-post-link.sh"] = condatest.File{Data: "echo \"$PKG_NAME $PKG_VERSION $RANDOM$RANDOM$RANDOM\" > \"$PREFIX/$PKG_NAME.log\"\n" + more}
	return p
}

// Link scripts run once, those that the recipe names or all; what they have to say is shown and does not stay in the image; one that
// fails is an error by its package's name, and without a bash it is told that none was run.
func TestCondaLinkScripts(t *testing.T) {
	locktest.UV(t)
	server := condatest.NewChannel(t,
		linked("one", "echo 'one has this to say' >> \"$PREFIX/.messages.txt\"\n"), linked("other", ""), linked("bad", "exit 3\n"), plain("quiet", "1.0"),
	).Serve(t)
	s := newSession(t)
	table := func(packages, more string) map[string]string {
		return condaTable("packages = [" + packages + "]\nchannels = [\"" + server.URL + "\"]\n" + more)
	}
	made := func(dir string) (*image.Image, string) {
		t.Helper()
		var events locktest.Events
		built, err := build(progress.With(t.Context(), &events), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return built.Image, events.Everything()
	}
	const show = "cd /opt/conda; for f in *.log; do [ ! -f $f ] || cat $f; done; ls -a | grep messages || :"
	for _, c := range []struct {
		name, more string
		ran        []string
	}{
		{"all", "", []string{"one 1.0", "other 1.0"}},
		{"one", "link-scripts = [\"one\"]\n", []string{"one 1.0"}},
		{"none", "link-scripts = []\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := condaRecipe(t, "", table(`"one", "other", "quiet"`, c.more))
			im, told := made(dir)
			got := runIn(t, s, im, "sh", "-c", show)
			var ran []string
			for line := range strings.Lines(got) {
				name, _, _ := strings.Cut(line, " 1.0")
				ran = append(ran, name+" 1.0")
			}
			if strings.Join(ran, ", ") != strings.Join(c.ran, ", ") {
				t.Errorf("got %q, want %q", ran, c.ran)
			}
			if shown := strings.Contains(told, "one has this to say"); shown != (len(c.ran) > 0) {
				t.Errorf("the message is shown: %t\n%s", shown, told)
			}
			locktest.Write(t, dir, table(`"one", "other", "quiet"`, c.more+"[image]\nlabels = { a = \"b\" }\n"))
			im, _ = made(dir)
			if again := runIn(t, s, im, "sh", "-c", show); again != got {
				t.Errorf("the scripts were run again:\n%s\nand before\n%s", again, got)
			}
		})
	}
	t.Run("one that fails", func(t *testing.T) {
		dir := condaRecipe(t, "", table(`"bad", "one"`, ""))
		var events locktest.Events
		_, err := build(progress.With(t.Context(), &events), s, dir, engine.PlanOptions{}, engine.BuildOptions{})
		if err == nil || !strings.Contains(err.Error(), "conda link scripts: bad, one") || !strings.Contains(events.Everything(), "the post-link script of bad failed") {
			t.Errorf("got %v\n%s", err, events.Everything())
		}
	})
	t.Run("a name that no script has", func(t *testing.T) {
		_, told := made(condaRecipe(t, "", table(`"one", "quiet"`, "link-scripts = [\"on\", \"quiet\"]\n")))
		for _, want := range []string{"link-scripts names on, and the environment has no package", "did you mean one?", "link-scripts names quiet, and", "take it out of link-scripts"} {
			if !strings.Contains(told, want) {
				t.Errorf("%q is not told:\n%s", want, told)
			}
		}
	})
	t.Run("without a bash", func(t *testing.T) {
		files := table(`"one"`, "")
		machine := map[string]uint16{"amd64": locktest.AMD64, "arm64": locktest.ARM64}[runtime.GOARCH]
		files["root.tar"] = string(locktest.Base{Machine: machine}.Tar(t))
		if _, told := made(condaRecipe(t, "", files)); !strings.Contains(told, "link scripts of conda packages are not run, since the image has no bash: one") || !strings.Contains(told, `add "bash" to packages`) {
			t.Errorf("not told:\n%s", told)
		}
	})
}
