package slim

import (
	"bytes"
	"cmp"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
	"sconce.dev/sconce/internal/elfx"
	"sconce.dev/sconce/internal/fatbin"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// elfVersion changes when the same layer has another record.
const elfVersion = "elf-v1"

// programs are the ELF files of a layer, in its order.
type programs struct {
	Files []program `json:"files,omitempty"`
}

type program struct {
	At     int            `json:"at"` // place in the layer's index
	Size   int64          `json:"size"`
	Needed []string       `json:"needed,omitempty"` // libraries
	Strip  *strippedEntry `json:"strip,omitempty"`
	Keep   string         `json:"keep,omitempty"` // why it is not stripped
}

// strippedEntry is what stripping makes of a file. Hashes are as lists of files have them.
type strippedEntry struct {
	Size    int64  `json:"size"`
	NewSize int64  `json:"newSize"`
	Zeroed  int64  `json:"zeroed,omitempty"`
	Old     string `json:"old"`
	New     string `json:"new"`
	OldMD5  string `json:"oldMD5"`
	NewMD5  string `json:"newMD5"`
}

// trimming is the trimming of one image.
type trimming struct {
	*layers
	remover *remover
	from    []layer.Descriptor
	ixs     []*view // of the layers
	found   []*programs
	reasons []map[int]string // by layer and place: why an entry goes
	changes fileChanges
}

// ExplainTrim tells what trimming would do to an image, and makes no layer. The report has nothing about device code. A layer is
// brought into the store only when something in it is wanted that the store does not know.
func ExplainTrim(ctx context.Context, st *store.Store, im *image.Outline, o Options) (*Report, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	r := &Report{GPUs: []string{}, Files: []FileReport{}}
	indexes, err := im.Indexes(ctx)
	if err != nil {
		return nil, err
	}
	views := make([]*view, len(indexes))
	for i, ix := range indexes {
		views[i] = &view{Index: ix}
	}
	_, err = (&layers{st: st, o: o, bring: im.Bring}).planTrim(ctx, im.Image.Layers, views, r)
	return r, err
}

// trim makes what takes the place of layers that are trimmed, and slimmed where device code is found: each is written once. It adds to
// the report, and says which layers lost more than device code.
func (s *slimming) trim(ctx context.Context, r *Report) (made []layer.Descriptor, trimmed []bool, err error) {
	views := make([]*view, len(s.from))
	for i, d := range s.from {
		ix, err := layer.OpenIndex(ctx, s.st, d)
		if err != nil {
			return nil, nil, err
		}
		if views[i], err = s.view(ctx, i, ix); err != nil {
			return nil, nil, err
		}
	}
	s.workers = runtime.GOMAXPROCS(0)
	t, err := s.planTrim(ctx, s.from, views, r)
	if err != nil {
		return nil, nil, err
	}
	made, trimmed = make([]layer.Descriptor, len(s.from)), make([]bool, len(s.from))
	return made, trimmed, inParallel(ctx, bySize(s.from), trimsAtOnce, func(ctx context.Context, i int) (err error) {
		if made[i], err = t.layer(ctx, i); err != nil {
			return err
		}
		if trimmed[i] = made[i] != s.from[i]; !trimmed[i] {
			made[i], err = s.layer(ctx, i)
		}
		return err
	})
}

// trimsAtOnce is how many layers are trimmed side by side: each of them is decompressed and compressed on all cores.
const trimsAtOnce = 2

// planTrim decides about every file of the layers, as slimming leaves them, and adds to the report.
func (s *layers) planTrim(ctx context.Context, from []layer.Descriptor, views []*view, r *Report) (*trimming, error) {
	remover, err := newRemover(s.o)
	if err != nil {
		return nil, err
	}
	t := &trimming{layers: s, remover: remover, from: from, ixs: views, reasons: make([]map[int]string, len(from))}
	t.found = make([]*programs, len(from))
	for i := range from {
		t.found[i] = &programs{}
	}
	libraries := t.match()
	if s.o.Strip || libraries {
		if err := inParallel(ctx, bySize(from), trimsAtOnce, func(ctx context.Context, i int) (err error) {
			t.found[i], err = t.programs(ctx, i)
			return err
		}); err != nil {
			return nil, err
		}
	}
	t.keepForCompilers(r)
	t.keepLinked(r)
	if libraries {
		t.keepNeeded(ctx, r)
		t.keepLinked(r)
	}
	slices.SortFunc(r.Kept, func(a, b Kept) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Reason, b.Reason)) })
	t.keepParents()
	t.collect(r)
	return t, nil
}

