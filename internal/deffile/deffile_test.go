package deffile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sconce.dev/sconce/internal/containerfile"
	"sconce.dev/sconce/internal/fault"
)

const (
	head = "Bootstrap: docker\nFrom: base:1\n"
	dnf  = "Bootstrap: dnf\nMirrorURL: http://m.example.org/os\n"
)

func evaluate(text string, args map[string]string, target string) (*containerfile.Build, error) {
	f, err := Parse("x.def", []byte(text), args)
	if err != nil {
		return nil, err
	}
	base := func(_ context.Context, reference string, _ v1.Platform) (*v1.ConfigFile, error) {
		if strings.Contains(reference, "both") {
			return &v1.ConfigFile{Config: v1.Config{Entrypoint: []string{"/bin/tini", "--"}, Cmd: []string{"serve", "a b"}}}, nil
		}
		if strings.Contains(reference, "native") {
			return &v1.ConfigFile{Config: v1.Config{Entrypoint: []string{"/.singularity.d/actions/run"}}}, nil
		}
		return &v1.ConfigFile{Config: v1.Config{Env: []string{"PATH=/bin"}, Cmd: []string{"/bin/hello"}}}, nil
	}
	return f.Evaluate(context.Background(), Options{Target: target, Platform: v1.Platform{OS: "linux", Architecture: "amd64"}, Bootstrap: packages}, base)
}

func packages(b Bootstrap) string {
	if len(b.Repositories) > 0 {
		return fmt.Sprintf("line %d: %q of %q by %q", b.Line, b.Packages, b.Repositories, b.Keys)
	}
	return fmt.Sprintf("line %d: %q of %q at %q by %q", b.Line, b.Packages, b.Suite, b.Mirror, b.Keys)
}

// told writes what a build does, but for the constant layout, in one line for each instruction.
func told(b *containerfile.Build) string {
	var out strings.Builder
	for _, s := range b.Stages {
		fmt.Fprintf(&out, "stage %s from %s entrypoint %v cmd %v\n", s.Name, s.From, s.Config.Entrypoint, s.Config.Cmd)
		for _, op := range s.Ops {
			switch {
			case op.Run != nil:
				fmt.Fprintf(&out, "%d run %q in %q", op.Line, op.Run.Args, op.Run.WorkDir)
				for _, f := range op.Run.Files {
					fmt.Fprintf(&out, " %q", f.Content)
				}
				fmt.Fprintln(&out)
			case len(op.Copy.Inline) > 0:
				for _, f := range op.Copy.Inline {
					fmt.Fprintf(&out, "%d write %s%s %s %q\n", op.Line, op.Copy.Dest, f.Name, op.Copy.Chmod, f.Content)
				}
			default:
				fmt.Fprintf(&out, "%d copy %v from %+v to %s\n", op.Line, op.Copy.Sources, op.Copy.From, op.Copy.Dest)
			}
		}
		for name, value := range s.Config.Labels {
			fmt.Fprintf(&out, "label %s=%s\n", name, value)
		}
	}
	return out.String()
}

