package lock_test

import (
	"crypto/md5"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/lock/locktest"
	"sconce.dev/sconce/internal/tooltest"
)

// pipVerdicts lets pip look at the r.txt in each of the directories, in one process because it takes long to start. It returns
// which of them pip takes, and all that it says.
func pipVerdicts(t testing.TB, index string, dirs []string) (map[string]bool, string) {
	t.Helper()
	const program = `
import os, sys
from pip._internal.cli.main import main
for name in sys.argv[2:]:
    os.chdir(name)
    code = main(["download", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "--index-url", sys.argv[1], "-d", "got", "-r", "r.txt"])
    print("verdict", code, name, flush=True)
`
	cmd := exec.Command("python3", append([]string{"-c", program, index}, dirs...)...)
	cmd.Env = append(os.Environ(), "PATH=") // pip starts a rustc that it finds, to say which it is
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("pip: %v\n%s", err, out)
	}
	verdicts := make(map[string]bool)
	for line := range strings.Lines(string(out)) {
		if words := strings.Fields(line); len(words) == 3 && words[0] == "verdict" {
			verdicts[words[2]] = words[1] == "0"
		}
	}
	if len(verdicts) != len(dirs) {
		t.Fatalf("pip judged %d of %d:\n%s", len(verdicts), len(dirs), out)
	}
	return verdicts, string(out)
}

func needPip(t testing.TB) {
	t.Helper()
	if err := exec.Command("python3", "-m", "pip", "--version").Run(); err != nil {
		tooltest.Missing(t, "python3 has no pip")
	}
}

