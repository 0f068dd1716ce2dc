package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fake makes a machine of files, given by their path, with a proc file system at /proc.
func fake(t *testing.T, affinity int, env map[string]string, files map[string]string) machine {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return machine{
		root: root, proc: filepath.Join(root, "proc"), affinity: affinity,
		getenv: func(name string) string { return env[name] },
	}
}

const (
	mebibyte = int64(1) << 20
	meminfo  = "MemTotal:       67108864 kB\nMemFree:         1000 kB\nMemAvailable:   33554432 kB\n" // 64 and 32 GiB
)

func cpuinfo(n int) string {
	return strings.Repeat("processor\t: 0\nmodel name\t: X\n\n", n)
}

func TestCores(t *testing.T) {
	const v2Mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
	const v1Mounts = "31 23 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n32 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	for _, test := range []struct {
		name     string
		affinity int
		env      map[string]string
		files    map[string]string
		want     Cores
	}{
		{"no limit", 64, nil, nil, Cores{Available: 64, Total: 64}},
		{"affinity", 8, nil, nil, Cores{Available: 8, Total: 64, Limits: []Limit{{"affinity mask", 8}}}},
		{"v2 quota above this group", 64, nil, map[string]string{
			"proc/self/mountinfo": v2Mounts, "proc/self/cgroup": "0::/user.slice/job\n",
			"sys/fs/cgroup/user.slice/cpu.max": "350000 100000\n", "sys/fs/cgroup/user.slice/job/cpu.max": "max 100000\n",
		}, Cores{Available: 4, Total: 64, Limits: []Limit{{"/sys/fs/cgroup/user.slice", 4}}}},
		{"v1 quota", 64, nil, map[string]string{
			"proc/self/mountinfo": v1Mounts, "proc/self/cgroup": "4:memory:/other\n2:cpu,cpuacct:/job\n",
			"sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
		}, Cores{Available: 1, Total: 64, Limits: []Limit{{"/sys/fs/cgroup/cpu,cpuacct/job", 1}}}},
		{"in a container, whose group is the mount's top", 64, nil, map[string]string{
			"proc/self/mountinfo": "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "proc/self/cgroup": "0::/docker/abc\n",
			"sys/fs/cgroup/cpu.max": "200000 100000\n",
		}, Cores{Available: 2, Total: 64, Limits: []Limit{{"/sys/fs/cgroup", 2}}}},
		{"Slurm", 64, map[string]string{"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "16"}, nil, Cores{Available: 16, Total: 64, Limits: []Limit{{"SLURM_CPUS_PER_TASK", 16}}}},
		{"Slurm's variables left from elsewhere", 64, map[string]string{"SLURM_CPUS_PER_TASK": "16"}, nil, Cores{Available: 64, Total: 64}},
		{"nonsense", 64, nil, map[string]string{
			"proc/self/mountinfo": "- -\n 1 2 - cgroup2\n" + v2Mounts, "proc/self/cgroup": ":\n0::\n0::/../..\n",
			"sys/fs/cgroup/cpu.max": "-5 x\n",
		}, Cores{Available: 64, Total: 64}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := fake(t, test.affinity, test.env, test.files)
			if err := os.MkdirAll(m.proc, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(m.proc, "cpuinfo"), []byte(cpuinfo(64)), 0o644); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, m.cores()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	m := fake(t, 1, map[string]string{"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "1000", "SLURM_CPUS_ON_NODE": "24"}, map[string]string{
		"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
		"proc/self/mountinfo":             `30 23 0:26 / /sys/fs/c\040group rw - cgroup2 cgroup2 rw` + "\n",
		"sys/fs/c group/a/memory.max":     "17179869184\n", // 16 GiB
		"sys/fs/c group/a/memory.current": "8589934592\n",  // 8 GiB
		"sys/fs/c group/a/memory.stat":    "anon 1\ninactive_file 1073741824\nfile 5\n",
		"sys/fs/c group/a/b/memory.max":   "max\n",
		"sys/fs/c group/memory.max":       "9223372036854771712\n",
	})
	want := Memory{Total: 65536 * mebibyte, Available: 9216 * mebibyte, Limits: []Limit{
		{"/sys/fs/c group/a", 16384 * mebibyte},
		{"SLURM_MEM_PER_CPU", 24000 * mebibyte},
	}}
	if diff := cmp.Diff(want, m.memory()); diff != "" {
		t.Error(diff)
	}

	m = fake(t, 1, nil, map[string]string{
		"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/job\n",
		"proc/self/mountinfo":                            "32 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes":     "9223372036854771712\n",
		"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1073741824\n",
		"sys/fs/cgroup/memory/job/memory.usage_in_bytes": "2073741824\n",
	})
	want = Memory{Total: 65536 * mebibyte, Available: 0, Limits: []Limit{{"/sys/fs/cgroup/memory/job", 1024 * mebibyte}}}
	if diff := cmp.Diff(want, m.memory()); diff != "" {
		t.Error(diff)
	}
}

func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"free", map[string]string{"self/ns/user": "", "sys/user/max_user_namespaces": "1000\n", "self/status": "Name:\tx\nSeccomp:\t0\n"}, nil},
		{"no kernel support", nil, []string{"kernel"}},
		{"none allowed", map[string]string{"self/ns/user": "", "sys/user/max_user_namespaces": "0\n"}, []string{"user.max_user_namespaces"}},
		{"Debian's switch", map[string]string{"self/ns/user": "", "sys/kernel/unprivileged_userns_clone": "0\n"}, []string{"kernel.unprivileged_userns_clone"}},
		{"Ubuntu's switch", map[string]string{"self/ns/user": "", "sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, []string{"kernel.apparmor_restrict_unprivileged_userns"}},
		{"container", map[string]string{"self/ns/user": "", "self/status": "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"}, []string{"seccomp"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := fake(t, 1, nil, test.files)
			var got []string
			for _, r := range refusals(m.root) {
				got = append(got, r.Setting)
				if r.Reason == "" || r.Fix == "" {
					t.Errorf("%s: nothing says what it means and what to do", r.Setting)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReleaseBefore(t *testing.T) {
	for _, test := range []struct {
		release string
		want    bool
	}{
		{"4.18.0-553.el8_10.x86_64", true},
		{"5.10.0-30-amd64", true},
		{"5.11.0", false},
		{"5.14.21-150500.55_cray_shasta_c", false},
		{"6.1.0-18-arm64", false},
		{"6-rc1", false},
	} {
		if got := ReleaseBefore(test.release, "5.11"); got != test.want {
			t.Errorf("%s: %v", test.release, got)
		}
	}
}

func TestFileSystemOf(t *testing.T) {
	if got := FileSystemOf("/proc/self").Type; got != "proc" {
		t.Errorf("/proc is on %s", got)
	}
	if got := FileSystemOf("/no/such/path").Type; got != "unknown" {
		t.Errorf("a path that is not there is on %s", got)
	}
	dir := t.TempDir()
	if fs := FileSystemOf(dir); fs.Size <= 0 || fs.Free > fs.Size {
		t.Errorf("%d of %d bytes are free", fs.Free, fs.Size)
	}
	if got := existing(filepath.Join(dir, "not", "yet")); got != dir {
		t.Errorf("the nearest directory is %s, want %s", got, dir)
	}
}

func TestFindTools(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\n[ \"$1\" = --version ] && echo 'uv 9.9.9 (test)' && echo more\n"
	if err := os.WriteFile(filepath.Join(bin, "uv"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	for _, tool := range FindTools(t.Context()) {
		switch {
		case tool.Name == "uv" && (tool.Version != "uv 9.9.9 (test)" || tool.Path != filepath.Join(bin, "uv")):
			t.Errorf("uv: %+v", tool)
		case tool.Name != "uv" && tool.Path != "":
			t.Errorf("%s is not on PATH, but was found at %s", tool.Name, tool.Path)
		case tool.Install == "" || tool.Purpose == "":
			t.Errorf("%s: nothing says what it is for and how to install it", tool.Name)
		}
	}
}

func TestCollect(t *testing.T) {
	r := Collect(t.Context(), filepath.Join(t.TempDir(), "store"))
	if r.Cores.Available < 1 || r.Cores.Available > r.Cores.Total || r.Memory.Available > r.Memory.Total || r.Kernel == "" || r.Store.Type == "unknown" {
		t.Errorf("%+v", r)
	}
}
