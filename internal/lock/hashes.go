package lock

import (
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
	"sconce.dev/sconce/internal/python"
	"sconce.dev/sconce/internal/recipe"
	"sconce.dev/sconce/internal/store"
)

// Which files a package may come from.
//
// A requirement may say which files it may be met with, by hashes behind it (--hash=sha256:…), or in the fragment of its
// address (#sha256=…). uv reads the former and forgets them when it writes a lock, so they are read here, and what uv chose is
// held against them. The rules are pip's (its documentation, "Secure installs"): one hash anywhere, or --require-hashes, makes
// a hash and an exact version obligatory for every package, those that others need included.

// requireHashes is the line of a requirements file by which every package needs a hash.
const requireHashes = "--require-hashes"

// fileHash is a hash that a file may have.
type fileHash struct{ algorithm, hex string }

func (h fileHash) String() string { return h.algorithm + ":" + h.hex }

// algorithms are what a fragment may name. pip's --hash takes only the strong ones.
var algorithms = map[string]struct {
	make   func() hash.Hash
	strong bool
}{
	"md5": {md5.New, false}, "sha1": {sha1.New, false}, "sha224": {sha256.New224, false},
	"sha256": {sha256.New, true}, "sha384": {sha512.New384, true}, "sha512": {sha512.New, true},
}

// demand is one requirement or constraint, as far as it says which files it may be met with.
type demand struct {
	place  string // file and line, or where in the recipe
	name   string // normalised; "" for a file or address without one
	file   string // of a file or address: its last part
	marker *python.Marker
	pinned bool       // to one version, or asked for by address
	option bool       // the hashes are those of --hash
	hashes []fileHash // none: any file will do
}

// demandOf reads a line of a requirements file. What uv does not take either is not looked at.
func demandOf(own *ownHosts, line, place string) (demand, error) {
	text, options := cutOptions(line)
	text = own.expand(text)
	hashes, err := optionHashes(options)
	if err != nil {
		return demand{}, fmt.Errorf("%s: %w", place, err)
	}
	d := demand{place: place, option: len(hashes) > 0, hashes: hashes}
	address, _, _ := strings.Cut(text, " ")
	if r, err := python.ParseRequirement(text); err == nil {
		d.name, d.marker, d.pinned, address = python.NormalizeName(r.Name), r.Marker, r.Specifiers.Pinned(), r.URL
	}
	if address == "" {
		return d, nil
	}
	d.pinned = true
	d.file = lastPart(address)
	if d.name == "" && strings.HasSuffix(d.file, ".whl") {
		name, _, _ := strings.Cut(d.file, "-")
		d.name = python.NormalizeName(name)
	}
	if !d.option { // pip believes the option before the fragment
		d.hashes = fragmentHashes(address)
	}
	return d, nil
}

// lastPart returns the name of the file that a path or address leads to.
func lastPart(address string) string {
	address = withoutFragment(address)
	if u, err := url.Parse(address); err == nil && u.Path != "" {
		address = u.Path
	}
	file, _, _ := strings.Cut(path.Base(address), "[") // extras may follow a path
	return file
}

var (
	hashOption   = lazyregexp.New(`--hash(?:\s*=\s*|\s+)(\S*)`)
	hashValue    = lazyregexp.New(`^([A-Za-z0-9_-]+):([0-9A-Fa-f]+)$`)
	hashFragment = lazyregexp.New(`[#&](md5|sha1|sha224|sha256|sha384|sha512)=([^&]*)`)
)

