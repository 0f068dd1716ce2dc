package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A request for resources is one; what names files and programs, or hides such an option behind another one, is none.
func TestCheckOption(t *testing.T) {
	for _, text := range []string{
		"--exclusive", "--mem=0", "--mem 0", "-N4", "-N 4", "-H", "-s", "--hold", "--nice=-5", "--comment='of mine, 1st'", `--constraint="a|b"`, "--exclude=n1,n2", "--signal=B:USR1@60",
		"--licenses=scratch:2", "--switches=1@10:00",
	} {
		if err := CheckOption(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{
		"--output=/home/me/.bashrc", "--outp=/x", "-o/x", "-o /x", "--error=/x", "-e", "--input=/x", "--open-mode=append", "--export=ALL,LD_PRELOAD=/x", "--export-file=/x", "--wrap=id", "--chdir=/", "-D/",
		"--prolog=/x", "--task-prolog=/x", "--task-epilog=/x", "--epilog=/x", "--bcast=/x", "--bb=x", "--bbf=/x", "--get-user-env", "--mail-user=a@b", "--mail-type=ALL", "--uid=0", "--gid=0", "--nodefile=/x", "-F/x",
		"--batch=x", "--container=/x", "--container-image=x", "--environment=x", "--uenv=x", "--test-only", "--parsable", "--wait", "-W", "--x11", "--propagate", "--profile=All", "--no-such",
		"--exclusive --output=/x", "--mem 0 --output=/x", "--hold -o/x", "-Ho/x", "-sN4", "--mem=0\t--output=/x", "--mem='0' --output=/x", "--mem='0'--output=/x", "--mem=0 '--output=/x'", `--mem=0\ --output=/x`,
		"--job-name=../x", "-Jx", "--mem=0 # x", "--mem=0\n#SBATCH --output=/x", "--mem --output=/x", "--Mem=0", "exclusive", "--", "-", "",
	} {
		if err := CheckOption(text); err == nil {
			t.Errorf("%q is let through", text)
		}
	}
}

func TestCheckVariable(t *testing.T) {
	for _, name := range []string{"NCCL_DEBUG", "FI_PROVIDER", "OMP_NUM_THREADS", "PYTHONNOUSERSITE", "PYTHONUNBUFFERED", "HF_HOME", "CUDA_VISIBLE_DEVICES", "UCX_TLS", "PATHS", "TMPDIR", "SCONCE_TEST_SIZE", "MPICH_GPU_SUPPORT_ENABLED"} {
		if err := CheckVariable(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"PATH", "LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "BASH_FUNC_mv%%", "ENV", "SLURM_TASK_PROLOG", "SBATCH_OUTPUT", "SRUN_OUTPUT", "APPTAINER_BIND", "APPTAINERENV_X", "SCONCE_STORE", "ENROOT_CONFIG_PATH", "PYTHONPATH", "XDG_CONFIG_HOME", "HOME", "PMIX_SERVER_TMPDIR", "FLUX_URI", "PMI_FD", "SSL_CERT_FILE"} {
		if err := CheckVariable(name); err == nil {
			t.Errorf("%s is let through", name)
		}
	}
}

// Only profiles of the user and the site say what changes the host, and one of a repository does not come before theirs unseen.
func TestBrought(t *testing.T) {
	config, repository := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	write := func(dir, name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const output = "[slurm]\noptions = [\"--output=/x\"]\n"
	own := write(config, "sconce/clusters/two.toml", output)
	if f, err := Find("two", repository); err != nil || f.Brought || f.Over != "" {
		t.Errorf("the user's: %+v, %v", f, err)
	}
	if f, err := Find(own, ""); err != nil || f.Brought {
		t.Errorf("the user's by its file: %+v, %v", f, err)
	}
	if f, err := Find("clariden", repository); err != nil || f.Brought {
		t.Errorf("one that comes with sconce: %+v, %v", f, err)
	}
	brought := write(repository, "clusters/two.toml", "base = \"two\"\n[slurm]\naccount = \"g1\"\n")
	for name, dir := range map[string]string{"two": repository, brought: ""} {
		f, err := Find(name, dir)
		if err != nil || !f.Brought || f.Slurm.Account != "g1" || len(f.Slurm.Options) != 1 || dir != "" && f.Over != own {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
	for text, want := range map[string]string{
		output:                                   `slurm.options: "--output" does not ask`,
		"[env]\nLD_PRELOAD = \"/x\"\n":           "env: LD_PRELOAD would",
		"[env.uenv]\nPATH = \"/x\"\n":            "env.uenv: PATH would",
		"base = \"./more.toml\"\n":               `more.toml: slurm.options: "--error"`,
		"[slurm]\noptions = [\"--hold -o/x\"]\n": "is not one option",
	} {
		write(repository, "clusters/more.toml", "[slurm]\noptions = [\"--error=/x\"]\n")
		file := write(repository, "clusters/two.toml", text)
		for name, dir := range map[string]string{"two": repository, file: ""} {
			if f, err := Find(name, dir); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %+v, %v, want %q", text, f, err, want)
			}
		}
	}
}
