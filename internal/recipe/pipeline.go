package recipe

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/attest"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/reach"
)

// PipelineFile is the name of a pipeline in its directory.
const PipelineFile = "pipeline.toml"

// Pipeline is what a team wrote about all of its images together.
type Pipeline struct {
	Path string `toml:"-"` // the file
	Dir  string `toml:"-"` // its directory, absolute: patterns start here

	Recipes  []string `toml:"recipes"`  // patterns of directories and files of recipes
	Staging  string   `toml:"staging"`  // HOST/PATH, below which each image has a repository of its name
	Stable   []string `toml:"stable"`   // likewise; where users take images from
	Mutable  []string `toml:"mutable"`  // patterns of versions that are written again
	Clusters []string `toml:"clusters"` // on which tests run that say nothing else
	Branch   string   `toml:"branch"`
	Sign     string   `toml:"sign"` // "env:NAME" or "file:PATH", which is absolute once it is loaded; "": nothing is signed

	Trust []attest.Trusted `toml:"trust"` // other keys than that, whose signatures count

	Untested string `toml:"untested"`
	Keep     Keep   `toml:"keep"`
	CI       CI     `toml:"ci"`
}

// Keep says which canonical images stay when a pipeline is cleaned up.
type Keep struct {
	Canonical string `toml:"canonical"` // how long, as "30d"; "" is for ever
	Newest    int    `toml:"newest"`    // how many of each variant stay in any case
}

// CI is what a site's own jobs look like. Its tables are copied into jobs as they are.
type CI struct {
	Gitlab GitlabCI `toml:"gitlab"`
	Github GithubCI `toml:"github"`
}

// GitlabCI are parts of a GitLab pipeline.
type GitlabCI struct {
	Include   any `toml:"include"`
	Default   any `toml:"default"`
	Variables any `toml:"variables"`
	Build     any `toml:"build"`
	Test      any `toml:"test"`
	Light     any `toml:"light"`
}

// GithubCI are parts of jobs of GitHub's actions.
type GithubCI struct {
	Build any `toml:"build"`
	Test  any `toml:"test"`
	Light any `toml:"light"`
}

// Allow is the value of untested by which images are published that nothing tests.
const Allow = "allow"

// DefaultBranch is the branch from which images are promoted.
const DefaultBranch = "main"

// pipelinePath is where the keys of a pipeline are in the table of keys.
const pipelinePath = "pipeline"

var pipelineShape = sync.OnceValue(func() *shape {
	s := shapeOf(reflect.TypeFor[Pipeline](), "", pipelinePath)
	s.header = ""
	s.walk(func(s *shape) {
		if s.path != pipelinePath { // as the file has it
			s.header = strings.Replace(s.header, "["+pipelinePath+".", "[", 1)
			s.home = strings.Replace(strings.Replace(s.home, "["+pipelinePath+".", "[", 1), "["+pipelinePath+"]", "", 1)
			s.label = strings.TrimPrefix(s.path, pipelinePath+".")
		}
	})
	return s
})

// FindPipeline returns the pipeline file of a directory, or of the nearest one above it that has one. The error wraps fs.ErrNotExist
// when there is none.
func FindPipeline(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		file := filepath.Join(at, PipelineFile)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
		if at == filepath.Dir(at) {
			return "", fault.Hint(fmt.Errorf("no %s in %s or above: %w", PipelineFile, dir, fs.ErrNotExist), "docs/guide/pipeline.md shows one to start from")
		}
	}
}

