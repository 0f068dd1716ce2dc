package lock

import (
	"archive/zip"
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/wheelbuild/catalog"
)

// How uv learns what sources depend on, without any of their code being run.
//
// What a source promises (core metadata 2.2, pyproject.toml) uv reads by itself. For any other it starts Python with a few lines
// that import the source's build backend and have it write the metadata (PEP 517, prepare_metadata_for_build_wheel). Here that
// Python finds no standard library (see nothingRuns) and one module of ours, encodings, which Python imports before all
// others. The module runs uv's lines with a backend of its own and ends the process. That backend asks this process, through
// a pipe, and this process reads the files of the source: PKG-INFO above all, where the author's machine recorded the same. Where
// uv asks for a wheel instead (of hatchling's dynamic projects), it gets one that holds the metadata alone.
// A Python that does not find the module ends before it reads a line.
//
// uv asks for many sources at once, and resolves once, as it does for who lets it run them. What is answered stays out of what
// uv keeps for others, since it is kept under the settings that it was made with (answeredHere).

//go:embed pythonhome/encodings/__init__.py
var encodingsModule []byte

// answeredHere is a setting of build backends by which uv keeps these answers apart.
const answeredHere = "sconce=recorded"

// sourceReader answers for the build backends of sources.
type sourceReader struct {
	dir    string
	pipe   *os.File
	answer func(tree string) (dependencyMetadata, error)
	work   sync.WaitGroup
}

// newSourceReader starts answering. dir is where questions and answers go; tree is the directory of an unpacked source.
func newSourceReader(dir string, answer func(tree string) (dependencyMetadata, error)) (*sourceReader, error) {
	r := &sourceReader{dir: dir, answer: answer}
	module := filepath.Join(dir, "python", "encodings")
	err := os.MkdirAll(module, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(module, "__init__.py"), encodingsModule, 0o600)
	}
	pipe := filepath.Join(dir, "asked")
	if err == nil {
		err = unix.Mkfifo(pipe, 0o600)
	}
	if err == nil {
		r.pipe, err = os.OpenFile(pipe, os.O_RDWR|unix.O_NONBLOCK, 0) // for both ends: it never ends by itself
	}
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	r.work.Go(r.serve)
	return r, nil
}

// environment is what makes a Python that uv starts ask here.
func (r *sourceReader) environment() []string {
	return []string{"PYTHONPATH=" + filepath.Join(r.dir, "python"), "SCONCE_SOURCES=" + r.dir, "PYTHONDONTWRITEBYTECODE=1"}
}

// Close ends it when all answers are given.
func (r *sourceReader) Close() error {
	err := r.pipe.Close()
	r.work.Wait()
	return err
}

func (r *sourceReader) serve() {
	for lines := bufio.NewScanner(r.pipe); lines.Scan(); {
		if number, err := strconv.Atoi(lines.Text()); err == nil {
			r.work.Go(func() { r.reply(number) })
		}
	}
}

// reply answers the Python that has this process number.
func (r *sourceReader) reply(number int) {
	name := filepath.Join(r.dir, strconv.Itoa(number))
	asked, err := os.ReadFile(name + ".ask")
	if err != nil {
		return
	}
	what, tree, _ := strings.Cut(string(asked), "\n")
	m, err := r.answer(tree)
	text := "+" + m.text()
	if err == nil && what == "wheel" {
		var wheel []byte
		wheel, err = m.wheel()
		text = "+" + m.wheelName() + "\n" + string(wheel)
	}
	if err != nil {
		text = "-" + err.Error()
	}
	if os.WriteFile(name+".part", []byte(text), 0o600) == nil {
		_ = os.Rename(name+".part", name+".answer") // else Python gives up, and uv says so
	}
}

// text returns the metadata in the form of a METADATA file.
func (m dependencyMetadata) text() string {
	var b strings.Builder
	field := func(name, value string) {
		if value = strings.Join(strings.Fields(value), " "); value != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, value)
		}
	}
	field("Metadata-Version", "2.1")
	field("Name", m.Name)
	field("Version", m.Version)
	field("Requires-Python", m.RequiresPython)
	for _, requirement := range m.RequiresDist {
		field("Requires-Dist", requirement)
	}
	for _, extra := range m.ProvidesExtra {
		field("Provides-Extra", extra)
	}
	return b.String()
}

// wheelName is the file name of a wheel with this metadata.
func (m dependencyMetadata) wheelName() string { return m.wheelStem() + "-py3-none-any.whl" }

// wheelStem is what a wheel's name begins with (packaging.python.org, "Binary distribution format", "Escaping and Unicode").
func (m dependencyMetadata) wheelStem() string {
	return strings.ReplaceAll(m.Name, "-", "_") + "-" + strings.ReplaceAll(m.Version, "-", "_")
}

// wheel returns a wheel that holds the metadata and nothing else.
func (m dependencyMetadata) wheel() ([]byte, error) {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, file := range [][2]string{
		{"METADATA", m.text()}, {"WHEEL", "Wheel-Version: 1.0\nGenerator: sconce\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}, {"RECORD", ""},
	} {
		w, err := z.Create(m.wheelStem() + ".dist-info/" + file[0])
		if err == nil {
			_, err = io.WriteString(w, file[1])
		}
		if err != nil {
			return nil, err
		}
	}
	err := z.Close()
	return b.Bytes(), err
}

// readTree reads what the unpacked source in a directory says of itself. A link that leads out of it is not followed.
func readTree(dir string) (python.SourceInfo, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return python.SourceInfo{}, err
	}
	defer root.Close()
	return python.ReadSourceDir(root.FS())
}

// answer is what uv is told of the source in a directory. Why there is no answer is kept, see [locker.unusable].
func (k *locker) answer(tree string) (dependencyMetadata, error) {
	info, err := readTree(tree)
	if err == nil && info.Name == "" {
		err = errors.New("the source says no name")
	}
	if err != nil {
		return dependencyMetadata{}, err
	}
	m, err := k.declared(info.Name, info)
	if err == nil {
		return m, nil
	}
	if k.lenient {
		m.RequiresDist = nil
		return m, nil
	}
	k.sources.cannotUse(unusableSource{Name: python.NormalizeName(info.Name), Version: info.Version, Reason: err})
	return m, err
}

// declared puts together what uv is told of a source: what the recipe says of its dependencies, else what its source promises, else
// what is known, else what its author's machine recorded.
func (k *locker) declared(name string, info python.SourceInfo) (dependencyMetadata, error) {
	m := dependencyMetadata{
		Name: python.NormalizeName(name), Version: info.Version, RequiresPython: info.RequiresPython, RequiresDist: info.Requires, ProvidesExtra: info.Extras,
	}
	if m.Version == "" {
		m.Version = unknownVersion
	}
	facts, _ := catalog.Lookup(m.Name)
	switch own := k.recipe.Python.Compile[m.Name].Depends; {
	case own != nil:
		m.RequiresDist = own
	case info.Certainty == python.Static:
	case info.Certainty == python.Unknown && facts.Depends != nil:
		m.RequiresDist = *facts.Depends
	case info.Certainty == python.Unknown:
		return m, undeclared(name)
	}
	if m.RequiresDist == nil {
		m.RequiresDist = []string{}
	}
	return m, nil
}
