package test

import (
	"fmt"
	"testing"

	"sconce.dev/sconce/internal/tooltest"
)

// makefile says how a program is made of two objects, and notes whatever is done.
const makefile = `out/prog: out/a.o out/b.o
	cc -o $@ $^; echo link >>done
out/%.o: %.c all.h | out
	cc -c -o $@ $<; echo $@ >>done
out:
	mkdir out
`

const ninjaFile = `rule cc
  command = cc -MD -MF $out.d -c -o $out $in && echo $out >>done
  depfile = $out.d
  deps = gcc
rule link
  command = cc -o $out $in && echo link >>done
build nout/a.o: cc a.c
build nout/b.o: cc b.c
build nout/prog: link nout/a.o nout/b.o
`

func (p *place) writeProgram(dir string) {
	for name, text := range map[string]string{
		"Makefile": makefile, "build.ninja": ninjaFile, "all.h": "int answer(void);\n",
		"a.c": "#include \"all.h\"\nint main(void) { return answer(); }\n", "b.c": "#include \"all.h\"\nint answer(void) { return 0; }\n",
	} {
		p.write(dir+"/src/"+name, text)
	}
	p.write(dir+"/other/b.c", "#include \"all.h\"\nint answer(void) { return 42 - 42; }\n")
}

// did is a command that fails unless a tool has just done this, one line of the file done for each thing.
func did(tool, what string) string {
	return fmt.Sprintf(`rm -f done; touch done; %s; test "$(sort done | xargs)" = "%s"`, tool, what)
}

// make and ninja do in a step what is to do since the step before, and nothing else: what one step makes is newer than what it was made
// from, and what is touched or copied later is newer than that.
func TestStepsKeepOrder(t *testing.T) {
	begin(t)
	if testing.Short() {
		t.Skip("installs compilers")
	}
	tools := toolsImage(t)
	all, none := map[string]string{"make": "link out/a.o out/b.o", "ninja": "link nout/a.o nout/b.o"}, ""
	digests := map[string]map[string]bool{"make": {}, "recipe": {}}
	for _, user := range []*account{nil, ordinary(t)} {
		p := newPlace(t, user)
		p.writeProgram("app")
		for _, tool := range []string{"make", "ninja"} {
			out := map[string]string{"make": "out", "ninja": "nout"}[tool]
			p.write("app/Containerfile", `FROM `+tools+`
COPY src /src
WORKDIR /src
RUN `+did(tool, all[tool])+`
RUN `+did(tool, none)+`
RUN test `+out+`/prog -nt b.c && touch b.c
RUN test b.c -nt `+out+`/prog && `+did(tool, "link "+out+"/b.o")+`
COPY src/*.c ./
RUN `+did(tool, none)+`
COPY other ./
RUN `+did(tool, "link "+out+"/b.o")+`
RUN `+did(tool, none)+` && touch -d "2001-02-03 04:05:06" all.h
RUN `+did(tool, none)+` && touch all.h
RUN `+did(tool, all[tool])+` && `+out+`/prog && rm -f done
`)
			digest := p.build("app")
			if tool == "make" { // ninja writes down when it did what
				digests[tool][digest] = true
			}
		}
		p.write("recipe/sconce.toml", fmt.Sprintf(`name = "program"
version = "1"
[base]
image = %q
[[step]]
copy = ["src:/src/"]
workdir = "/src"
run = '%s'
[[step]]
workdir = "/src"
run = '%s && touch all.h'
[[step]]
workdir = "/src"
run = '%s'
[[step]]
copy = ["other:/src/"]
workdir = "/src"
run = '%s'
`, tools, did("make", all["make"]), did("make", none), did("make", all["make"]), did("make", "link out/b.o")))
		p.writeProgram("recipe")
		digests["recipe"][p.build("recipe")] = true
		p.wantSound()
		p.wantTidy()
	}
	for what, all := range digests {
		if len(all) != 1 {
			t.Errorf("%s: root and an ordinary user build different images: %v", what, all)
		}
	}
}

// Files of wheels and of steps go into a zip, which holds no time before 1980 and goes by local time, wherever in the world Python makes it.
func TestTimesFitAZip(t *testing.T) {
	begin(t)
	tooltest.Path(t, "uv")
	p := newPlace(t, ordinary(t))
	newIndex(t).use(p)
	p.write("app/sconce.toml", recipe(base(t).ref, []string{"six", "markupsafe"}, `
[[step]]
run = "mkdir /made && echo x > /made/x"
[[step]]
run = """
site=$(python -c 'import os, six; print(os.path.dirname(six.__file__))')
for zone in WEST12 EAST-14; do
    TZ=$zone python -m zipfile -c /tmp/all.zip $site/six.py $site/markupsafe $site/*.dist-info /made
done
"""
`))
	p.build("app")
	p.env = append(p.env, "SOURCE_DATE_EPOCH=315532800") // 1980 has not begun in the west
	p.fails(1, []string{"ZIP does not support timestamps before 1980"}, "build", "app")
}
