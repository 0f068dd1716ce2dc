package source

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/quote"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/store"
)

// Transport is a kind of place that images come from.
type Transport string

// The transports. Their names are the prefixes users write.
const (
	Docker        Transport = "docker" // a registry
	OCI           Transport = "oci"    // a directory in the OCI image layout
	OCIArchive    Transport = "oci-archive"
	DockerArchive Transport = "docker-archive"
	Tar           Transport = "tar"  // a root file system as a tar, compressed or not
	Dir           Transport = "dir"  // a root file system as a directory
	Squashfs      Transport = "sqsh" // a squashfs file, as enroot and the Container Engine use it
	SIF           Transport = "sif"  // a SIF file, as Apptainer uses it
	Store         Transport = "store"
)

// Ref names an image. It is made by [Parse] and written by String in a form that Parse reads.
type Ref struct {
	Transport Transport
	Value     string       // registry: HOST/REPOSITORY; store: the name; else the path
	Tag       string       // in the registry, the layout or the archive; "" where there is a choice of one
	Digest    store.Digest // of the manifest, or in a registry of an index; "" when not pinned
	User      string       // whose login at the registry to use; "" means the first found
}

// String returns the reference with its transport.
func (r Ref) String() string {
	var b strings.Builder
	b.WriteString(string(r.Transport) + ":")
	if r.Transport == Docker {
		b.WriteString("//")
	}
	if r.User != "" {
		b.WriteString(r.User + "@")
	}
	b.WriteString(r.Value)
	if r.Tag != "" {
		b.WriteString(":" + r.Tag)
	}
	if r.Digest != "" {
		b.WriteString("@" + string(r.Digest))
	}
	return b.String()
}

// name is the value with the tag, as the store knows images.
func (r Ref) name() string {
	if r.Tag == "" {
		return r.Value
	}
	return r.Value + ":" + r.Tag
}

// Path is the file or directory of this machine that the image is, "" for one of a registry or a store.
func (r Ref) Path() string {
	if r.Transport == Docker || r.Transport == Store {
		return ""
	}
	return r.Value
}

// host is that of a registry's value.
func (r Ref) host() string {
	host, _, _ := strings.Cut(r.Value, "/")
	return host
}

// Repository is the name of a registry's image without the host.
func (r Ref) Repository() string {
	_, repository, _ := strings.Cut(r.Value, "/")
	return repository
}

// Parse reads a reference with a transport; the path of something that exists, recognised by its content; or the name of
// an image in a registry. enroot's [USER@][REGISTRY#]IMAGE[:TAG] is accepted behind docker://.
func Parse(s string) (Ref, error) {
	ref, err := parse(s)
	if err != nil {
		return Ref{}, fault.Usage(fmt.Errorf("image %q: %w", s, err))
	}
	return ref, nil
}

// ParseIn is Parse for a user who also names images of a store: such a name goes before a registry's, and after the path of
// an image. A directory that is not an image, such as the one that an image was built from, does not count.
func ParseIn(s string, st *store.Store) (Ref, error) {
	other := isOtherFile(s)
	if _, err := os.Lstat(s); !other && err == nil || hasPrefix(s) || looksLikePath(s) {
		ref, err := Parse(s)
		if err != nil || ref.Transport != Docker || hasPrefix(s) {
			return ref, err
		}
	}
	if found, err := st.FindImage(s); err == nil {
		return Ref{Transport: Store, Value: found.Name, Tag: found.Tag, Digest: found.Digest}, nil
	}
	if other {
		return Ref{}, fault.Usage(fault.Hint(fmt.Errorf("the file %q holds no image", s),
			"`sconce build` makes one of a recipe, a Containerfile or a definition file; docker://NAME asks a registry for the image of a name"))
	}
	if err := slip(s, st); err != nil {
		return Ref{}, err
	}
	return Parse(s)
}

// ParseToRun is ParseIn for who runs what is in the image: a name that does not say where it is from is one of the store's, and never
// that of an image that somebody else has put into a registry.
func ParseToRun(s string, st *store.Store) (Ref, error) {
	ref, err := ParseIn(s, st)
	if err != nil || ref.Transport != Docker || ref.Digest != "" || hasPrefix(s) || strings.Contains(s, "#") {
		return ref, err
	}
	host, _, repository := strings.Cut(s, "/")
	switch {
	case !repository:
		return Ref{}, notInStore(s, st)
	case strings.ContainsAny(host, ".:@") || host == "localhost":
		return ref, nil
	}
	return ref, otherTag(s, st)
}

// notInStore is the error for an image that is to be run and that the store does not have.
func notInStore(s string, st *store.Store) error {
	similar, err := st.SimilarImages(s)
	if err != nil {
		similar = nil // a store that cannot be listed has nothing similar
	}
	return &NotInStoreError{Name: s, Meant: similar}
}

// NotInStoreError says that a name may have been meant for an image of the store, which has none of it.
type NotInStoreError struct {
	Name  string           // as it was written
	Meant []store.ImageRef // what the store has that is called nearly so
}

