package facts

import (
	"context"
	"fmt"
	"path"
	"strings"

	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/lazyregexp"
)

var libraryName = lazyregexp.New(`\.so(?:\.\d+)*$`)

// unusable looks at the files that are called libraries but are no ELF files.
func (l *linker) unusable(ctx context.Context) ([]LinkProblem, error) {
	var problems []LinkProblem
	for _, i := range l.facts.Paths {
		if i.Type != layer.Regular || l.objects[i.Path] != nil || !libraryName.MatchString(path.Base(i.Path)) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		why := l.noLibrary(i)
		if why == "" {
			continue
		}
		problems = append(problems, LinkProblem{
			Path: i.Path, Role: l.roleByName(i.Path), In: i.Path, Kind: "unusable", Library: i.Path,
			Text: fmt.Sprintf("%s cannot be used: %s", rooted(i.Path), why),
		})
	}
	return problems, nil
}

// roleByName is the role of a file that is no ELF file.
func (l *linker) roleByName(name string) string {
	base := path.Base(name)
	if siteOf(name, l.facts.Pythons) != "" && !strings.HasPrefix(base, "lib") && (taggedModule.MatchString(base) || plainModule.MatchString(base)) {
		return RoleModule
	}
	return RoleLibrary
}

// noLibrary says why a file that is called one cannot be a library; "" when it may be something else.
func (l *linker) noLibrary(i Info) string {
	head := l.beginning(rooted(i.Path), 64)
	switch {
	case i.Size == 0:
		return "it is empty"
	case strings.HasPrefix(head, "version https://git-lfs"):
		return "it is a pointer of Git LFS, not the file itself"
	case !elfx.IsELF([]byte(head)):
		return "" // a linker's script, most likely
	}
	h, err := l.facts.Root.Open(rooted(i.Path))
	if err != nil {
		return ""
	}
	defer h.Close()
	if _, err = elfx.Open(h, h.Size()); err != nil && isUnusable(err) {
		return err.Error()
	}
	return ""
}