// Each definition file means what Apptainer's user guide says of it.
func TestMeaning(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"an image of a registry", head, "stage 0 from docker://base:1 "},
		{"keys in other letters", "BootStrap: Docker\nFROM: base:1\n", "from docker://base:1 "},
		{"registry and namespace", "Bootstrap: docker\nFrom: a:2\nRegistry: r.example.org\nNamespace: me\n", "from docker://r.example.org/me/a:2 "},
		{"a registry as an address", "Bootstrap: docker\nFrom: a:2\nRegistry: https://r.example.org/\n", "from docker://r.example.org/a:2 "},
		{"the command too", head + "IncludeCmd: yes\n", `OCI_CMD='\"/bin/hello\"'`},
		{"a comment above", "# first\n\n" + head, "from docker://base:1 "},
		{"a comment behind a header", "Bootstrap: docker # words\nFrom: base:1 # more\n", "from docker://base:1 "},
		{"a comment at once behind a header", "Bootstrap: docker#words\nFrom: base:1#more\n", "from docker://base:1 "},
		{"a value over two lines", "Bootstrap: docker\nFrom: \\\n  base:1\n", "from docker://base:1 "},
		{"a value that a comment ends", "Bootstrap: docker\nFrom: ba\\\nse:1\n# words\nRegistry: r.example.org\n", "from docker://r.example.org/base:1 "},
		{
			"packages of Debian", "Bootstrap: debootstrap\nOSVersion: bookworm\nMirrorURL: http://m.example.org/%{OSVERSION}\nInclude: python3 \\\n  git,less\nKeyring: k.gpg\n",
			`from line 1: ["python3" "git" "less"] of "bookworm" at "http://m.example.org/bookworm" by "k.gpg" `,
		},
		{"packages of the usual mirror", "Bootstrap: debootstrap\nOSVersion: noble\n", `from line 1: [] of "noble" at "" by "" entrypoint`},
		{"packages of RPM", "Bootstrap: dnf\nMirrorURL: http://m.example.org/os/\n", `from line 1: [] of ["http://m.example.org/os"] by "" entrypoint [/.singularity.d/actions/run] cmd []`},
		{
			"packages of yum", "Bootstrap: yum\nOSVersion: 9.4\nMirrorURL: https://m.example.org/%{OSVERSION}/$basearch/${arch}\nUpdateURL: https://m.example.org/%{OSVersion}/$releasever-u/$releasever_major\nInclude: dnf  python3=3.9 /usr/bin/git\nGPG: https://m.example.org/KEY\n",
			`from line 1: ["dnf" "python3=3.9" "/usr/bin/git"] of ["https://m.example.org/9.4/x86_64/x86_64" "https://m.example.org/9.4/9.4-u/9"] by "https://m.example.org/KEY" `,
		},
		{
			"packages of zypper", "Bootstrap: Zypper\nOSVersion: 15.6\nOtherURL10: http://m.example.org/10\nOtherURL2: http://m.example.org/%{OSVERSION}\nMirrorURL: http://m.example.org/oss\nInclude: zypper\nKeyring: KEY\n",
			`from line 1: ["aaa_base" "zypper"] of ["http://m.example.org/oss" "http://m.example.org/15.6" "http://m.example.org/10"] by "KEY" `,
		},
		{"a key of this machine", "Bootstrap: yum\nMirrorURL: file:///srv/os\nGPG: file:///etc/KEY\n", `of ["file:///srv/os"] by "/etc/KEY" `},
		{"a key's file", "Bootstrap: debootstrap\nOSVersion: noble\nGPG: KEY\n", `of "noble" at "" by "KEY" `},
		{"lines of Windows", strings.ReplaceAll(head+"%post\n  a\n", "\n", "\r\n"), `in "" "  a\n"`},
		{"a local image", "Bootstrap: localimage\nFrom: dir/a.sif\n", "from ./dir/a.sif "},
		{"a local image by its whole path", "Bootstrap: localimage\nFrom: /x/a.sif\n", "from /x/a.sif "},
		{"an OCI layout", "Bootstrap: oci\nFrom: dir:tag\n", "from oci:dir:tag "},
		{"an OCI archive", "Bootstrap: oci-archive\nFrom: a.tar\n", "from oci-archive:a.tar "},
		{"an archive of docker", "Bootstrap: docker-archive\nFrom: a.tar\n", "from docker-archive:a.tar "},
		{"nothing", "Bootstrap: scratch\n", "stage 0 from scratch "},
		{"a script", head + "%post\n  a\n  b\n", `3 run ["/bin/sh" "-ex" "/dev/pipes/post"] in "" "  a\n  b\n"`},
		{"a script of bash", head + "%post -c /bin/bash -e\na\n", `3 run ["/bin/sh" "-ex" "-c" "/bin/bash -e /dev/pipes/post"]`},
		{"a script twice", head + "%post\na\n%help\nh\n%post\nb\n", `"a\nb\n"`},
		{"a script twice, the shell later", head + "%post\na\n%post -c /bin/bash\nb\n", `5 run ["/bin/sh" "-ex" "-c" "/bin/bash /dev/pipes/post"] in "" "a\nb\n"`},
		{"a comment behind a section", head + "%post # words\na\n", `["/bin/sh" "-ex" "/dev/pipes/post"] in "" "a\n"`},
		{"a section in capitals", head + "%POST\na\n", `"a\n"`},
		{"a percent sign that is indented", head + "%post\n  %test\n", `"  %test\n"`},
		{"a set-up of comments", head + "%setup\n  # nothing\n\n%post\na\n", "\"a\\n\""},
		{"files of the host", head + "%files\n  a /opt/b\n", "4 copy [a] from {Stage:-1 Image: Dir: Context:true} to /opt/b\n"},
		{"a file without destination", head + "%files\n/etc/a\n", "4 copy [a] from {Stage:-1 Image: Dir:/etc Context:false} to /etc/a\n"},
		{"a file above the directory", head + "%files\n../a /b\n", "copy [a] from {Stage:-1 Image: Dir:.. Context:false} to /b\n"},
		{"a directory as destination", head + "%files\na /opt/\n", "to /opt/\n"},
		{"patterns", head + "%files\n*.py /opt/\n", "copy [*.py]"},
		{"names with blanks", head + "%files\n\"a b\" '/c d'\n", "copy [a b] from {Stage:-1 Image: Dir: Context:true} to /c d\n"},
		{"comments among files", head + "%files\n# no\n\na /b # why\n", "6 copy [a]"},
		{"files of a stage", head + "Stage: one\n" + head + "%files from one\n/a /b\n", "7 copy [a] from {Stage:0 Image: Dir: Context:false} to /b\n"},
		{"an environment", head + "%environment\nexport A=1\n", `3 write /.singularity.d/env/90-environment.sh 755 "#!/bin/sh\n\nexport A=1\n"`},
		{"a runscript", head + "%runscript\necho $1\n", `3 write /.singularity.d/runscript 755 "#!/bin/sh\n\necho $1\n"`},
		{"the command goes into the runscript", head + "%runscript\na\n", "entrypoint [/.singularity.d/actions/run] cmd []\n"},
		{"no runscript", head, `write /.singularity.d/runscript 755 "#!/bin/sh\n# Starts the entrypoint`},
		{"a runscript with its own shell", head + "%runscript\n\n  #!/bin/bash\na\n", `runscript 755 "#!/bin/bash\na\n"`},
		{"the runscript of a base that has one", "Bootstrap: localimage\nFrom: native.sif\n", "write /.singularity.d/Singularity"},
		{"a startscript", head + "%startscript\na\n", `3 write /.singularity.d/startscript 755 "#!/bin/sh\n\na\n"`},
		{"a test", head + "%test\na\n", `3 run ["/.singularity.d/actions/test"]`},
		{"labels", head + "%labels\n  A b c\n", "label A=b c\n"},
		{"a quoted label", head + "%labels\nA \"b c\"\n", "label A=\"b c\"\n"},
		{"a label without value", head + "%labels\nA\n", "label A=\n"},
		{"help", head + "%help\nHow.\n", `write /.singularity.d/runscript.help 644 "How.\n"`},
		{"the file itself", head, `write /.singularity.d/Singularity 644 "Bootstrap: docker\nFrom: base:1\n"`},
		{"a template", "Bootstrap: docker\nFrom: a:{{ V }}\n%arguments\nV=3\n", "from docker://a:3 "},
		{"a template in a script", head + "%arguments\nV=3\n%post\necho {{V}} ${V} {{ 1 }}\n", `"echo 3 ${V} {{ 1 }}\n"`},
		{"an app that runs", head + "%apprun foo\na\n", `3 write /scif/apps/foo/scif/runscript 755 "#!/bin/sh\n\na\n"`},
		{"an app that is installed", head + "%appinstall foo\nmake\n", `exec /bin/sh -ex /dev/pipes/post"] in "/scif/apps/foo" "make\n"`},
		{"files before what is installed with them", head + "%appinstall foo\nmake\n%appfiles foo\na\n", "to /scif/apps/foo/\n3 run"},
		{"words behind an app's name", head + "%appinstall foo bar\nmake\n", `in "/scif/apps/foo" "make\n"`},
		{"apps in the order of their names", head + "%appenv b\nx\n%appinstall a\nfirst\n%appinstall b\nsecond\n", "\"second\\n\"\n5 run"},
		{"an app's environment", head + "%appenv foo\nexport A=1\n", `write /scif/apps/foo/scif/env/90-environment.sh 755 "export A=1\n"`},
		{"an app's files", head + "%appfiles foo\na bin/a\n", "4 copy [a] from {Stage:-1 Image: Dir: Context:true} to /scif/apps/foo/bin/a\n"},
		{"an app's file without destination", head + "%appfiles foo\na\n", "to /scif/apps/foo/\n"},
		{"an app's labels", head + "%applabels foo\nA b\n", `labels.json 644 "{\n\t\"A\": \"b\"\n}"`},
		{"an app's help", head + "%apphelp foo\nh\n", `write /scif/apps/foo/scif/runscript.help 644 "h\n"`},
		{"an app's test", head + "%apptest foo\na\n", `write /scif/apps/foo/scif/test 755`},
		{"an app's startscript", head + "%appstart foo\na\n", `write /scif/apps/foo/scif/startscript 755`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := evaluate(c.text, nil, "")
			if err != nil {
				t.Fatal(err)
			}
			if got := told(b); !strings.Contains(got, c.want) {
				t.Errorf("got\n%s\nwithout %s", got, c.want)
			}
		})
	}
}