func (e *NotInStoreError) Error() string {
	text := fmt.Sprintf("there is no image %q in the store", e.Name)
	if len(e.Meant) > 0 {
		text += ", but there is " + nameSome(e.Meant)
	}
	return text
}

// Hint says how somebody else's image of that name is asked for.
func (e *NotInStoreError) Hint() string {
	if len(e.Meant) > 0 {
		return "docker://" + e.Name + " asks Docker Hub for its image of that name"
	}
	return "`sconce images` lists those that there are; docker://" + e.Name + " is Docker Hub's image of that name"
}

// isOtherFile reports whether s is the path of a file that no image is in.
func isOtherFile(s string) bool {
	there, err := os.Stat(s)
	if err != nil || !there.Mode().IsRegular() || looksLikePath(s) {
		return false
	}
	_, err = recognise(s)
	return isNothing(err)
}

// slip is an error when s is a mistyped name of an image of the store: that must not lead to somebody else's image, as Docker Hub has one
// for nearly every short name.
func slip(s string, st *store.Store) error {
	if strings.Contains(s, "/") {
		return nil
	}
	if err := otherTag(s, st); err != nil {
		return err
	}
	return otherName(s, st)
}

// otherTag is an error when the store has images of this very name with other tags.
func otherTag(s string, st *store.Store) error {
	name, _ := store.SplitImageName(s)
	similar, err := st.SimilarImages(s)
	if err != nil || len(similar) == 0 || similar[0].Name != name {
		return nil //nolint:nilerr // a store that cannot be listed has no such image
	}
	return &NotInStoreError{Name: s, Meant: similar}
}

// otherName is an error when the store has an image of nearly this name with this very tag.
func otherName(s string, st *store.Store) error {
	_, tag := store.SplitImageName(s)
	similar, err := st.SimilarImages(s)
	similar = slices.DeleteFunc(similar, func(r store.ImageRef) bool { return r.Tag != cmp.Or(tag, store.DefaultTag) })
	if err != nil || len(similar) == 0 {
		return nil //nolint:nilerr // a store that cannot be listed has no such image
	}
	return &NotInStoreError{Name: s, Meant: similar}
}

// nameSome names the first of some images.
func nameSome(images []store.ImageRef) string {
	var names []string
	for _, r := range images {
		names = append(names, r.FullName())
	}
	if len(names) > 3 {
		names = append(names[:3], "others")
	}
	return strings.Join(names, " and ")
}

// Explain adds to an error about ref why what the user wrote, which may have been meant for the store, led to a registry. A nil
// err stays nil.
func Explain(err error, written string, ref Ref, st *store.Store) error {
	if err == nil || ref.Transport != Docker || hasPrefix(written) || fault.HintOf(err) != "" {
		return err
	}
	similar, listErr := st.SimilarImages(written)
	if listErr != nil || len(similar) == 0 {
		if host, _, ok := strings.Cut(written, "/"); ok && strings.ContainsAny(host, ".:#@") {
			return err // it was meant for that registry
		}
		if fetch.Unreached(err) { // which has a hint of its own
			return fmt.Errorf("there is no image %q in the store, and the registry that may have it was not reached: %w", written, err)
		}
		return fault.Hint(err, fmt.Sprintf("there is no image %q in the store (see `sconce images`), so it was looked for in a registry", written))
	}
	return fault.Hint(err, fmt.Sprintf("there is no image %q in the store, but there is %s; it was looked for in a registry", written, nameSome(similar)))
}

func parse(s string) (Ref, error) {
	if s == "" {
		return Ref{}, fmt.Errorf("the name is empty")
	}
	if strings.ContainsFunc(s, quote.Harmful) {
		return Ref{}, fmt.Errorf("the name holds a control character")
	}
	if rest, ok := strings.CutPrefix(s, "docker://"); ok {
		return parseRegistry(rest)
	}
	if transport, rest, ok := strings.Cut(s, ":"); ok {
		switch t := Transport(transport); t {
		case OCI, OCIArchive, DockerArchive:
			return parsePath(t, rest, true)
		case Tar, Dir, Squashfs, SIF:
			return parsePath(t, rest, false)
		case Store:
			return parseStored(rest)
		}
		if err := foreign(transport, rest); err != nil {
			return Ref{}, err
		}
	}
	return parseBare(s)
}

func hasPrefix(s string) bool {
	transport, _, ok := strings.Cut(s, ":")
	switch Transport(transport) {
	case Docker, OCI, OCIArchive, DockerArchive, Tar, Dir, Squashfs, SIF, Store:
		return ok
	}
	return false
}

// foreign explains transports of other programs that are not read here.
func foreign(transport, rest string) error {
	var how string
	switch transport {
	case "docker-daemon", "dockerd":
		how = "save it with `docker save -o image.tar NAME` and use docker-archive:image.tar"
	case "containers-storage", "podman":
		how = "save it with `podman save --format oci-archive -o image.tar NAME` and use oci-archive:image.tar"
	case "library", "shub", "oras":
		how = "it holds SIF files: get one with `apptainer pull image.sif " + quote.Word(transport+":"+rest) + "` and use sif:image.sif"
	case "http", "https":
		if !strings.HasPrefix(rest, "//") {
			return nil
		}
		how = "an image in a registry is written docker://HOST/NAME:TAG; download a file first"
	default:
		return nil
	}
	return fault.Hint(fmt.Errorf("images of %s: are not read", transport), how)
}