// TestHashes: what pip refuses for its hashes is refused, and what it takes is taken. Where the two differ, it is said why.
func TestHashes(t *testing.T) {
	needPip(t)
	alpha, beta := w("alpha", "1.0", "beta"), w("beta", "1.0")
	a, b := alpha.Bytes(t), beta.Bytes(t)
	b2 := locktest.Wheel{Name: "beta", Version: "1.0", Tag: "py2.py3-none-any"}.Bytes(t)
	sum := func(data []byte) string { return fmt.Sprintf("--hash=sha256:%x", sha256.Sum256(data)) }
	const none = "--hash=sha256:0000000000000000000000000000000000000000000000000000000000000000"
	src := sdist(t, "src", "1.0", "", os.DevNull, map[string]string{"pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = \"own\"\n"})
	long := fmt.Sprintf("--hash=sha512:%x", sha512.Sum512(b))
	middle := fmt.Sprintf("--hash=sha384:%x", sha512.Sum384(b))
	tests := map[string]struct {
		r, more string // r.txt, and what it may include
		refused string // a part of the error
		pip     string // why pip decides otherwise
	}{
		"right":                    {r: "beta==1.0 " + sum(b)},
		"wrong":                    {r: "beta==1.0 " + none, refused: "/r.txt:1 does not allow"},
		"one of several":           {r: "# all\nbeta==1.0 \\\n    " + none + " \\\n    " + sum(b) + "\n"},
		"none of several":          {r: "# all\nbeta==1.0 \\\n    " + none + " \\\n    " + sum(a) + "\n", refused: "/r.txt:2 does not allow"},
		"carriage returns":         {r: "beta==1.0 \\\r\n    " + none + "\r\n", refused: "does not allow"},
		"behind a tab":             {r: "beta==1.0\t" + none, refused: "does not allow"},
		"behind a marker":          {r: "beta==1.0 ; python_version > '3' " + none, refused: "does not allow"},
		"of another Python":        {r: "beta==1.0 ; python_version < '3' " + none + "\nbeta==1.0 ; python_version > '3' " + sum(b)},
		"with a blank":             {r: strings.Replace("beta==1.0 "+none, "=sha", " sha", 1), refused: "does not allow"},
		"in quotes":                {r: strings.Replace("beta==1.0 "+none, "=sha", "=\"sha", 1) + "\"", refused: "does not allow"},
		"after a comment":          {r: "# continued? \\\nbeta==1.0 " + none, refused: "does not allow"},
		"behind a no-break space":  {r: "beta==1.0\u00a0" + none, refused: "is not allowed"},
		"lone carriage returns":    {r: "beta==1.0 \\\r" + none + "\r", refused: "does not allow"},
		"in UTF-16":                {r: "-r utf16le.txt", refused: "/utf16le.txt:1 does not allow"},
		"in UTF-16, big-endian":    {r: "-r utf16be.txt", refused: "/utf16be.txt:1 does not allow"},
		"UTF-16 of a server":       {r: "-r INDEX/files/SERVED", more: utf16Text("beta==1.0 "+none, binary.LittleEndian), refused: "Unexpected"},
		"sha512":                   {r: "beta==1.0 " + long},
		"sha384":                   {r: "beta==1.0 " + middle},
		"wrong sha512":             {r: "beta==1.0 " + strings.Replace(long, long[14:18], "0000", 1), refused: "does not allow"},
		"md5":                      {r: fmt.Sprintf("beta==1.0 --hash=md5:%x", md5.Sum(b)), refused: "hashes are sha256, sha384 or sha512"},
		"sha1":                     {r: "beta==1.0 --hash=sha1:00", refused: "hashes are sha256, sha384 or sha512"},
		"too short":                {r: "beta==1.0 --hash=sha256:00", refused: "has 64 digits, and this has 2"},
		"dependency without":       {r: "alpha==1.0 " + sum(a), refused: "beta 1.0: no requirement asks for it with =="},
		"dependency with":          {r: "alpha==1.0 " + sum(a) + "\nbeta==1.0 " + sum(b)},
		"dependency with a wrong":  {r: "alpha==1.0 " + sum(a) + "\nbeta==1.0 " + none, refused: "beta-1.0-py3-none-any.whl is sha256:"},
		"one has, one has not":     {r: "alpha==1.0 " + sum(a) + "\nbeta==1.0", refused: "beta 1.0: it has no hash; beta-1.0-py3-none-any.whl has " + sum(b)},
		"required":                 {r: "--require-hashes\nbeta==1.0", refused: "it has no hash"},
		"required, and more":       {r: "--require-hashes -r more.txt", more: "beta==1.0", refused: "it has no hash", pip: "not"},
		"not pinned":               {r: "beta>=1.0 " + sum(b), refused: "no requirement asks for it with =="},
		"pinned in two ways":       {r: "beta>=1,<=1 " + sum(b), refused: "no requirement asks for it with =="},
		"pinned by a prefix":       {r: "beta==1.* " + sum(b)},
		"pinned exactly":           {r: "beta===1.0 " + sum(b)},
		"included":                 {r: "-r more.txt", more: "beta==1.0 " + none, refused: "/more.txt:1 does not allow"},
		"included by address":      {r: "-r file://DIR/more.txt", more: "beta==1.0 " + none, refused: "/more.txt:1 does not allow"},
		"included from a server":   {r: "-r INDEX/files/SERVED", more: "beta==1.0 " + none, refused: ".txt:1 does not allow"},
		"of a server, and right":   {r: "-r INDEX/files/SERVED", more: "beta==1.0 " + sum(b)},
		"in a constraint":          {r: "beta==1.0 " + sum(b) + "\n-c more.txt", more: "beta==1.0 " + sum(b)},
		"constraint has none":      {r: "beta==1.0 " + sum(b) + "\n-c more.txt", more: "beta==1.0"},
		"wrong in a constraint":    {r: "beta==1.0\n-c more.txt", more: "beta==1.0 " + none, refused: "/more.txt:1 does not allow"},
		"only in a constraint":     {r: "alpha==1.0 " + sum(a) + "\n-c more.txt", more: "beta==1.0 " + sum(b), pip: "looks at the version in constraints, but not at the hash"},
		"twice, once with":         {r: "beta==1.0\nbeta==1.0 " + sum(b), pip: "looks at the first of them only"},
		"twice, another each time": {r: "beta==1.0 " + sum(b) + "\nbeta==1.0 " + none, refused: "does not allow", pip: "passes over the second"},
		"address":                  {r: "beta @ INDEX/files/beta-1.0-py3-none-any.whl " + sum(b)},
		"address, wrong":           {r: "beta @ INDEX/files/beta-1.0-py3-none-any.whl " + none, refused: "does not allow"},
		"address, no name, wrong":  {r: "INDEX/files/beta-1.0-py3-none-any.whl " + none, refused: "does not allow"},
		"address, required":        {r: "--require-hashes\nbeta @ INDEX/files/beta-1.0-py3-none-any.whl", refused: "it has no hash"},
		"fragment":                 {r: "--require-hashes\nbeta @ INDEX/files/beta-1.0-py3-none-any.whl#sha256=" + sum(b)[14:]},
		"fragment of md5":          {r: fmt.Sprintf("beta @ INDEX/files/beta-1.0-py3-none-any.whl#md5=%x", md5.Sum(b))},
		"fragment of md5, wrong":   {r: fmt.Sprintf("beta @ INDEX/files/beta-1.0-py3-none-any.whl#md5=%x", md5.Sum(a)), refused: "does not allow"},
		"file":                     {r: "DIR/beta-1.0-py2.py3-none-any.whl " + sum(b2)},
		"file, wrong":              {r: "DIR/beta-1.0-py2.py3-none-any.whl " + sum(b), refused: "does not allow"},
		"source":                   {r: "src==1.0 " + sum(src), pip: "builds it, and there is no setuptools"},
		"source, wrong":            {r: "src==1.0 " + none, refused: "src-1.0.tar.gz is sha256:"},
		"source, wrong sha512":     {r: "src==1.0 " + long, refused: "src-1.0.tar.gz is sha256:"},
		"source, required":         {r: "--require-hashes\nsrc==1.0", refused: "it has no hash; src-1.0.tar.gz has " + sum(src)},
		"source, address, wrong":   {r: "src @ INDEX/files/src-1.0.tar.gz " + none, refused: "does not allow"},
		"directory":                {r: "--require-hashes\nDIR/project", refused: "project: it comes from a directory"},
	}
	bench, x := newBench(t, locktest.Base{}, alpha, beta)
	x.AddFile("src-1.0.tar.gz", src)
	dirs := make(map[string]string)
	for name, test := range tests {
		number := fmt.Sprint("case", len(dirs))
		dirs[name] = filepath.Join(bench.dir, number)
		x.AddFile(number+".txt", []byte(test.more))
		place := strings.NewReplacer("DIR", dirs[name], "INDEX", strings.TrimSuffix(x.URL, "/simple"), "SERVED", number+".txt")
		bench.write(map[string]string{
			number + "/r.txt": place.Replace(test.r) + "\n", number + "/more.txt": test.more + "\n",
			number + "/beta-1.0-py2.py3-none-any.whl": string(b2),
			number + "/utf16le.txt":                   utf16Text("beta==1.0 "+none+"\n", binary.LittleEndian),
			number + "/utf16be.txt":                   utf16Text("beta==1.0 "+none+"\n", binary.BigEndian),
			number + "/project/pyproject.toml":        "[project]\nname = \"project\"\nversion = \"1\"\n",
		})
	}
	verdicts, said := pipVerdicts(t, x.URL, slices.Collect(maps.Values(dirs)))
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := bench.make(bench.recipe(fmt.Sprintf("[python]\nrequirements = [%q]\n", filepath.Base(dirs[name])+"/r.txt")), lock.Options{})
			switch {
			case test.refused != "":
				wantError(t, err, test.refused)
			case err != nil:
				t.Fatal(err)
			}
			switch alike := verdicts[dirs[name]] == (err == nil); {
			case !alike && test.pip == "":
				t.Errorf("%s: the error is %v, pip's verdict is %t:\n%s", dirs[name], err, verdicts[dirs[name]], said)
			case alike && test.pip != "":
				t.Errorf("pip decides alike, but it should be that it %s", test.pip)
			}
		})
	}
}

