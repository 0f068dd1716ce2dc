package export

import (
	"strings"

	"sconce.dev/sconce/internal/source"
	"sconce.dev/sconce/internal/store"
)

// containerdNameKey is the annotation by which containerd, docker and podman know an image of a layout or archive: its whole name,
// registry and tag included. [refNameKey] has the tag, as BuildKit writes it.
const containerdNameKey = "io.containerd.image.name"

// label is what an image goes by in a layout or archive.
type label struct {
	ref  string // refNameKey; may be empty
	name string // NAME:TAG as a user would say it; may be empty
}

// labelOf takes the name of an image that the target may give a tag of its own, or another name.
func labelOf(t Target, name string) label {
	repository, tag := store.SplitImageName(name)
	switch {
	case strings.ContainsAny(t.Tag, ":/"): // oci-archive:FILE:NAME:TAG, as podman and skopeo write it
		return label{t.Tag, withTag(t.Tag)}
	case repository == "":
		return label{ref: t.Tag}
	case t.Tag != "":
		return label{t.Tag, repository + ":" + t.Tag}
	case tag == "":
		tag = store.DefaultTag
	}
	return label{tag, repository + ":" + tag}
}

// withTag gives a name the tag that it means without one.
func withTag(name string) string {
	if _, tag := store.SplitImageName(name); tag == "" {
		name += ":" + store.DefaultTag
	}
	return name
}

// annotations are what the entry of an index says.
func (l label) annotations() map[string]string {
	all := map[string]string{}
	if l.ref != "" {
		all[refNameKey] = l.ref
	}
	if l.name != "" {
		all[containerdNameKey] = wholeName(l.name)
	}
	return all
}

// wholeName is a name with the registry that docker takes it to be of. Its first component is one when it has a dot or a port, or
// is localhost.
func wholeName(name string) string {
	first, _, nested := strings.Cut(name, "/")
	switch {
	case nested && (strings.ContainsAny(first, ".:") || first == "localhost"):
		return name
	case nested:
		return "docker.io/" + name
	}
	return "docker.io/library/" + name
}

// dockerTags are the names under which docker loads an image; it knows none without a tag.
func dockerTags(t Target, l label) []string {
	switch {
	case l.name != "":
		return []string{l.name}
	case t.Tag != "":
		return []string{withTag(t.Tag)}
	}
	return []string{}
}

// carriesName reports whether what is written says what the image is called.
func (t Target) carriesName() bool {
	return t.Transport == source.OCI || t.Transport == source.OCIArchive || t.Transport == source.DockerArchive
}