// match finds what goes, and reports whether libraries are among it.
func (t *trimming) match() (libraries bool) {
	conda := map[string]bool{}
	for _, ix := range t.ixs {
		condaDirs(ix.Entries, conda)
	}
	for n, ix := range t.ixs {
		t.reasons[n] = map[int]string{}
		for i := range ix.Entries {
			e := &ix.Entries[i]
			if reason := t.remover.reason(&e.Entry, conda); reason != "" {
				t.reasons[n][i] = reason
				libraries = libraries || isLibrary(e)
			}
		}
	}
	return libraries
}

func isLibrary(e *layer.IndexEntry) bool {
	return e.Type != layer.Dir && strings.Contains(path.Base(e.Path), ".so")
}

// compilerArchives are the static archives without which a compiler, known by one of its programs, links nothing, or not what build
// systems ask of everybody: since glibc 2.34 some libraries are nothing but an empty archive.
var compilerArchives = map[string][]string{
	"collect2": {
		"libgcc.a", "libgcc_eh.a", "libc_nonshared.a", "libmvec_nonshared.a", "libssp_nonshared.a", "libpthread.a", "libdl.a", "librt.a",
		"libutil.a", "libanl.a", "libstdc++_nonshared.a",
	},
	"nvcc": {"libcudart_static.a", "libcudadevrt.a"},
}

// keepForCompilers keeps what compilers that stay need.
func (t *trimming) keepForCompilers(r *Report) {
	need := map[string]string{}
	for n, ix := range t.ixs {
		for i := range ix.Entries {
			if program := path.Base(ix.Entries[i].Path); t.reasons[n][i] == "" {
				for _, archive := range compilerArchives[program] {
					need[archive] = ix.Entries[i].Path
				}
			}
		}
	}
	for n, ix := range t.ixs {
		for _, i := range slices.Sorted(maps.Keys(t.reasons[n])) {
			if who := need[path.Base(ix.Entries[i].Path)]; who != "" {
				t.keep(r, n, i, "needed by "+who)
			}
		}
	}
}

// keepNeeded keeps libraries that a program that stays needs, by their names, wherever they are: what a search would find is not
// asked. A library that stays has needs too.
func (t *trimming) keepNeeded(ctx context.Context, r *Report) {
	need := map[string]string{} // by name, who
	before := len(r.Kept)
	for again := true; again; {
		again = t.needs(need)
		for n := range t.reasons {
			for _, i := range slices.Sorted(maps.Keys(t.reasons[n])) {
				e := &t.ixs[n].Entries[i]
				who := need[path.Base(e.Path)]
				if who == "" || !isLibrary(e) {
					continue
				}
				t.keep(r, n, i, "needed by "+who)
				if e.Link != "" && need[path.Base(e.Link)] == "" {
					need[path.Base(e.Link)] = e.Path
				}
				again = true
			}
		}
	}
	if kept := r.Kept[before:]; len(kept) > 0 {
		progress.Warn(ctx, fmt.Sprintf("%d libraries are not removed, though a pattern names them: /%s is %s", len(kept), kept[0].Path, kept[0].Reason),
			"name the programs that need them too, or leave the libraries out of the patterns")
	}
}

// needs adds what the programs that stay need, and reports whether that is more than before.
func (t *trimming) needs(need map[string]string) (more bool) {
	for n, list := range t.found {
		for _, p := range list.Files {
			if t.reasons[n][p.At] != "" {
				continue
			}
			for _, name := range p.Needed {
				if need[name] == "" {
					need[name] = t.ixs[n].Entries[p.At].Path
					more = true
				}
			}
		}
	}
	return more
}

func (t *trimming) keep(r *Report, n, i int, reason string) {
	delete(t.reasons[n], i)
	r.Kept = append(r.Kept, Kept{t.ixs[n].Entries[i].Path, reason})
}

// keepLinked keeps what hard links that stay lead to, unless it is a file of their own layer: of such a file the link takes the place.
func (t *trimming) keepLinked(r *Report) {
	linked := map[string]string{}
	for n, ix := range t.ixs {
		files := map[string]bool{}
		for i := range ix.Entries {
			e := &ix.Entries[i]
			files[e.Path] = e.Type == layer.Regular || e.Type == layer.HardLink && files[e.Link]
			if e.Type == layer.HardLink && !files[e.Link] && t.reasons[n][i] == "" {
				linked[e.Link] = e.Path
			}
		}
	}
	for n, ix := range t.ixs {
		for _, i := range slices.Sorted(maps.Keys(t.reasons[n])) {
			if who := linked[ix.Entries[i].Path]; who != "" {
				t.keep(r, n, i, "a link in another layer leads to it: "+who)
			}
		}
	}
}

