package slim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
)

// Report is what slimming does to an image. Sizes are in bytes.
type Report struct {
	GPUs   []string      `json:"gpus"`             // compute capabilities that are kept: "9.0"
	Files  []FileReport  `json:"files"`            // those with device code, the ones that lose most first
	Layers []LayerReport `json:"layers,omitempty"` // lowest first
	Before int64         `json:"before"`           // device code in the files that are not refused
	After  int64         `json:"after"`            // what stays of it

	Removed    []Removed      `json:"removed,omitempty"`    // by reason, the most bytes first
	Kept       []Kept         `json:"kept,omitempty"`       // what patterns name and is not removed
	Stripped   []StrippedFile `json:"stripped,omitempty"`   // those that lose most first
	Unstripped []Unstripped   `json:"unstripped,omitempty"` // by reason, the most bytes first
}

// Without returns the function that leaves files out of images of a store, by patterns as [Options] have them.
func Without(st *store.Store) func(ctx context.Context, im *image.Image, patterns []string) (*image.Image, error) {
	return func(ctx context.Context, im *image.Image, patterns []string) (*image.Image, error) {
		im, _, err := Image(ctx, st, im, Options{Remove: patterns})
		return im, err
	}
}

// LayerReport is a layer before and after, as blobs. One that did not change has the same digest twice.
type LayerReport struct {
	Digest      store.Digest `json:"digest"`
	Size        int64        `json:"size"`
	Slimmed     store.Digest `json:"slimmed"`
	SlimmedSize int64        `json:"slimmedSize"`
}

// sum puts the files in order and adds up what they have.
func (r *Report) sum() {
	for i := range r.Files {
		f := &r.Files[i]
		r.After += f.After()
		r.Before += f.Before()
	}
	slices.SortFunc(r.Files, func(a, b FileReport) int {
		return cmp.Or(cmp.Compare(b.Before()-b.After(), a.Before()-a.After()), cmp.Compare(a.Path, b.Path))
	})
}

// Before is the size of the device code that a file has, in bytes.
func (f *FileReport) Before() int64 { return f.After() + total(f.Dropped) }

// After is the size of the device code that a file keeps, in bytes.
func (f *FileReport) After() int64 { return total(f.Kept) }

func total(code []Code) (n int64) {
	for _, c := range code {
		n += c.Size
	}
	return n
}

// Image makes an image of one in the store without the device code that the target GPUs cannot run, and trimmed. Layers that hold
// nothing of it keep their blobs; the others are rewritten with only such files changed or left out, and the lists that have them: the RECORDs of
// Python distributions, and dpkg's md5sums. What was done for a layer is kept in the store for the next image that has it.
//
// The image's configuration stays as it is, but for the label [image.LabelSlim] and words in the history of changed layers. When
// nothing changes, the result is im itself. An image that was slimmed for other GPUs is refused.
func Image(ctx context.Context, st *store.Store, im *image.Image, o Options) (*image.Image, *Report, error) {
	if err := o.check(); err != nil {
		return nil, nil, err
	}
	if err := checkLabel(im, o); err != nil {
		return nil, nil, err
	}
	r, comments, slimmed, err := slimAll(ctx, st, im.Layers, o)
	if err != nil {
		return nil, nil, fmt.Errorf("slim image %s: %w", im.Digest.Short(), err)
	}
	if slices.Equal(slimmed, im.Layers) {
		return im, r, nil
	}
	made, err := assemble(ctx, st, im, slimmed, comments, o)
	if err != nil {
		return nil, nil, fmt.Errorf("slim image %s: %w", im.Digest.Short(), err)
	}
	return made, r, nil
}

