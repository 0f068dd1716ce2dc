package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/source"
)

// unbuilt adds to the error of a name that leads to no image that it is also the name of something here that is built to one. A tag may stand
// behind it.
func (s *Session) unbuilt(name string, err error) error {
	if missing := new(NotInStoreError); errors.As(err, &missing) && len(missing.Meant) > 0 {
		return err
	}
	path, tag, _ := strings.Cut(name, ":")
	if strings.HasPrefix(tag, "//") { // a transport
		return err
	}
	if _, statErr := os.Stat(path); statErr != nil {
		return err
	}
	if hint := s.buildHint(name, path); hint != "" {
		return fault.Hint(err, hint)
	}
	return err
}

// buildHint says how an image is made of what is at path, which name may name a variant of; "" where none is.
func (s *Session) buildHint(name, path string) string {
	if file, _, ok := FindBuildFile(path); ok {
		if file == path {
			return fmt.Sprintf("`sconce build %s` makes an image of it", quote.Word(quote.Operand(file)))
		}
		return fmt.Sprintf("`sconce build %s` makes an image of %s", quote.Word(quote.Operand(path)), file)
	}
	if !hasRecipe(path) && filepath.Base(path) != recipe.FileName {
		return ""
	}
	for _, ref := range []string{name, path} {
		r, err := recipe.Load(ref)
		if err != nil {
			continue
		}
		made := r.Name + ":" + r.Version
		if _, err := s.Store.FindImage(made); err == nil {
			return fmt.Sprintf("%s is a recipe, and its image in the store is %s", ref, made)
		}
		return fmt.Sprintf("%s is a recipe: `sconce build %s` makes its image, %s", ref, quote.Word(quote.Operand(ref)), made)
	}
	return fmt.Sprintf("%s is a recipe: `sconce build %s` makes its image", path, quote.Word(quote.Operand(path)))
}

// mayBeOfRegistry reports whether a name was taken for one of a registry's for want of an image here.
func (s *Subject) mayBeOfRegistry() bool {
	return s.Ref.Transport == source.Docker && !strings.Contains(s.Name, "/")
}
