package lock

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sconce.dev/sconce/internal/child"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/uv"
)

// uv finds uv. Where it has to be brought it comes from the indexes that r's packages come from.
func (o Options) uv(r *recipe.Recipe) uv.Finder {
	return uv.Finder{
		Store: o.Store, Fetch: o.Fetch, Asked: o.UV, Header: Authorizer(r),
		Indexes: func() []string { return Indexes(r) },
	}
}

// Indexes lists the package indexes that count for r, as uv's and pip's configuration name them, the first to ask first. When none is
// in the place of the usual one, that is among them, if there is a pip to say which it is.
func Indexes(r *recipe.Recipe) []string {
	var first, further []string // in place of the usual index, beside it
	words := func(name string) []string {
		return strings.FieldsFunc(os.Getenv(name), func(c rune) bool { return c == ' ' || c == ',' || c == '\n' })
	}
	first = append(words("UV_DEFAULT_INDEX"), words("UV_INDEX_URL")...)
	further = append(words("UV_INDEX"), words("UV_EXTRA_INDEX_URL")...)
	for _, s := range userSettings(r) {
		f, more := s.indexes()
		first, further = append(first, f...), append(further, more...)
	}
	if len(first) == 0 {
		pip := readPip()
		further = append(further, pip.extra...)
		if pip.index != "" {
			first = append(first, pip.index)
		}
	}
	if len(first) == 0 {
		first = []string{pipDefault()}
	}
	all := slices.Concat(first, further)
	for i, address := range all {
		if name, rest, named := strings.Cut(address, "="); named && !strings.ContainsAny(name, ":/") {
			all[i] = rest // UV_INDEX=name=https://…
		}
	}
	return slices.DeleteFunc(all, func(a string) bool { return !strings.HasPrefix(a, "http") })
}

// indexes lists the indexes in s that take the place of the usual one, and those beside it.
func (s *uvSettings) indexes() (first, further []string) {
	if s == nil {
		return nil, nil
	}
	for _, index := range s.Index {
		if index.Default {
			first = append(first, index.URL)
		} else {
			further = append(further, index.URL)
		}
	}
	if s.IndexURL != "" {
		first = append(first, s.IndexURL)
	}
	f, more := s.Pip.indexes()
	return append(first, f...), append(append(further, s.ExtraIndexURL...), more...)
}

// pipDefault returns the index that pip takes when nobody says, which is uv's, too. "" where there is no pip.
var pipDefault = sync.OnceValue(func() string {
	ctx, cancel := context.WithTimeout(context.Background(), pipPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "python3", "-I", "-c", "from pip._internal.models.index import PyPI; print(PyPI.simple_url)")
	var out strings.Builder
	cmd.Dir, cmd.Stdout = "/", &out
	if child.Group(cmd, syscall.SIGKILL) != nil {
		return ""
	}
	return strings.TrimSpace(out.String())
})

// pipPatience bounds how long Python may take to import a module of pip, from a slow disk.
const pipPatience = 30 * time.Second