// keepParents keeps the directories of what stays in any layer.
func (t *trimming) keepParents() {
	used := map[string]bool{}
	for n, ix := range t.ixs {
		for i := range ix.Entries {
			if t.reasons[n][i] != "" {
				continue
			}
			for dir := path.Dir(ix.Entries[i].Path); dir != "." && !used[dir]; dir = path.Dir(dir) {
				used[dir] = true
			}
		}
	}
	for n, ix := range t.ixs {
		for i := range t.reasons[n] {
			if e := &ix.Entries[i]; e.Type == layer.Dir && used[e.Path] {
				delete(t.reasons[n], i)
			}
		}
	}
}

// collect notes what changes in the image, and reports it.
func (t *trimming) collect(r *Report) {
	t.changes = fileChanges{gone: map[string]bool{}, changed: map[string][]*strippedEntry{}}
	removed, unstripped := counts{}, counts{}
	for n, ix := range t.ixs {
		for i, reason := range t.reasons[n] {
			e := &ix.Entries[i]
			t.changes.gone[e.Path] = true
			removed.add(reason, e.Size)
		}
		if !t.o.Strip {
			continue
		}
		names := namesOf(ix.Index)
		for _, p := range t.found[n].Files {
			e := &ix.Entries[p.At]
			switch {
			case t.reasons[n][p.At] != "":
			case p.Strip != nil:
				r.Stripped = append(r.Stripped, StrippedFile{e.Path, p.Strip.Size, p.Strip.NewSize - p.Strip.Zeroed})
				for _, name := range append(names[e.Path], e.Path) {
					t.changes.changed[name] = append(t.changes.changed[name], p.Strip)
				}
			case p.Keep != "":
				unstripped.add(p.Keep, p.Size)
			}
		}
	}
	r.Removed = removed.list()
	for _, u := range unstripped.list() {
		r.Unstripped = append(r.Unstripped, Unstripped(u))
	}
	slices.SortFunc(r.Stripped, func(a, b StrippedFile) int {
		return cmp.Or(cmp.Compare(b.Before-b.After, a.Before-a.After), cmp.Compare(a.Path, b.Path))
	})
}

// namesOf gives the hard links to files.
func namesOf(ix *layer.Index) map[string][]string {
	names, first := map[string][]string{}, map[string]string{}
	for i := range ix.Entries {
		e := &ix.Entries[i]
		if e.Type != layer.HardLink {
			continue
		}
		to := cmp.Or(first[e.Link], e.Link)
		first[e.Path] = to
		names[to] = append(names[to], e.Path)
	}
	return names
}

// programs finds the ELF files of a layer and what stripping makes of them, or reads what was found before.
func (t *trimming) programs(ctx context.Context, n int) (*programs, error) {
	d := t.from[n]
	once := store.Once[*programs]{
		Kind: store.KindSlimELF, Key: store.DigestOf([]byte(elfVersion + "\n" + string(d.Digest) + t.ixs[n].key)).Hex(),
		Refs: func(*programs) []store.Digest { return d.Refs() },
	}
	found, _, err := once.Do(ctx, t.st, func(ctx context.Context) (*programs, error) {
		if t.bring != nil {
			if err := t.bring(ctx, n); err != nil {
				return nil, err
			}
		}
		return t.findPrograms(ctx, d, t.ixs[n])
	})
	return found, err
}

func (t *trimming) findPrograms(ctx context.Context, d layer.Descriptor, ix *view) (*programs, error) {
	v := &survey{layers: t.layers, ix: ix.Index, task: progress.Begin(ctx, "look", d.Digest.Short(), ix.RawSize)}
	defer v.close()
	exists := map[string]bool{}
	for i := range ix.Entries {
		exists[ix.Entries[i].Path] = true
	}
	out := &programs{}
	at := -1
	err := layer.Stored(t.st, d).Walk(ctx, func(e layer.IndexEntry, open func() (io.ReadCloser, error)) error {
		at++
		v.task.SetCurrent(e.Offset)
		if e.Type != layer.Regular || e.Size < minProgram {
			return nil
		}
		p, err := v.program(ctx, at, ix.contents, open, func(name string) bool { return exists[name] })
		if p != nil {
			out.Files = append(out.Files, *p)
		}
		return err
	})
	if v.task.End(err) != nil {
		return nil, fmt.Errorf("look for programs in layer %s: %w", d.Digest.Short(), err)
	}
	return out, nil
}

