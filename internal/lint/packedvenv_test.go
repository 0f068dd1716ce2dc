package lint

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/store"
	packed "sconce.dev/sconce/internal/venv"
)

// A packed environment is found wherever a file names it, and judged by the image that it is mounted on.
func TestPackedVenvs(t *testing.T) {
	base, other := store.DigestOf([]byte("base")), store.DigestOf([]byte("other"))
	record, err := packed.Record{
		Base:     packed.Base{Image: "llm:1", Digest: base, Platform: "linux/amd64", Executable: "/usr/bin/python3", Python: "3.11.2", Mount: "/venv"},
		Packages: []packed.Package{{Name: "torch", Version: "2.9.0"}},
	}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	exp := pack(t, map[string]string{packed.RecordFile: string(record), "pyvenv.cfg": "home = /usr/bin\n", "bin/activate": ""})
	byHand := pack(t, map[string]string{"pyvenv.cfg": "home = /usr/bin\n", "bin/activate": ""})
	images := map[string]*facts.Facts{
		"/base.sqsh":   {Digest: string(base), Root: dirRoot{}},
		"/other.sqsh":  {Digest: string(other), Root: dirRoot{}},
		"/torch.sqsh":  {Digest: string(base), Root: dirRoot{}, Paths: []facts.Info{{Path: "usr/lib/python3/dist-packages/torch-2.7.0.dist-info", Type: layer.Dir}}},
		"/nobody.sqsh": {Root: dirRoot{}},
	}
	changed := []string{"venv-base-changed"}
	for name, c := range map[string]struct {
		file, text string // of which EXP is the environment's file
		image      string
		want       []string
	}{
		"an environment definition file": {"e.toml", "image = \"IMAGE\"\nentrypoint = false\nmounts = [\"EXP:/venv:sqsh\"]\n", "/other.sqsh", changed},
		"the base":                       {"e.toml", "image = \"IMAGE\"\nentrypoint = false\nmounts = [\"EXP:/venv:sqsh\"]\n", "/base.sqsh", nil},
		"a file without a digest":        {"e.toml", "image = \"IMAGE\"\nentrypoint = false\nmounts = [\"EXP:/venv:sqsh\"]\n", "/nobody.sqsh", nil},
		"a second torch":                 {"e.toml", "image = \"IMAGE\"\nentrypoint = false\nmounts = [\"EXP:/venv:sqsh\"]\n", "/torch.sqsh", []string{"venv-two-torch"}},
		"pyxis":                          {"a.sbatch", "export SCONCE_VENV=\"EXP:/venv\"\nsrun --container-image=IMAGE ./a\n", "/other.sqsh", changed},
		"pyxis and the base":             {"a.sbatch", "export SCONCE_VENV=\"EXP:/venv\"\nsrun --container-image=IMAGE ./a\n", "/base.sqsh", nil},
		"apptainer":                      {"a.sbatch", "srun apptainer exec --nv --pwd / --bind /a:/b -B EXP:/venv:image-src=/ IMAGE ./a\n", "/other.sqsh", changed},
		"apptainer and a variable":       {"a.sbatch", "srun apptainer exec --bind=\"${EXPDIR}/store.squashfs:/venv:image-src=/\" IMAGE ./a\n", "/other.sqsh", changed},
		"uenv":                           {"a.sbatch", "srun --uenv=IMAGE,EXP:/user-tools ./a\n", "/other.sqsh", changed},
		"uenv as a directive":            {"a.sbatch", "#SBATCH --uenv=IMAGE,EXP:/user-tools\nsrun ./a\n", "/other.sqsh", changed},
		"uenv and the base":              {"a.sbatch", "#SBATCH --uenv=IMAGE,EXP:/user-tools\nsrun ./a\n", "/base.sqsh", nil},
		"beside a label":                 {"a.sbatch", "srun --uenv=pytorch/v2.6.0:v1,EXP:/user-tools ./a\n", "", nil},
		"sconce run":                     {"a.sbatch", "srun sconce run --gpu --env A --venv=EXP IMAGE -- ./a\n", "/other.sqsh", changed},
		"sconce run and the base":        {"a.sbatch", "srun sconce run --gpu --env A --venv EXP:/v IMAGE -- ./a\n", "/base.sqsh", nil},
		"packed by hand":                 {"a.sbatch", "srun sconce run --venv=" + byHand + " IMAGE -- ./a\n", "/other.sqsh", nil},
		"a variable that nobody knows":   {"a.sbatch", "srun sconce run --venv=$EXPERIMENT IMAGE -- ./a\n", "/other.sqsh", nil},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), c.file)
			text := strings.NewReplacer("EXPDIR", "EXPDIR", "EXPERIMENT", "EXPERIMENT", "EXP", exp, "IMAGE", c.image).Replace(c.text)
			if strings.HasSuffix(c.file, ".sbatch") {
				text = "#!/bin/bash\n" + text
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			result, err := Check(t.Context(), []string{file}, Options{
				Lookup: func(name string) (string, bool) { return filepath.Dir(exp), name == "EXPDIR" },
				Coming: map[string]string{"/base.sqsh": "", "/other.sqsh": "", "/torch.sqsh": "", "/nobody.sqsh": ""}, // nobody misses them
				Image: func(_ context.Context, name string) (*facts.Facts, string, error) {
					if !strings.HasPrefix(name, "/") {
						t.Errorf("%s is taken for an image", name)
					}
					return images[name], "", nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range result.Findings {
				if strings.HasPrefix(f.Rule, "venv-") {
					got = append(got, f.Rule)
				}
				if f.Rule == "venv-base-changed" && (f.Line == 0 || f.Message != exp+" was made for llm:1 ("+base.Short()+"), and "+c.image+" is another image") {
					t.Errorf("line %d: %s", f.Line, f.Message)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("found %v, want %v", got, c.want)
			}
		})
	}
}