// LoadPipeline reads the pipeline file at path. Mistakes in it come back as from Load.
func LoadPipeline(path string) (*Pipeline, error) {
	data, err := read(path)
	if err != nil {
		return nil, fault.Usage(err)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	c := newChecker(data, path, dir)
	p := c.pipeline()
	if err := c.err(); err != nil {
		return nil, err
	}
	p.Path, p.Dir = path, dir
	if file, ok := strings.CutPrefix(p.Sign, "file:"); ok {
		p.Sign = "file:" + resolve(dir, file)
	}
	if p.Branch == "" {
		p.Branch = DefaultBranch
	}
	return p, nil
}

func (c *checker) pipeline() *Pipeline {
	if !c.isTOML() {
		return nil
	}
	c.top, c.doc = pipelineShape(), readDocument(c.source)
	c.checkTable(c.doc, c.top)
	p := &Pipeline{}
	d := toml.NewDecoder(bytes.NewReader(c.source))
	if len(c.problems) == 0 {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(p); err != nil {
		c.addDecodeError(err)
		return nil
	}
	c.validatePipeline(p)
	return p
}

func (c *checker) validatePipeline(p *Pipeline) {
	if len(p.Recipes) == 0 && c.find("recipes") == nil && !c.isMisspelt("", "recipes") {
		c.add(span{}, `add recipes = ["images/*"]`, "the pipeline has no \"recipes\"")
	}
	if p.Staging == "" && !c.isMisspelt("", "staging") {
		c.add(span{}, `add staging = "registry.example.org/team/ci"`, "the pipeline has no \"staging\"")
	}
	c.checkRegistry(p.Staging, "staging", c.at("staging"))
	for i, s := range p.Stable {
		c.checkRegistry(s, "stable", c.atItem(i, "stable"))
	}
	for i := range p.Trust {
		if p.Trust[i].Key == "" && c.find("trust") != nil {
			c.add(c.atItem(i, "trust"), `add key = "team.pub"`, "trust: an entry names no \"key\"")
		}
		if err := p.Trust[i].CheckDays(); err != nil {
			c.add(c.atItem(i, "trust"), "", "trust: %v", err)
		}
	}
	for _, list := range []string{"recipes", "mutable"} {
		if n := c.find(list); n != nil {
			for _, item := range n.items {
				if _, err := filepath.Match(item.text, ""); err != nil {
					c.add(item.value, "", "%s: %q is not a pattern", list, item.text)
				}
			}
		}
	}
}

// checkRegistry wants the registry spelled out.
func (c *checker) checkRegistry(repository, name string, at span) {
	host, _, _ := strings.Cut(repository, "/")
	if repository == "" || host == "localhost" || strings.ContainsAny(host, ".:") {
		return
	}
	c.add(at, "put the registry first, such as registry.example.org/"+repository, "%s %q names no registry", name, repository)
}

// Paths lists the recipes of the pipeline, relative to its directory, in the order of its patterns: directories with a sconce.toml, and
// files. A pattern that matches none is an error.
func (p *Pipeline) Paths() ([]string, error) {
	var all []string
	bounds := reach.InRepository("the pipeline", p.Dir)
	for _, pattern := range p.Recipes {
		found, err := filepath.Glob(resolve(p.Dir, pattern))
		if err != nil {
			return nil, fmt.Errorf("%s: recipes: %q: %w", p.Path, pattern, err)
		}
		before := len(all)
		for _, path := range found {
			if info, err := os.Stat(fileOf(path)); err != nil || !info.Mode().IsRegular() {
				continue
			}
			if err := cmp.Or(bounds.Check(path), bounds.Check(fileOf(path))); err != nil {
				return nil, fmt.Errorf("%s: recipes: %q: %w", p.Path, pattern, err)
			}
			rel, err := filepath.Rel(p.Dir, path)
			if err != nil {
				return nil, err
			}
			if strings.HasPrefix(rel, "-") || strings.ContainsRune(rel, ':') || strings.ContainsFunc(rel, quote.Harmful) {
				return nil, fault.Usage(fault.Hint(fmt.Errorf("%s: recipes: %q cannot be the name of an image in commands: it begins with a -, or holds a colon or a control character", p.Path, rel),
					"rename the directory, or name the others under recipes"))
			}
			if !slices.Contains(all, rel) {
				all = append(all, rel)
			}
		}
		if len(all) == before {
			return nil, fault.Usage(fault.Hint(fmt.Errorf("%s: recipes: no recipe matches %q", p.Path, pattern), "a recipe is a directory with a "+FileName))
		}
	}
	return all, nil
}

// PipelineSchemaFile is the name that the schema of pipelines goes by.
const PipelineSchemaFile = "sconce-pipeline.schema.json"

// PipelineSchema returns the JSON Schema of a pipeline.
func PipelineSchema() ([]byte, error) {
	s, err := schemaOf(pipelineShape())
	if err != nil {
		return nil, err
	}
	s.Schema, s.ID, s.Title = draft, PipelineSchemaFile, "sconce pipeline"
	s.Description = "The images of a team; see docs/guide/pipeline.md."
	s.Required = []string{"recipes", "staging"}
	return s.write()
}