// utf16Text is a text as some editors and shells write it, after a byte order mark.
func utf16Text(text string, order binary.AppendByteOrder) string {
	var data []byte
	for _, unit := range utf16.Encode([]rune("\uFEFF" + text)) {
		data = order.AppendUint16(data, unit)
	}
	return string(data)
}

// TestHashesChoose: of the files of a version the one is taken that is allowed, and other readers of the lock see no other.
func TestHashesChoose(t *testing.T) {
	b, x := newBench(t, locktest.Base{})
	better := locktest.Wheel{Name: "native", Version: "1.0", Tag: "cp311-cp311-manylinux_2_17_x86_64"}
	plain := locktest.Wheel{Name: "native", Version: "1.0"}
	x.Add(t, better, plain)
	b.write(map[string]string{"r.txt": fmt.Sprintf("native==1.0 --hash=sha256:%x\n", sha256.Sum256(plain.Bytes(t)))})
	const text = "[python]\nrequirements = [\"r.txt\"]\n"
	r, l := b.lock(text)
	wheels, err := wheelsOf(l, r)
	if err != nil || len(wheels) != 1 || wheels[0].File != plain.File() {
		t.Errorf("wheels %+v, %v", wheels, err)
	}
	if pylock := b.read("pylock.toml"); strings.Contains(pylock, better.File()) || !strings.Contains(pylock, plain.File()) {
		t.Errorf("the lock:\n%s", pylock)
	}
	uvRun(t, b.dir, "pip", "install", "--dry-run", "--quiet", "--python-version", "3.11", "--target", "there", "-r", "pylock.toml")
	again := b.read("pylock.toml") + b.read("sconce.lock")
	for _, name := range []string{"sconce.lock", "pylock.toml"} {
		os.Remove(filepath.Join(b.dir, name))
	}
	b.lock(text)
	if b.read("pylock.toml")+b.read("sconce.lock") != again {
		t.Error("locking twice gives two locks")
	}
}