// parseBare reads a reference without a transport.
func parseBare(s string) (Ref, error) {
	path, digest := cutDigest(s)
	if _, err := os.Stat(path); err == nil {
		t, err := recognise(path)
		if err == nil {
			return Ref{Transport: t, Value: path, Digest: digest}, nil
		}
		// A directory that happens to be called like an image, "debian", is not meant.
		if looksLikePath(s) || !isNothing(err) {
			return Ref{}, err
		}
	} else if looksLikePath(s) {
		return Ref{}, fault.Hint(fmt.Errorf("no such file: %s", path), nearPath(path))
	}
	return parseRegistry(s)
}

// nearPath asks whether somebody meant what is beside path and nearly called so, "" where nothing is.
func nearPath(path string) string {
	if _, err := os.Lstat(path); err == nil {
		return ""
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return ""
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	near := spelling.Nearest(filepath.Base(path), names)
	if near == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %q?", filepath.Join(filepath.Dir(path), near))
}

func looksLikePath(s string) bool {
	switch filepath.Ext(s) {
	case ".sqsh", ".squashfs", ".sqfs", ".sif": // no image in a registry is called that
		return true
	}
	return filepath.IsAbs(s) || strings.HasPrefix(s, "./") || strings.HasPrefix(s, "../") || s == "." || s == ".."
}

// cutDigest cuts "@sha256:…" off the end.
func cutDigest(s string) (rest string, d store.Digest) {
	i := strings.LastIndex(s, "@sha256:")
	if i < 0 {
		return s, ""
	}
	d, err := store.ParseDigest(s[i+1:])
	if err != nil {
		return s, ""
	}
	return s[:i], d
}

// parsePath reads PATH[:TAG][@DIGEST]. Both may hold colons: the longest path that exists is taken, else what stands
// before the first colon.
func parsePath(t Transport, s string, tagged bool) (Ref, error) {
	rest, digest := cutDigest(s)
	path, tag := rest, ""
	if tagged {
		path, tag = CutTag(rest)
	}
	if path == "" {
		return Ref{}, fmt.Errorf("the path is missing")
	}
	return Ref{Transport: t, Value: path, Tag: tag, Digest: digest}, nil
}

// CutTag cuts PATH[:TAG] in two. Both may hold colons: the longest path that exists is taken, else what stands before
// the first colon.
func CutTag(s string) (path, tag string) {
	for at := len(s); at >= 0; at = strings.LastIndexByte(s[:at], ':') {
		if _, err := os.Stat(s[:at]); err == nil {
			return s[:at], strings.TrimPrefix(s[at:], ":")
		}
	}
	path, tag, _ = strings.Cut(s, ":")
	return path, tag
}

func parseStored(s string) (Ref, error) {
	rest, digest := cutDigest(s)
	value, tag := store.SplitImageName(rest)
	if value == "" && digest == "" {
		return Ref{}, fmt.Errorf("the name is missing")
	}
	return Ref{Transport: Store, Value: value, Tag: tag, Digest: digest}, nil
}

// userForm is what may stand before "@" in enroot's form.
var userForm = lazyregexp.New(`^[A-Za-z0-9$_.+-]+$`)

// parseRegistry reads [USER@][HOST#]NAME[:TAG][@DIGEST] and [USER@][HOST/]NAME[:TAG][@DIGEST].
func parseRegistry(s string) (Ref, error) {
	rest, digest := cutDigest(s)
	user := ""
	if before, after, ok := strings.Cut(rest, "@"); ok {
		if !userForm.MatchString(before) || strings.HasPrefix(after, "sha256:") {
			return Ref{}, fmt.Errorf("%q is neither a user nor a name with a digest sha256:<64 hexadecimal digits>", before)
		}
		user, rest = before, after
	}
	if host, image, ok := strings.Cut(rest, "#"); ok { // enroot
		if host == "" {
			host = "docker.io"
		}
		rest = host + "/" + image
	}
	ref, err := name.ParseReference(rest, name.WithDefaultTag(""), name.WeakValidation)
	if err != nil {
		return Ref{}, fmt.Errorf("it is not a registry's name for an image, and no such file is there: %w", shorten(err))
	}
	tag, _ := ref.(name.Tag)
	out := Ref{
		Transport: Docker, Tag: tag.TagStr(), Digest: digest, User: user,
		Value: registry.CanonicalHost(ref.Context().RegistryStr()) + "/" + ref.Context().RepositoryStr(),
	}
	if out.Tag == "" && out.Digest == "" {
		out.Tag = "latest"
	}
	return out, nil
}

// shorten leaves of the parser's error what fits a line.
func shorten(err error) error {
	const most = 200
	if text := err.Error(); len(text) > most {
		return fmt.Errorf("%s…", strings.ToValidUTF8(text[:most], ""))
	}
	return err
}
