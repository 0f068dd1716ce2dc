package containerfile

import (
	"context"
	"net/url"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"

	"sconce.dev/sconce/internal/fileop"
	"sconce.dev/sconce/internal/store"
)

// copyFiles reads COPY.
func (s *stage) copyFiles(ctx context.Context, c *instructions.CopyCommand, line int) (*Copy, error) {
	out := &Copy{From: Source{Stage: -1}, Copy: fileop.Copy{
		Chown: c.Chown, Chmod: c.Chmod, Parents: c.Parents, Exclude: c.ExcludePatterns, Link: c.Link,
	}}
	for _, source := range c.SourcePaths {
		if isURL(source) || isGit(source) {
			return nil, wrongf("ADD takes URLs", "COPY %s: COPY takes files only", source)
		}
	}
	if err := s.sources(c.SourcesAndDest, out, line); err != nil {
		return nil, err
	}
	if c.From == "" {
		out.From.Context = len(out.Sources) > 0
		return out, nil
	}
	var err error
	out.From, err = s.source(ctx, line, c.From)
	return out, err
}

// addFiles reads ADD.
func (s *stage) addFiles(c *instructions.AddCommand, line int) (*Copy, error) {
	out := &Copy{From: Source{Stage: -1}, Copy: fileop.Copy{
		Chown: c.Chown, Chmod: c.Chmod, Exclude: c.ExcludePatterns, Link: c.Link, Extract: c.Unpack == nil || *c.Unpack,
	}}
	if err := s.sources(c.SourcesAndDest, out, line); err != nil {
		return nil, err
	}
	if len(out.URLs) > 0 && c.Unpack != nil && *c.Unpack {
		return nil, wrongf("RUN with curl and tar does it", "ADD --unpack of a URL is not supported")
	}
	out.From.Context = len(out.Sources) > 0
	if c.Checksum == "" {
		return out, nil
	}
	if len(out.URLs) != 1 || len(out.Sources)+len(out.Inline) > 0 {
		return nil, wrongf("", "ADD --checksum is about one URL")
	}
	digest, err := store.ParseDigest(strings.ToLower(c.Checksum))
	if err != nil {
		return nil, wrongf("", "ADD --checksum: %s", err)
	}
	out.URLs[0].Digest = digest
	return out, nil
}

// sources sorts what COPY or ADD lists, and finds the destination.
func (s *stage) sources(c instructions.SourcesAndDest, out *Copy, line int) error {
	for _, source := range c.SourcePaths {
		switch {
		case source == "":
			s.warn(line, "write . if that is meant; or a variable in it has no value", "the name of a source is empty, which means all there is")
			out.Sources = append(out.Sources, ".")
		case isGit(source):
			return wrongf("use RUN git clone, or ADD of an archive", "ADD of a git repository is not supported: %s", source)
		case isURL(source):
			if u, err := url.Parse(source); err != nil || u.Host == "" {
				return wrongf("", "%s is no URL", source)
			}
			out.URLs = append(out.URLs, fileop.URL{Address: source})
		default:
			if source = strings.TrimLeft(source, "/"); source == "" {
				source = "." // all of it
			}
			out.Sources = append(out.Sources, source)
		}
	}
	for _, doc := range c.SourceContents {
		out.Inline = append(out.Inline, fileop.InlineFile{Name: doc.Path, Content: []byte(doc.Data)})
	}
	many := len(out.Sources)+len(out.URLs)+len(out.Inline) > 1
	out.Dest = s.absolute(c.DestPath)
	if out.Dest != "/" && (many || directoryMeant(c.DestPath)) {
		out.Dest += "/"
	}
	return nil
}

// directoryMeant reports whether a destination can only be a directory.
func directoryMeant(dest string) bool {
	last := dest[strings.LastIndexByte(dest, '/')+1:]
	return last == "" || last == "." || last == ".."
}

func isURL(source string) bool {
	return strings.HasPrefix(source, "http://") || strings.HasPrefix(source, "https://")
}

// isGit reports whether a source is a git repository, by the rules of the field: a protocol of git, or a URL whose path
// ends in .git.
func isGit(source string) bool {
	for _, prefix := range []string{"git@", "git://", "ssh://"} {
		if strings.HasPrefix(source, prefix) {
			return true
		}
	}
	address, _, _ := strings.Cut(source, "#")
	address, _, _ = strings.Cut(address, "?")
	return isURL(source) && strings.HasSuffix(address, ".git")
}