// TestHashesOutdateLocks: a lock is for the hashes that were demanded when it was made, and not for one made without looking.
func TestHashesOutdateLocks(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("beta", "1.0"))
	right := fmt.Sprintf("beta==1.0 --hash=sha256:%x\n", sha256.Sum256(w("beta", "1.0").Bytes(t)))
	b.write(map[string]string{"r.txt": right})
	const text = "[python]\nrequirements = [\"r.txt\"]\n"
	r, l := b.lock(text)
	if drift, err := driftOf(l, r); err != nil || len(drift) > 0 {
		t.Fatalf("%q, %v", drift, err)
	}
	b.write(map[string]string{"r.txt": strings.Replace(right, "sha256:", "sha256:0", 1)})
	if _, err := driftOf(l, r); err == nil {
		t.Error("a broken hash goes unseen")
	}
	b.write(map[string]string{"r.txt": "beta==1.0 --hash=sha256:" + strings.Repeat("0", 64) + "\n"})
	if drift, err := driftOf(l, r); err != nil || len(drift) != 2 {
		t.Errorf("%q, %v", drift, err)
	}
	b.fails(text, "does not allow")
	b.write(map[string]string{"r.txt": right})
	b.lock(text)
	old := regexp.MustCompile(`.hashes checked.,?`).ReplaceAllString(b.read("sconce.lock"), "")
	b.write(map[string]string{"sconce.lock": old})
	unchecked, err := lock.Read(r)
	if err != nil {
		t.Fatal(err)
	}
	if drift, err := driftOf(unchecked, r); err != nil || len(drift) != 1 || drift[0] != "+ python.hashes checked" {
		t.Errorf("a lock made without looking at the hashes: %q, %v", drift, err)
	}
}

// TestHashesInSettings: uv's own settings may demand hashes; packages of the recipe lack them then.
func TestHashesInSettings(t *testing.T) {
	b, _ := newBench(t, locktest.Base{}, w("beta", "1.0"))
	b.write(map[string]string{"uv.toml": "[pip]\nrequire-hashes = true\n"})
	b.fails("[python]\npackages = [\"beta==1.0\"]\n", "beta 1.0: it has no hash", "uv pip compile --generate-hashes")
}
