package build_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/build"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/plan"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
)

// meaning is what a recipe says, however it is spelled.
type meaning struct {
	version, variable, label, content, dest, command string
	patched, entrypoint                              bool
	script, mount                                    string // of a step that runs; "" is none
}

func randomMeaning(r *rand.Rand) meaning {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	m := meaning{
		version: one("1", "2"), variable: one("x", "y"), label: one("x", "y"), content: one("one\n", "two\n"), dest: one("/opt/a.txt", "/opt/b.txt"),
		command: one("", "true", "false"), patched: r.IntN(2) == 0, entrypoint: r.IntN(2) == 0,
	}
	if r.IntN(runs) == 0 {
		m.script, m.mount = one("one", "two"), one("", "a.txt", "cache", "tmpfs")
	}
	return m
}

// One recipe in so many runs a command, which takes longer than all else.
const runs = 8

// looks is what a script does with a mount, so that it shows in the layer.
var looks = map[string]string{"a.txt": "cat /m/a >>/ran", "cache": "cd /cache; echo $PWD >>/ran", "tmpfs": "cd /t; echo $PWD >>/ran"}

// mounts are the ways to write a mount.
var mounts = map[string][]string{
	"a.txt": {`"bind:a.txt:/m/a"`, `'bind:./a.txt:/m/a'`, `"bind:sub/../a.txt:/m/a"`},
	"cache": {`"cache:/cache"`, `'cache:/cache/'`},
	"tmpfs": {`"tmpfs:/t"`},
}

// spell writes a recipe that says m, in one of many ways.
func (m meaning) spell(r *rand.Rand) map[string]string {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	shuffled := func(lines ...string) string {
		r.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
		return strings.Join(lines, "\n") + "\n"
	}
	name := one("", "name = \"first words\"\n", "name = \"other words\"\n")
	note := one("", "# a note\n", "\n\n")
	copies := fmt.Sprintf(one(`copy = ["a.txt:%s"]`, `copy = ["./a.txt:%s"]`, `copy = [ 'sub/../a.txt:%s', ]`), m.dest)
	steps := note + "[[step]]\n" + name + copies + "\n"
	if m.patched {
		steps += note + "[[step]]\n" + name + one(`patch = ["fix.patch:/opt"]`, `patch = ["./fix.patch:/opt/"]`) + "\n"
	}
	if m.script != "" {
		run := []string{fmt.Sprintf(one(`run = "%s"`, `run = '%s'`), "echo "+m.script+" >/ran; "+looks[m.mount])}
		if all := mounts[m.mount]; all != nil {
			run = append(run, "mounts = ["+one(all...)+"]")
		}
		steps += note + "[[step]]\n" + name + shuffled(append(run, one("", "network = true"))...)
	}
	image := shuffled(
		fmt.Sprintf(one(`env = { A = "1", B = %q }`, `env = { B = %q, A = '1' }`), m.variable),
		fmt.Sprintf(one("labels = { l = %q }", "labels.l = %q"), m.label),
		one("", "compression = \"gzip\""),
	)
	if m.entrypoint {
		image += one("entrypoint = [\"/bin/x\"]", "entrypoint = [\n  '/bin/x',\n]") + "\n"
	}
	if m.command != "" {
		image += fmt.Sprintf("cmd = [%q]\n", m.command)
	}
	text := strings.Replace(locktest.Head, "name = \"test\"\n", shuffled(`name = "test"`, fmt.Sprintf("version = %q", m.version)), 1)
	return map[string]string{
		recipe.FileName: text + steps + note + "[image]\n" + image,
		"a.txt":         m.content, "sub/other": "",
		"fix.patch": "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+line\n",
	}
}

func keyAndDigest(t *testing.T, st *store.Store, dir string) (plan.Key, store.Digest) {
	t.Helper()
	var o build.Options
	p, closeAll, err := planned(t.Context(), st, dir, &o)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	result, err := build.Run(t.Context(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	return p.Image.Key, result.Image.Digest
}

// Recipes that say the same have one key and one digest, however they are spelled and whatever the store has seen before;
// those that say something else have another of both.
func TestSpellingDecidesNothing(t *testing.T) {
	locktest.Isolate(t)
	const seed = 20261122
	r := rand.New(rand.NewPCG(seed, 0))
	warm, shell := storetest.New(t), locktest.Shell(t)
	type outcome struct {
		key    plan.Key
		digest store.Digest
	}
	known := make(map[meaning]outcome)
	keys, digests := make(map[plan.Key]meaning), make(map[store.Digest]meaning)
	var m meaning
	for i := range 60 {
		if i%4 != 3 { // else the last one is said again
			m = randomMeaning(r)
		}
		files, base := m.spell(r), locktest.Base{}
		if m.script != "" {
			base.Files = shell
		}
		var got outcome
		got.key, got.digest = keyAndDigest(t, warm, locktest.Dir(t, base, files))
		if i%6 == 0 {
			_, fresh := keyAndDigest(t, storetest.New(t), locktest.Dir(t, base, files))
			if fresh != got.digest {
				t.Fatalf("%+v: %s in a fresh store, %s in a warm one\n%s", m, fresh, got.digest, files[recipe.FileName])
			}
		}
		if want, seen := known[m]; seen && got != want {
			t.Fatalf("%+v: %v, and spelled another way %v\n%s", m, got, want, files[recipe.FileName])
		}
		known[m] = got
		if other, seen := keys[got.key]; seen && other != m {
			t.Fatalf("%+v and %+v have one key", m, other)
		}
		if other, seen := digests[got.digest]; seen && other != m {
			t.Fatalf("%+v and %+v have one digest", m, other)
		}
		keys[got.key], digests[got.digest] = m, m
	}
	if len(known) < 30 || len(known) == 60 {
		t.Fatalf("%d meanings in 60 recipes: too few of them, or none said twice", len(known))
	}
}