// IncludeCmd changes nothing in Apptainer, whatever its value. That is told where somebody may count on it.
func TestIncludeCmd(t *testing.T) {
	const both = "Bootstrap: docker\nFrom: both\n"
	for text, warns := range map[string]bool{
		both: false, both + "IncludeCmd: yes\n": true, both + "IncludeCmd: no\n": true, both + "IncludeCmd: yes\n%runscript\na\n": false, head + "IncludeCmd: yes\n": false,
	} {
		b, err := evaluate(text, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Warnings) > 0 != warns || warns && (b.Warnings[0].Line != 3 || !strings.Contains(b.Warnings[0].Message, `["serve" "a b"]`)) {
			t.Errorf("%q: %+v", text, b.Warnings)
		}
		if warns && !strings.Contains(told(b), `OCI_CMD='\"serve\" \"a b\"'`) {
			t.Errorf("%q: got\n%s", text, told(b))
		}
	}
}

// What cannot be done is said with its line and what to write instead.
func TestMistakes(t *testing.T) {
	for _, c := range []struct{ name, text, want, hint string }{
		{"nothing", "", "x.def:1: there is no Bootstrap", "begin with"},
		{"a section first", "%post\na\n", "x.def:1: %post before Bootstrap", "begin with"},
		{"an unknown section", head + "%psot\n", "x.def:3: there is no section %psot", "did you mean %post?"},
		{"an unknown header", "Bootstrap: docker\nForm: a\n", `x.def:2: there is no header "form"`, "did you mean from?"},
		{"a header twice", head + "From: b\n", "x.def:3: the header from stands there twice", "second stage"},
		{"no header", head + "apt-get update\n", `x.def:3: "apt-get update" is no header`, "%post"},
		{"no From", "Bootstrap: docker\n", "x.def:1: Bootstrap: docker without From", "From:"},
		{"an unknown bootstrap", "Bootstrap: dokcer\nFrom: a\n", `x.def:1: there is no bootstrap "dokcer"`, "docker"},
		{"a library", "Bootstrap: library\nFrom: a\n", "x.def:1: Bootstrap: library is not supported", "localimage"},
		{"a hub", "Bootstrap: shub\nFrom: a\n", "x.def:1: Bootstrap: shub", "localimage"},
		{"ORAS", "Bootstrap: oras\nFrom: a\n", "x.def:1: Bootstrap: oras", "localimage"},
		{"debootstrap", "Bootstrap: debootstrap\nMirrorURL: http://m.example.org\n", "x.def:1: Bootstrap: debootstrap without OSVersion", "OSVersion: bookworm"},
		{"no mirror of packages", "Bootstrap: yum\nInclude: yum\n", "x.def:1: Bootstrap: yum without MirrorURL", "repodata"},
		{"no mirror of SUSE's packages", "Bootstrap: zypper\n", "x.def:1: Bootstrap: zypper without MirrorURL", "repodata"},
		{"a version that is not there", dnf + "UpdateURL: http://m.example.org/%{OSVERSION}\n", "x.def:3: UpdateURL has %{OSVERSION}", "OSVersion: 9"},
		{"a release that is not there", dnf + "UpdateURL: http://m.example.org/$releasever/\n", "x.def:3: $releasever is the version", "OSVersion: 9"},
		{"a variable that is not known", "Bootstrap: dnf\nMirrorURL: http://m.example.org/$contentdir\n", "x.def:2: nothing is known here that $contentdir stands for", "$basearch"},
		{"no address", "Bootstrap: dnf\nMirrorURL: m.example.org/os\n", "x.def:2: MirrorURL is not the address", "https://"},
		{"an address of zypper's", "Bootstrap: zypper\nMirrorURL: iso:/?iso=a.iso\n", "x.def:2: MirrorURL is not the address", "file://"},
		{"no address of Debian's", "Bootstrap: debootstrap\nOSVersion: noble\nMirrorURL: ftp://m.example.org\n", "x.def:3: MirrorURL is not the address", "https://"},
		{"a password", dnf + "OtherURL0: http://me:secret@m.example.org/os\n", "x.def:3: OtherURL0 must not hold a user or password", "netrc"},
		{"a group of packages", dnf + "Include: dnf @core\n", `x.def:3: Include: "@core" is not the name of a package`, "one by one"},
		{"a pattern of packages", dnf + "Include: python3*\n", `x.def:3: Include: "python3*"`, "one by one"},
		{"a key by a way that is open", dnf + "GPG: http://m.example.org/KEY\n", "x.def:3: GPG: a key that comes by http", "https://"},
		{"a key with a password", dnf + "GPG: https://a:b@m.example.org/KEY\n", "x.def:3: GPG: this is no address", "netrc"},
		{"two keys", dnf + "Keyring: a\nGPG: b\n", "x.def:4: GPG and Keyring both", "keep one"},
		{"a registration", "Bootstrap: zypper\nOSVersion: 15.6\nProduct: SLES\nUser: a@example.org\nRegcode: x\n", "x.def:3: Product: nothing is registered", "bci-base"},
		{"a code of a registration", "Bootstrap: zypper\nMirrorURL: http://m.example.org/os\nRegcode: x\n", "x.def:3: Regcode: nothing is registered", "MirrorURL"},
		{"modules", "Bootstrap: zypper\nMirrorURL: http://m.example.org/os\nModules: a\n", "x.def:3: Modules: nothing is registered", "OtherURL0"},
		{"a key in the file", "Bootstrap: zypper\nProductPGP: -----BEGIN \\n\\\n  x\nMirrorURL: http://m.example.org/os\n", "x.def:2: ProductPGP: keys are read from files", "GPG:"},
		{"options of dnf", dnf + "Setopt: install_weak_deps=False\n", "x.def:3: Setopt:", "leave the line out"},
		{"a number where none belongs", head + "From2: a\n", `x.def:3: there is no header "from2"`, "did you mean from?"},
		{"arch", "Bootstrap: arch\n", "x.def:1: Bootstrap: arch is not supported", "From: archlinux"},
		{"busybox", "Bootstrap: busybox\n", "x.def:1: Bootstrap: busybox", "From: busybox"},
		{"buildkit", "Bootstrap: buildkit\nFrom: context\nTarget: a\nFrontend: dockerfile.v0\nFilename: Dockerfile\nBuildArgs: A=1\n", "x.def:1: Bootstrap: buildkit", "sconce build -f Dockerfile"},
		{"a Dockerfile", "Bootstrap: dockerfile\nFrom: .\n", "x.def:1: Bootstrap: dockerfile", "Bootstrap: oci"},
		{"fingerprints", head + "Fingerprints: AB\n", "x.def:3: fingerprints", "apptainer verify"},
		{"setup", head + "%setup\na\n", "x.def:3: %setup runs on this machine", "%post"},
		{"pre", head + "%pre\na\n", "x.def:3: %pre runs on this machine", "%post"},
		{"arguments of a script", head + "%post --x\na\n", "x.def:3: %post takes no --x", "-c /bin/bash"},
		{"arguments of another", head + "%runscript -c bash\na\n", "x.def:3: %runscript takes no arguments", "#!"},
		{"too many files", head + "%files\na b c\n", `x.def:4: "a b c" is no pair`, "quotes"},
		{"an open quote", head + "%files\n\"a b\n", "x.def:4: ", "quotes"},
		{"files of no stage", head + "%files from x\na b\n", "x.def:3: there is no stage x above", "Stage: NAME"},
		{"a stage twice", head + "Stage: a\n" + head + "Stage: a\n", "x.def:6: there is a stage a above", "different"},
		{"labels of a script", head + "%post\necho A b >> $APPTAINER_LABELS\n", "x.def:4: labels that %post writes", "%labels"},
		{"a template without value", head + "%post\n{{ A }}\n", "x.def:4: {{ A }} has no value", "--build-arg A=VALUE"},
		{"no argument", head + "%arguments\nA\n", `x.def:4: "A" is no argument`, "NAME=VALUE"},
		{"an app without name", head + "%apprun\na\n", "x.def:3: %apprun names no app", "NAME"},
		{"an app elsewhere", head + "%apprun ../a\na\n", "x.def:3: %apprun names no app", "NAME"},
		{"no text", head + "\x00", "x.def:1: it holds bytes", "UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := evaluate(c.text, nil, "")
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(fault.HintOf(err), c.hint) {
				t.Errorf("got %v\nhint %q\nwant %s\nhint %s", err, fault.HintOf(err), c.want, c.hint)
			}
			if e := new(Error); !errors.As(err, &e) || e.ExitCode() != fault.CodeUsage {
				t.Errorf("got %T, want an *Error that is the user's", err)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	const text = "Bootstrap: docker\nFrom: {{ A }}\nStage: one\n%arguments\nA=x\n" + head + "%post\n{{ B }}\n"
	b, err := evaluate(text, map[string]string{"A": "given", "B": "two"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := told(b); !strings.Contains(got, "docker://given") || !strings.Contains(got, `"two\n"`) {
		t.Errorf("got\n%s\nwithout what was given", got)
	}
	if _, err := evaluate(text, map[string]string{"B": "", "C": ""}, ""); err == nil || !strings.Contains(err.Error(), "build argument C") {
		t.Errorf("got %v for an argument that nothing uses", err)
	}
	if b, err = evaluate(text, map[string]string{"B": ""}, "one"); err != nil || len(b.Stages) != 1 {
		t.Errorf("got %v, %v; want the stage one alone", b, err)
	}
	if _, err := evaluate(text, map[string]string{"B": ""}, "three"); err == nil {
		t.Error("a stage that is not there was built")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(head + "%arguments\nA=1\n%files\n\"a b\" c\n%post -c bash\n{{ A }}\n%appfiles x\na\n%labels\na b\n%test\nx\n")
	f.Add("Bootstrap: scratch\n%files from 0\n")
	f.Add("Bootstrap: zypper\nOSVersion: 15.6\nMirrorURL: http://a/%{OSVERSION}/$basearch\nOtherURL99999999999999999999: file:///a\nInclude: a, b=1\nGPG: https://a/b\n")
	f.Fuzz(func(t *testing.T, text string) {
		b, err := evaluate(text, nil, "")
		if (err == nil) == (b == nil) {
			t.Fatalf("got %v and %v", b, err)
		}
	})
}
