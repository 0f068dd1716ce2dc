package lint

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/edf"
	"sconce.dev/sconce/internal/sbatch"
	"sconce.dev/sconce/internal/source"
	packed "sconce.dev/sconce/internal/venv"
)

// onTop is a virtual environment in one file, as `sconce venv pack` writes it, which is mounted on top of an image. The file says what it
// was made for.
type onTop struct {
	at     place
	file   string
	record *packed.Record
	name   string // of the image, as it is written
	image  *opened
}

// stack adds an environment's file on top of an image, as far as both can be read here.
func (s *subject) stack(all []onTop, at place, file, image string) []onTop {
	path, ok := s.expanded(file)
	name, known := s.expanded(image)
	if !ok || !known {
		return all
	}
	rec := recordOf(path)
	if rec == nil {
		return all
	}
	im, err := s.linter.image(name)
	if err != nil || !im.known() {
		return all
	}
	return append(all, onTop{at, path, rec, name, im})
}

// expanded puts values in place of variables. A file that is named from here on is one of the directory that jobs are submitted from.
func (s *subject) expanded(text string) (string, bool) {
	name, undefined := edf.Expand(text, s.linter.Lookup)
	if ext := path.Ext(name); !filepath.IsAbs(name) && (ext == ".sqsh" || ext == ".squashfs" || ext == ".sif") {
		if abs, err := filepath.Abs(filepath.Join(s.linter.Dir, name)); err == nil {
			name = abs
		}
	}
	return name, name != "" && len(undefined) == 0
}

// recordOf reads what a packed environment says of itself; nil when it is not here, or says nothing.
func recordOf(file string) *packed.Record {
	c, err := source.OpenClusterFile(file)
	if err != nil {
		return nil
	}
	defer c.Close()
	if c.SIF != nil {
		return nil
	}
	rec, err := packed.ReadRecord(c.FS)
	if err != nil {
		return nil // another's squashfs is no mistake
	}
	return rec
}

// packedVenvs are the packed environments that a file mounts, each with the image below it.
func (s *subject) packedVenvs() []onTop {
	switch {
	case s.edf != nil:
		return s.packedInEDF()
	case s.script == nil:
		return nil
	}
	all := s.packedInUenv(s.script.Options())
	for _, c := range s.sruns() {
		switch runtimeOf(c) {
		case uenv:
			all = append(all, s.packedInUenv(c.Options)...)
		case pyxis:
			hook, set := s.set(packed.HookVariable)
			image, ok := sbatch.Find(c.Options, "container-image")
			if set && ok {
				all = s.stack(all, s.in(hook.At), beforeTarget(hook.Value), image.Value)
			}
		default:
			all = append(all, s.packedInProgram(c.Command)...)
		}
	}
	return all
}

// beforeTarget is FILE of FILE[:DIR[:FLAGS]].
func beforeTarget(text string) string {
	file, _, _ := strings.Cut(text, ":/")
	return file
}

func (s *subject) packedInEDF() []onTop {
	var all []onTop
	for _, v := range s.mounts() {
		if m := edf.ParseMount(v.Text); slices.Contains(m.Flags(), "sqsh") && s.env != nil {
			all = s.stack(all, s.in(v.At.Offset), m.Source(), s.env.Text(edf.Image))
		}
	}
	return all
}

// packedInUenv are the files that are mounted beside the first one: --uenv=FILE,FILE:DIR. A label in place of that is no image that anybody
// but uenv finds.
func (s *subject) packedInUenv(options []sbatch.Option) []onTop {
	o, ok := sbatch.Find(options, "uenv")
	files := strings.Split(o.Value, ",")
	if !ok || !isPath(files[0]) {
		return nil
	}
	var all []onTop
	for _, beside := range files[1:] {
		all = s.stack(all, s.in(o.At), beforeTarget(beside), beforeTarget(files[0]))
	}
	return all
}

// starters are programs that start a command in an image, by their first two words, with the options that take the next word.
var starters = map[string][]string{
	"apptainer exec": apptainerTakes, "apptainer run": apptainerTakes, "singularity exec": apptainerTakes, "singularity run": apptainerTakes,
	"sconce run": {"-B", "--bind", "-e", "--env", "--env-file", "-w", "--workdir", "-u", "--user", "--hostname", "--cluster", "--venv", "--in-job", "--unpack", "--platform"},
}

// Apptainer's manual page "apptainer exec".
var apptainerTakes = []string{
	"-B", "--bind", "-H", "--home", "-S", "--scratch", "-W", "--workdir", "-o", "--overlay", "--env", "--env-file", "--mount", "--pwd", "--cwd", "--app",
	"--fusemount", "--hostname", "--network", "--network-args", "--dns", "--security", "--add-caps", "--drop-caps",
}

// packedInProgram are the files that a program mounts which starts a command in an image: apptainer exec -B FILE:DIR:image-src=/, and
// sconce run --venv=FILE[:DIR].
func (s *subject) packedInProgram(words []sbatch.Word) []onTop {
	if len(words) < 2 {
		return nil
	}
	takes, ok := starters[path.Base(words[0].Text)+" "+words[1].Text]
	if !ok {
		return nil
	}
	type mount struct {
		at   int
		file string
	}
	var mounts []mount
	for i := 2; i < len(words); i++ {
		w := words[i]
		if !strings.HasPrefix(w.Text, "-") {
			var all []onTop
			for _, m := range mounts {
				all = s.stack(all, s.in(m.at), m.file, w.Text)
			}
			return all
		}
		name, value, given := strings.Cut(w.Text, "=")
		if !given && slices.Contains(takes, name) && i+1 < len(words) {
			i++
			value = words[i].Text
		}
		isImage := (name == "-B" || name == "--bind") && strings.Contains(value, ":image-src=/")
		if name == "--venv" || isImage {
			mounts = append(mounts, mount{w.At, beforeTarget(value)})
		}
	}
	return nil
}