// minProgram is the size of the smallest file that may be a program, in bytes: that of the headers of ELF.
const minProgram = 64 + 56

// program looks at a file. It is nil when the file is no ELF file.
func (v *survey) program(
	ctx context.Context, at int, slimmed contents, open func() (io.ReadCloser, error), exists func(string) bool,
) (*program, error) {
	e := v.ix.Entries[at]
	old, err := open()
	if err != nil {
		return nil, err
	}
	defer old.Close()
	r, head := slimmed.new(at, ctxio.Reader(ctx, old)), make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil || !elfx.IsELF(head) {
		return nil, err
	}
	if err := v.copyOut(io.MultiReader(bytes.NewReader(head), r), e.Size); err != nil {
		return nil, err
	}
	p := &program{At: at, Size: e.Size}
	if f, err := elfx.Open(v.scratch, e.Size); err == nil {
		p.Needed = f.Needed
	}
	if p.Keep = unstrippable(&e.Entry, exists); p.Keep != "" {
		return p, nil
	}
	if e.Sparse != 0 {
		p.Keep = "the layer stores it with holes"
		return p, nil
	}
	return p, v.planStrip(p)
}

// planStrip finds out what stripping makes of the file in scratch.
func (v *survey) planStrip(p *program) error {
	s, err := elfx.Strip(v.scratch, p.Size)
	var kept *elfx.KeptError
	switch {
	case errors.As(err, &kept):
		if !strings.HasPrefix(kept.Reason, "nothing can be") {
			p.Keep = general(kept.Reason)
		}
		return nil
	case errors.Is(err, elfx.ErrFormat), errors.Is(err, elfx.ErrNotELF):
		p.Keep = "it is damaged"
		return nil
	case err != nil:
		return err
	}
	if same, err := sameDeviceCode(v.scratch, p.Size, s); err != nil || !same {
		p.Keep = "its device code would not be found as before"
		return err
	}
	oldSHA, newSHA, oldMD5, newMD5 := sha256.New(), sha256.New(), md5.New(), md5.New()
	if _, err := io.Copy(io.MultiWriter(oldSHA, oldMD5), io.NewSectionReader(v.scratch, 0, p.Size)); err != nil {
		return err
	}
	if _, err := io.Copy(io.MultiWriter(newSHA, newMD5), s.Reader(io.NewSectionReader(v.scratch, 0, p.Size))); err != nil {
		return err
	}
	p.Strip = &strippedEntry{
		Size: p.Size, NewSize: s.Size, Zeroed: s.Zeroed, Old: recordHash(oldSHA), New: recordHash(newSHA),
		OldMD5: hex.EncodeToString(oldMD5.Sum(nil)), NewMD5: hex.EncodeToString(newMD5.Sum(nil)),
	}
	return nil
}

// general makes one reason of those that name numbers.
func general(reason string) string {
	if _, rest, ok := strings.Cut(reason, " belong to no section: "); ok {
		return rest
	}
	return reason
}

// sameDeviceCode reports whether the tools of the CUDA toolkit find the same in the stripped file.
func sameDeviceCode(r io.ReaderAt, size int64, s *elfx.Stripped) (bool, error) {
	before, err := scan(r, size)
	if errors.Is(err, fatbin.ErrFormat) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	after, err := scan(s.ReaderAt(r), s.Size)
	if errors.Is(err, fatbin.ErrFormat) {
		return len(before.Regions)+len(before.Bundles)+len(before.Wrappers) == 0, nil
	}
	if err != nil {
		return false, err
	}
	return reflect.DeepEqual(before.Regions, after.Regions) && reflect.DeepEqual(before.Wrappers, after.Wrappers) &&
		reflect.DeepEqual(before.Bundles, after.Bundles), nil
}

// layer makes what takes the place of a layer, or finds what was made before. It is the layer itself when nothing in it is trimmed.
func (t *trimming) layer(ctx context.Context, n int) (layer.Descriptor, error) {
	d := t.from[n]
	v := &survey{layers: t.layers, ix: t.ixs[n].Index}
	defer v.close()
	edits, what, err := t.edits(ctx, n, v)
	if err != nil || len(edits) == 0 {
		return d, err
	}
	key, err := json.Marshal(what)
	if err != nil {
		return d, err
	}
	out, err := t.once(ctx, d, "trim"+t.ixs[n].key+"\n"+string(key), func(ctx context.Context) (*outcome, error) {
		made, err := layer.RewriteEntries(ctx, t.st, d, t.ixs[n].contents.with(edits, t.ixs[n].Index), layer.Options{Workers: t.workers})
		if errors.Is(err, layer.ErrHoles) {
			progress.Warn(ctx, fmt.Sprintf("layer %s is not trimmed: %v", d.Digest.Short(), err), "")
			return &outcome{}, nil
		}
		return &outcome{Layer: &made}, err
	})
	if err != nil || out.Layer == nil {
		return d, err
	}
	return *out.Layer, nil
}

