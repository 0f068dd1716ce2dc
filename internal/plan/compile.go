package plan

import (
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lock"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/wheelbuild"
)

// CompileStep builds a package that has no wheel, and makes a layer of the wheel.
//
// Its key says that the image is another one. The wheel has a key of its own, which knows nothing of what else is in the image:
// see package wheelbuild.
type CompileStep struct {
	Key       Key
	Package   wheelbuild.Package
	Requested bool      // see python.Item
	Base      *BaseStep // the image that it is built in; nil: the stage itself
	Python    python.Interpreter
	Target    python.Target
	Bytecode  bool
	Options   python.LayerOptions
}

// planCompiles plans the packages that have to be built. Their layers are made as that of like.
func (p *Plan) planCompiles(r *recipe.Recipe, o Options, like *WheelsStep) {
	below := p.foundation()
	for _, c := range o.Compiles {
		s := &CompileStep{
			Package: c.Package, Requested: c.Requested, Python: like.Target.Python, Target: like.Target, Bytecode: like.Bytecode, Options: like.Options,
		}
		if c.Base != nil {
			s.Base = &BaseStep{Key: Key(c.Base.Image.Key()), Pinned: c.Base.Image, Platform: p.Platform, Reference: lock.CompileReference(r, c)}
			s.Python = c.Base.Interpreter(s.Python)
		}
		s.Key = s.key(below, o.Sources[c.Name])
		p.Compiles = append(p.Compiles, s)
	}
}

// key leaves out what only decides how long it takes, and where things are.
func (s *CompileStep) key(below []Key, source store.Digest) Key {
	p := s.Package
	p.Jobs, p.MemoryPerJob, p.Source.URL, p.Source.Path = 0, 0, "", ""
	requires := make([]store.Digest, len(p.Requires))
	for i, w := range p.Requires {
		requires[i] = w.Digest
	}
	p.Requires = nil
	var base Key
	if s.Base != nil {
		base = s.Base.Key
	}
	return keyOf("compile", compileVersion, struct {
		Below, Base any
		Package     wheelbuild.Package
		Requires    []store.Digest
		Source      store.Digest
		Requested   bool
		Python      python.Interpreter
		Bytecode    bool
		Compression layer.Compression
	}{below, base, p, requires, source, s.Requested, s.Python, s.Bytecode, s.Options.Compression})
}

func (s *Stage) compileKeys() []Key {
	var keys []Key
	for _, c := range s.Compiles {
		keys = append(keys, c.Key)
	}
	return keys
}