// slimAll slims layers in both ways, and returns what takes their place and what was done to each.
func slimAll(ctx context.Context, st *store.Store, from []layer.Descriptor, o Options) (r *Report, comments []string, made []layer.Descriptor, err error) {
	s, err := newSlimming(ctx, st, from, o)
	if err != nil {
		return nil, nil, nil, err
	}
	r, done := &Report{}, make([]bool, len(from))
	if o.trims() {
		made, done, err = s.trim(ctx, r)
	} else {
		made, err = s.make(ctx)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	s.report(r, made)
	comments = make([]string, len(from))
	for i := range from {
		var words []string
		if s.slims[i] {
			words = append(words, "device code slimmed to "+strings.Join(capabilities(o.gpus()), " "))
		}
		if done[i] {
			words = append(words, "trimmed")
		}
		comments[i] = strings.Join(words, "; ")
	}
	return r, comments, made, nil
}

// checkLabel refuses to slim an image for GPUs whose code was taken out of it before.
func checkLabel(im *image.Image, o Options) error {
	label, ok := im.Config.Config.Labels[image.LabelSlim]
	if !ok {
		return nil
	}
	before := strings.Fields(label)
	var missing []string
	for _, c := range capabilities(o.gpus()) {
		if !slices.Contains(before, c) {
			missing = append(missing, c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	err := fmt.Errorf("slim image %s: it was slimmed for compute capability %s before, and what %s may need is gone",
		im.Digest.Short(), strings.Join(before, ", "), strings.Join(missing, " and "))
	return fault.Hint(err, "start from the image as it was before it was slimmed")
}

// capabilities writes compute capabilities as people do: 90 as "9.0".
func capabilities(gpus []int) []string {
	list := make([]string, 0, len(gpus))
	for _, sm := range gpus {
		list = append(list, fmt.Sprintf("%d.%d", sm/10, sm%10))
	}
	return list
}

func inParallel(ctx context.Context, order []int, atOnce int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, i := range order {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// maxConfig is the largest configuration that is read, in bytes.
const maxConfig = 8 << 20

// assemble stores the manifest and the configuration of an image with other layers.
func assemble(ctx context.Context, st *store.Store, im *image.Image, slimmed []layer.Descriptor, comments []string, o Options) (*image.Image, error) {
	raw, err := st.ReadBlob(store.Digest(im.Manifest.Config.Digest.String()), maxConfig)
	if err != nil {
		return nil, err
	}
	diffIDs := make([]store.Digest, len(slimmed))
	manifest := im.Manifest.DeepCopy()
	for i, d := range slimmed {
		diffIDs[i] = d.DiffID
		if d.Digest == im.Layers[i].Digest {
			continue
		}
		t, err := mediaType(im, d)
		if err != nil {
			return nil, err
		}
		// Annotations of a layer speak of its bytes; they do not hold for others.
		manifest.Layers[i] = v1.Descriptor{MediaType: t, Digest: hashOf(d.Digest), Size: d.Size}
	}
	config, err := editConfig(raw, diffIDs, comments, o)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	manifest.Config.Digest, manifest.Config.Size, manifest.Config.Data = hashOf(store.DigestOf(config)), int64(len(config)), nil
	data, err := encode(manifest)
	if err != nil {
		return nil, err
	}
	// The config first: a manifest in the store whose config is missing would be half an image.
	if _, err := st.PutBlob(config); err != nil {
		return nil, err
	}
	digest, err := st.PutBlob(data)
	if err != nil {
		return nil, err
	}
	return image.Load(ctx, st, digest)
}

func hashOf(d store.Digest) v1.Hash { return v1.Hash{Algorithm: "sha256", Hex: d.Hex()} }

// mediaType is that of a rewritten layer in an image, whose manifest is OCI's or Docker's.
func mediaType(im *image.Image, d layer.Descriptor) (types.MediaType, error) {
	if types.MediaType(im.MediaType) != types.DockerManifestSchema2 {
		return types.MediaType(d.MediaType), nil
	}
	switch types.MediaType(d.MediaType) {
	case types.OCILayer:
		return types.DockerLayer, nil
	case types.OCIUncompressedLayer:
		return types.DockerUncompressedLayer, nil
	case types.OCILayerZStd:
		return "application/vnd.docker.image.rootfs.diff.tar.zstd", nil
	}
	return "", fmt.Errorf("layer %s has the media type %q, for which Docker has none", d.Digest.Short(), d.MediaType)
}

// object is a JSON object whose parts are kept as they are written.
type object map[string]json.RawMessage

func (o object) get(key string, v any) error {
	raw, ok := o[key]
	if !ok {
		return nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (o object) set(key string, v any) error {
	raw, err := encode(v)
	o[key] = raw
	return err
}

// encode is json.Marshal without escapes that only a browser needs.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

// editConfig changes of a configuration what says which layers there are and what was done to them. Parts that only other
// programs know are kept.
func editConfig(raw []byte, diffIDs []store.Digest, comments []string, o Options) ([]byte, error) {
	var config object
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, err
	}
	rootfs, inner, labels := object{}, object{}, map[string]string{}
	var history []object
	if err := cmp.Or(config.get("rootfs", &rootfs), config.get("config", &inner), config.get("history", &history)); err != nil {
		return nil, err
	}
	if inner == nil { // it was null
		inner = object{}
	}
	if err := inner.get("Labels", &labels); err != nil {
		return nil, err
	}
	if labels == nil {
		labels = map[string]string{}
	}
	if len(o.GPUs) > 0 {
		labels[image.LabelSlim] = strings.Join(capabilities(o.gpus()), " ")
	}
	if err := addComments(history, comments); err != nil {
		return nil, err
	}
	err := rootfs.set("diff_ids", diffIDs)
	if err == nil && len(labels) > 0 {
		err = inner.set("Labels", labels)
	}
	err = cmp.Or(err, config.set("rootfs", rootfs), config.set("config", inner))
	if err == nil && len(history) > 0 {
		err = config.set("history", history)
	}
	if err != nil {
		return nil, err
	}
	return encode(config)
}

// addComments adds a comment to the steps of the history that made changed layers: those steps that are not empty are the
// layers, in order (OCI image-spec, config.md). Of a history that does not fit nothing is known.
func addComments(history []object, comments []string) error {
	var made []object
	for _, h := range history {
		var empty bool
		if err := h.get("empty_layer", &empty); err != nil {
			return err
		}
		if !empty {
			made = append(made, h)
		}
	}
	if len(made) != len(comments) {
		return nil
	}
	for i, h := range made {
		if comments[i] == "" {
			continue
		}
		var old string
		if err := h.get("comment", &old); err != nil {
			return err
		}
		if old != "" {
			old += "; "
		}
		if err := h.set("comment", old+comments[i]); err != nil {
			return err
		}
	}
	return nil
}
