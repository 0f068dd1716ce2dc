package host

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limit is something that keeps this process from using the whole machine.
type Limit struct {
	Source string `json:"source"` // a file of a control group, a variable of Slurm, …
	Value  int64  `json:"value"`  // cores, or bytes
}

// Cores says how many processor cores this process may use.
type Cores struct {
	Available int     `json:"available"` // at least 1
	Total     int     `json:"total"`     // of the machine
	Limits    []Limit `json:"limits,omitempty"`
}

// Memory says how much memory this process may use, in bytes.
type Memory struct {
	Available int64   `json:"available"` // free or easily freed, within all limits
	Total     int64   `json:"total"`     // of the machine
	Limits    []Limit `json:"limits,omitempty"`
}

// machine is where limits are read from: this host, or a made-up one in a test.
type machine struct {
	proc     string // where proc is mounted
	root     string // before every path that a mount table names
	getenv   func(string) string
	affinity int // cores that the scheduler lets this process run on
}

func thisMachine() machine {
	return machine{proc: "/proc", getenv: os.Getenv, affinity: runtime.NumCPU()}
}

// AvailableCores looks at the scheduler's affinity mask (taskset, cpusets, Slurm's task plugin), the processor quotas of all
// control groups that this process is in, and its Slurm job.
func AvailableCores() Cores { return thisMachine().cores() }

// AvailableMemory looks at the kernel's estimate of what can be had without swapping, the limits and usage of all control
// groups that this process is in, and its Slurm job.
func AvailableMemory() Memory { return thisMachine().memory() }

func (m machine) cores() Cores {
	c := Cores{Total: m.processors()}
	c.Available = c.Total
	limits := []Limit{{Source: "affinity mask", Value: int64(m.affinity)}}
	for _, g := range m.groups("cpu") {
		if n := g.cores(); n > 0 {
			limits = append(limits, Limit{Source: g.source, Value: n})
		}
	}
	if n := m.slurm("SLURM_CPUS_PER_TASK"); n > 0 {
		limits = append(limits, Limit{Source: "SLURM_CPUS_PER_TASK", Value: n})
	}
	for _, l := range limits {
		if l.Value < int64(c.Total) {
			c.Limits = append(c.Limits, l)
			c.Available = min(c.Available, int(l.Value))
		}
	}
	c.Available = max(c.Available, 1)
	return c
}

// processors counts the machine's cores in /proc/cpuinfo, which, unlike the affinity mask, no limit hides.
func (m machine) processors() int {
	b, err := os.ReadFile(filepath.Join(m.proc, "cpuinfo"))
	if err != nil {
		return m.affinity
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		if key, _, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "processor" {
			n++
		}
	}
	return max(n, m.affinity)
}

func (m machine) memory() Memory {
	total, free := m.meminfo()
	mem := Memory{Total: total, Available: free}
	for _, g := range m.groups("memory") {
		limit, left := g.memory()
		if limit <= 0 || limit >= total {
			continue
		}
		mem.Limits = append(mem.Limits, Limit{Source: g.source, Value: limit})
		mem.Available = min(mem.Available, left)
	}
	if name, limit := m.slurmMemory(); limit > 0 && limit < total {
		mem.Limits = append(mem.Limits, Limit{Source: name, Value: limit})
		mem.Available = min(mem.Available, limit)
	}
	return mem
}

// meminfo reads MemTotal and MemAvailable from proc, in bytes.
func (m machine) meminfo() (total, available int64) {
	b, err := os.ReadFile(filepath.Join(m.proc, "meminfo"))
	if err != nil {
		var info unix.Sysinfo_t
		if unix.Sysinfo(&info) != nil {
			return 0, 0
		}
		return int64(info.Totalram) * int64(info.Unit), int64(info.Freeram) * int64(info.Unit)
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		kib := number(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		switch key {
		case "MemTotal":
			total = kib << 10
		case "MemAvailable":
			available = kib << 10
		}
	}
	return total, available
}

// slurm reads a number from the environment of a Slurm job (sbatch(1), OUTPUT ENVIRONMENT VARIABLES); 0 outside a job.
func (m machine) slurm(name string) int64 {
	if m.getenv("SLURM_JOB_ID") == "" {
		return 0
	}
	return number(m.getenv(name))
}

// slurmMemory returns the memory of the job on this node; Slurm counts in MiB.
func (m machine) slurmMemory() (source string, limit int64) {
	if n := m.slurm("SLURM_MEM_PER_NODE"); n > 0 {
		return "SLURM_MEM_PER_NODE", n << 20
	}
	if n := m.slurm("SLURM_MEM_PER_CPU"); n > 0 {
		return "SLURM_MEM_PER_CPU", n * max(m.slurm("SLURM_CPUS_ON_NODE"), 1) << 20
	}
	return "", 0
}

// number parses a count; what is none, "max" for instance, or negative, is 0.
func number(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil || n < 0 || n > 1<<60 {
		return 0
	}
	return n
}