// with adds the new contents to edits of a layer, which are made of them.
func (c contents) with(edits []layer.Edit, ix *layer.Index) []layer.Edit {
	list, done := make([]layer.Edit, 0, len(edits)+len(c)), map[int]bool{}
	for _, e := range edits {
		done[e.At] = true
		slimmed, trimmed := c[e.At], e.Content
		switch {
		case slimmed == nil:
		case trimmed == nil: // of a file that goes, a hard link may have the content
			e.Size, e.Content = ix.Entries[e.At].Size, slimmed
		default:
			e.Content = func(old io.Reader) io.Reader { return trimmed(slimmed(old)) }
		}
		list = append(list, e)
	}
	for at, content := range c {
		if !done[at] {
			list = append(list, layer.Edit{At: at, Size: ix.Entries[at].Size, Content: content})
		}
	}
	return list
}

// described says what an edit does, for the key of what it makes.
type described struct {
	At   int          `json:"at"`
	List store.Digest `json:"list,omitempty"`
	New  string       `json:"new,omitempty"`
}

// edits are those of a layer.
func (t *trimming) edits(ctx context.Context, n int, v *survey) (edits []layer.Edit, what []described, err error) {
	strip := map[int]*strippedEntry{}
	if t.o.Strip {
		for _, p := range t.found[n].Files {
			if p.Strip != nil {
				strip[p.At] = p.Strip
			}
		}
	}
	for i := range t.ixs[n].Entries {
		e := &t.ixs[n].Entries[i]
		switch {
		case t.reasons[n][i] != "":
			edits = append(edits, layer.Edit{At: i, Remove: true})
			what = append(what, described{At: i})
		case strip[i] != nil:
			edits = append(edits, layer.Edit{At: i, Size: strip[i].NewSize, Content: v.stripped(e.Size)})
			what = append(what, described{At: i, New: strip[i].New})
		case e.Type == layer.Regular && isList(e.Path) && e.Size <= maxRecord && e.Sparse == 0:
			fixed, err := t.fixList(ctx, n, i)
			if err != nil {
				return nil, nil, err
			}
			if fixed != nil {
				edits = append(edits, layer.Edit{At: i, Size: int64(len(fixed)), Content: func(io.Reader) io.Reader { return bytes.NewReader(fixed) }})
				what = append(what, described{At: i, List: store.DigestOf(fixed)})
			}
		}
	}
	return edits, what, nil
}

// fixList brings a list of files up to date; nil when nothing changes in it.
func (t *trimming) fixList(ctx context.Context, n, at int) ([]byte, error) {
	if len(t.changes.gone)+len(t.changes.changed) == 0 {
		return nil, nil
	}
	data, err := t.ixs[n].contents.read(t.ixs[n].Index, at)
	if err != nil {
		return nil, err
	}
	fixed, err := t.changes.fix(t.ixs[n].Entries[at].Path, data)
	if err != nil {
		progress.Warn(ctx, fmt.Sprintf("the list of files is not updated: %v", err), "")
		return nil, nil
	}
	return fixed, nil
}

// stripped gives the stripped file, made of the old one.
func (v *survey) stripped(size int64) func(io.Reader) io.Reader {
	return func(old io.Reader) io.Reader {
		return &later{open: func() (io.Reader, error) {
			if err := v.copyOut(old, size); err != nil {
				return nil, err
			}
			s, err := elfx.Strip(v.scratch, size)
			if err != nil {
				return nil, err
			}
			return s.Reader(io.NewSectionReader(v.scratch, 0, size)), nil
		}}
	}
}

// later is a reader that is opened when it is read.
type later struct {
	open func() (io.Reader, error)
	r    io.Reader
	err  error
}

func (l *later) Read(b []byte) (int, error) {
	if l.r == nil && l.err == nil {
		l.r, l.err = l.open()
	}
	if l.err != nil {
		return 0, l.err
	}
	return l.r.Read(b)
}