// optionHashes reads what follows a requirement: --hash=sha256:… any number of times.
func optionHashes(options string) ([]fileHash, error) {
	var all []fileHash
	for _, m := range hashOption.FindAllStringSubmatch(options, -1) {
		value := strings.Trim(m[1], `"'`)
		parts := hashValue.FindStringSubmatch(value)
		if parts == nil {
			return nil, fault.Hint(fmt.Errorf("%q is not a hash", value), "write --hash=sha256: and 64 hexadecimal digits, as `pip hash FILE` prints it")
		}
		h := fileHash{strings.ToLower(parts[1]), strings.ToLower(parts[2])}
		kind := algorithms[h.algorithm]
		if !kind.strong {
			return nil, fault.Hint(fmt.Errorf("--hash=%s: hashes are sha256, sha384 or sha512, as for pip; %s does not protect", h, h.algorithm),
				"`pip hash FILE` prints a sha256, and `uv pip compile --generate-hashes` writes those of all packages")
		}
		if want := 2 * kind.make().Size(); len(h.hex) != want {
			return nil, fmt.Errorf("--hash=%s: a %s has %d digits, and this has %d", h, h.algorithm, want, len(h.hex))
		}
		all = append(all, h)
	}
	return all, nil
}

// fragmentHashes reads the hash in an address: https://host/x.whl#sha256=….
func fragmentHashes(address string) []fileHash {
	var all []fileHash
	if m := hashFragment.FindStringSubmatch(address); m != nil {
		all = append(all, fileHash{m[1], strings.ToLower(m[2])})
	}
	return all
}

// hashPolicy says which files may be installed.
type hashPolicy struct {
	required bool // every package needs a version and a hash
	demands  []demand
}

// hashPolicyOf reads the policy of r. Demands whose marker does not hold are left out.
func (k *locker) hashPolicyOf(ctx context.Context) (hashPolicy, error) {
	files, err := readAllRequirements(k.recipe, func(address string) ([]byte, error) { return k.getText(ctx, address) })
	if err != nil {
		return hashPolicy{}, err
	}
	p, err := newHashPolicy(k.recipe, files)
	p.required = p.required || settingsRequireHashes(k.recipe)
	env := python.EnvironmentOf(k.python.Interpreter()).WithExtra("")
	p.demands = slices.DeleteFunc(p.demands, func(d demand) bool {
		if d.marker == nil {
			return false
		}
		holds, err := d.marker.Evaluate(env)
		return err == nil && !holds
	})
	return p, err
}

// newHashPolicy puts together what r says itself and what its requirements files say.
func newHashPolicy(r *recipe.Recipe, files *requirements) (hashPolicy, error) {
	p := hashPolicy{required: files.required, demands: slices.Clone(files.demands)}
	own := ownHostsOf(r)
	for _, text := range r.PythonPackages() {
		d, err := demandOf(own, text, "packages under [python]")
		if err != nil {
			return p, err
		}
		p.demands = append(p.demands, d)
		p.required = p.required || d.option
	}
	return p, nil
}

// getText brings a text from a server.
func (k *locker) getText(ctx context.Context, address string) ([]byte, error) {
	digest, err := k.opts.Fetch.Unpinned(ctx, fetch.Request{URL: address, Name: fetch.WithoutLogins(address), Header: k.logins.Header(address), Login: LoginHint})
	if err != nil {
		return nil, err
	}
	file, err := k.opts.Store.BlobPath(digest)
	if err != nil {
		return nil, err
	}
	return readFile(file)
}

// allowedFiles is what the demands on one package come to.
type allowedFiles struct {
	pinned bool
	hashed bool     // a hash is demanded
	places []string // where
	hashes []fileHash
}

// allowed puts together what is demanded of a package that comes from a file. Of hashes demanded in several places, those
// count that are demanded in all.
func (p hashPolicy) allowed(name, file string) allowedFiles {
	var a allowedFiles
	for _, d := range p.demands {
		if d.name != name && (d.name != "" || d.file != file) {
			continue
		}
		a.pinned = a.pinned || d.pinned
		switch {
		case len(d.hashes) == 0:
			continue
		case a.hashed:
			a.hashes = slices.DeleteFunc(a.hashes, func(h fileHash) bool { return !slices.Contains(d.hashes, h) })
		default:
			a.hashed, a.hashes = true, slices.Clone(d.hashes)
		}
		a.places = append(a.places, d.place)
	}
	return a
}

// demandsHashes reports whether any hash is demanded at all.
func (p hashPolicy) demandsHashes() bool {
	return p.required || slices.ContainsFunc(p.demands, func(d demand) bool { return len(d.hashes) > 0 })
}

