package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/remotecache"
	"sconce.dev/sconce/internal/store"
)

// CachePermissions say which registries a recipe's [cache] may name. A recipe may be a stranger's, and the results in its registry are found by
// a hash of what they are made from, not of what they hold: a build that reads them records them in the user's store, where later builds,
// of the user's own recipes, find them.
type CachePermissions struct {
	Read, Push       []string // registries and repositories, HOST or HOST/PATH; those of Push are read as well
	ReadAll, PushAll bool     // any that a recipe names; PushAll means both
}

func (c CachePermissions) pushes(repository string) bool {
	return c.PushAll || covers(c.Push, repository)
}

func (c CachePermissions) reads(repository string) bool {
	return c.ReadAll || covers(c.Read, repository) || c.pushes(repository)
}

// covers reports whether a repository, or what it is below, is in a list.
func covers(all []string, repository string) bool {
	return slices.ContainsFunc(all, func(allowed string) bool {
		return repository == allowed || strings.HasPrefix(repository, allowed+"/")
	})
}

// sharedCache is the cache that a recipe names, as far as the user lets it be used.
func (s *Session) sharedCache(c recipe.Cache) (*store.Shared, error) {
	remote, err := remotecache.New(c.Registry, remotecache.Options{Fetch: s.Fetch})
	if err != nil {
		return nil, err
	}
	name := remote.Name()
	if !s.cache.reads(name) {
		return &store.Shared{Unread: func(ctx context.Context) { s.noteUnread(ctx, name) }}, nil
	}
	shared := &store.Shared{Remote: remote, Push: c.Pushes() && s.cache.pushes(name)}
	if c.Pushes() && !shared.Push {
		shared.Unsent = fmt.Sprintf("what is built is not sent to %s, as only the recipe asks for it: add `--push-cache`, or push = [%q] under [cache] in config.toml", name, name)
	}
	return shared, nil
}

// noteUnread says, once for each cache, that a recipe names one in vain.
func (s *Session) noteUnread(ctx context.Context, name string) {
	s.mu.Lock()
	told := s.unread[name]
	if s.unread == nil {
		s.unread = make(map[string]bool)
	}
	s.unread[name] = true
	s.mu.Unlock()
	if !told {
		progress.Notef(ctx, fmt.Sprintf("the cache %s is not used, as only the recipe names it: if you trust everybody who writes to it, add `--read-cache`, or read = [%q] under [cache] in config.toml", name, name))
	}
}