// checkHashes holds the package lock against the hashes that are demanded, and returns it without the files that are not
// among them. A package of which no file is there is an error.
func (k *locker) checkHashes(ctx context.Context, text []byte) ([]byte, error) {
	policy, err := k.hashPolicyOf(ctx)
	if err != nil || !policy.demandsHashes() {
		return text, err
	}
	if text, err = policy.restrict(text); err != nil {
		return nil, err
	}
	packages, err := k.python.read(k.recipe, text)
	if err != nil {
		return nil, err
	}
	var wrong, lacking []string
	for _, p := range packages {
		problem, isWrong, err := k.checkHash(ctx, policy, p)
		switch {
		case err != nil:
			return nil, err
		case isWrong:
			wrong = append(wrong, problem)
		case problem != "":
			lacking = append(lacking, problem)
		}
	}
	return text, hashErrors(wrong, lacking)
}

func hashErrors(wrong, lacking []string) error {
	var errs []error
	if len(wrong) > 0 {
		errs = append(errs, fmt.Errorf("these files are not among those that their requirements allow by hash:\n  %s", strings.Join(wrong, "\n  ")))
	}
	if len(lacking) > 0 {
		errs = append(errs, fmt.Errorf("hashes are obligatory for all packages, since a requirements file has one or says --require-hashes; these lack what it takes:\n  %s",
			strings.Join(lacking, "\n  ")))
	}
	switch {
	case len(wrong) > 0:
		return fault.Hint(errors.Join(errs...), "look whether somebody changed the files; when the hashes are merely of another version, write them anew, as `uv pip compile --generate-hashes` does")
	case len(lacking) > 0:
		return fault.Hint(errors.Join(errs...), "`uv pip compile --generate-hashes` writes a requirements file with versions and hashes of all packages; put what is under packages in its input as well")
	}
	return nil
}

// checkHash says what is wrong with the file of p, or lacking in what is demanded of it.
func (k *locker) checkHash(ctx context.Context, policy hashPolicy, p python.Package) (problem string, wrong bool, err error) {
	if s := p.Source; s != nil && s.Kind != python.SourceArchive {
		if !policy.required {
			return "", false, nil
		}
		return fmt.Sprintf("%s: it comes from a %s, which has no hash", p.Name, map[python.SourceKind]string{python.SourceGit: "repository", python.SourceDirectory: "directory"}[s.Kind]), false, nil
	}
	f := fileOf(p)
	a := policy.allowed(python.NormalizeName(p.Name), f.Name)
	label := strings.TrimSpace(p.Name + " " + p.Version)
	sum := fileHash{"sha256", f.Digest.Hex()}
	switch {
	case !policy.required && !a.hashed:
		return "", false, nil
	case policy.required && !a.pinned:
		return fmt.Sprintf("%s: no requirement asks for it with ==", label), false, nil
	case !a.hashed:
		return fmt.Sprintf("%s: it has no hash; %s has --hash=%s", label, f.Name, sum), false, nil
	case slices.Contains(a.hashes, sum):
		return "", false, nil
	}
	sums, err := k.sums(ctx, f, a.hashes)
	if err != nil {
		return "", false, err
	}
	if slices.ContainsFunc(sums, func(h fileHash) bool { return slices.Contains(a.hashes, h) }) {
		return "", false, nil
	}
	return fmt.Sprintf("%s: %s is %s, which %s does not allow", label, f.Name, sum, strings.Join(a.places, " and ")), true, nil
}

// fileOf returns the file that a package is laid down or built from.
func fileOf(p python.Package) python.WheelRef {
	if s := p.Source; s != nil {
		return python.WheelRef{Name: s.File, URL: s.URL, Path: s.Path, Digest: s.Digest, Size: s.Size}
	}
	return p.Wheel
}

// sums computes the hashes of a file for the algorithms that the package lock says nothing of. The file is brought for it.
func (k *locker) sums(ctx context.Context, f python.WheelRef, wanted []fileHash) ([]fileHash, error) {
	makers := make(map[string]hash.Hash)
	for _, h := range wanted {
		if h.algorithm != "sha256" {
			makers[h.algorithm] = algorithms[h.algorithm].make()
		}
	}
	if len(makers) == 0 {
		return nil, nil
	}
	r := fetch.Request{URL: f.URL, Digest: f.Digest, Size: f.Size, Name: f.Name, Header: k.logins.Header(f.URL), Login: LoginHint}
	if r.URL == "" {
		r.URL = f.Path
	}
	if err := k.opts.Fetch.Blob(ctx, r); err != nil {
		return nil, err
	}
	return sumBlob(k.opts.Store, f.Digest, makers)
}

func sumBlob(st *store.Store, d store.Digest, makers map[string]hash.Hash) ([]fileHash, error) {
	blob, err := st.OpenBlob(d)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	var writers []io.Writer
	for _, h := range makers {
		writers = append(writers, h)
	}
	if _, err := io.Copy(io.MultiWriter(writers...), blob); err != nil {
		return nil, err
	}
	var all []fileHash
	for _, algorithm := range slices.Sorted(maps.Keys(makers)) {
		all = append(all, fileHash{algorithm, hex.EncodeToString(makers[algorithm].Sum(nil))})
	}
	return all, nil
}

// restrictedHeader begins a package lock from which files were taken.
const restrictedHeader = "# Written by `sconce lock` from what uv chose, without the files that the requirements' hashes rule out.\n\n"

// restrict takes the files out of a package lock whose hash the lock gives and no demand allows, as long as the package keeps
// one: what is left is chosen among, as pip does.
func (p hashPolicy) restrict(text []byte) ([]byte, error) {
	var all map[string]any
	if err := toml.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read what uv wrote: %w", err)
	}
	packages, _ := all["packages"].([]any)
	changed := false
	for _, item := range packages {
		if entry, ok := item.(map[string]any); ok {
			changed = p.restrictPackage(entry) || changed
		}
	}
	if !changed {
		return text, nil
	}
	out, err := toml.Marshal(all)
	return append([]byte(restrictedHeader), out...), err
}

func (p hashPolicy) restrictPackage(entry map[string]any) (changed bool) {
	name, _ := entry["name"].(string)
	a := p.allowed(python.NormalizeName(name), "")
	if !a.hashed {
		return false
	}
	wheels, _ := entry["wheels"].([]any)
	kept := slices.DeleteFunc(slices.Clone(wheels), func(w any) bool { return !a.allows(w) })
	sdist, hasSource := entry["sdist"]
	keepSource := hasSource && a.allows(sdist)
	if len(kept) == 0 && !keepSource || len(kept) == len(wheels) && keepSource == hasSource {
		return false
	}
	if entry["wheels"] = kept; len(kept) == 0 {
		delete(entry, "wheels")
	}
	if !keepSource {
		delete(entry, "sdist")
	}
	return true
}

// allows reports whether one of the hashes that the package lock gives for a file is allowed.
func (a allowedFiles) allows(artifact any) bool {
	file, _ := artifact.(map[string]any)
	hashes, _ := file["hashes"].(map[string]any)
	for algorithm, value := range hashes {
		if sum, ok := value.(string); ok && slices.Contains(a.hashes, fileHash{algorithm, strings.ToLower(sum)}) {
			return true
		}
	}
	return false
}

// settingsRequireHashes reports whether uv's settings for pip demand hashes.
func settingsRequireHashes(r *recipe.Recipe) bool {
	if wanted, err := strconv.ParseBool(os.Getenv("UV_REQUIRE_HASHES")); err == nil && wanted {
		return true
	}
	return slices.ContainsFunc(userSettings(r), func(s *uvSettings) bool { return s.Pip != nil && s.Pip.RequireHashes })
}

// hashInputs is what a lock notes of a recipe that demands hashes: one that was made without looking at them does not hold.
func hashInputs(r *recipe.Recipe, files *requirements) ([]string, error) {
	policy, err := newHashPolicy(r, files)
	if err != nil || !policy.demandsHashes() {
		return nil, err
	}
	return []string{"checked"}, nil
}
