package host

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// group is one level of a control group hierarchy that limits this process.
type group struct {
	dir    string
	source string // how to name it to a person
	v2     bool
}

// groups lists the control groups that limit a resource of this process, from its own up to the hierarchy's top: a limit of
// any of them holds (Linux Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/). On a host with both versions, a
// controller is in one of them.
func (m machine) groups(controller string) []group {
	var found []group
	membership, err := os.ReadFile(filepath.Join(m.proc, "self/cgroup"))
	if err != nil {
		return nil
	}
	mounts := m.cgroupMounts()
	for line := range strings.Lines(string(membership)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		v2 := fields[0] == "0" && fields[1] == ""
		if !v2 && !slices.Contains(strings.Split(fields[1], ","), controller) {
			continue
		}
		for _, mount := range mounts {
			if mount.v2 == v2 && (v2 || slices.Contains(mount.controllers, controller)) {
				found = append(found, m.levels(mount, fields[2])...)
				break
			}
		}
	}
	return found
}

// levels lists the directories from the group at path up to where its hierarchy is mounted.
func (m machine) levels(mount cgroupMount, path string) []group {
	below, ok := strings.CutPrefix(path, strings.TrimSuffix(mount.root, "/"))
	if !ok || below != "" && below[0] != '/' {
		below = "" // a container shows its own group as the mount's top
	}
	var found []group
	for at := filepath.Clean("/" + below); ; at = filepath.Dir(at) {
		dir := filepath.Join(mount.point, at)
		found = append(found, group{dir: filepath.Join(m.root, dir), source: dir, v2: mount.v2})
		if at == "/" {
			return found
		}
	}
}

// cgroupMount is where a hierarchy is mounted.
type cgroupMount struct {
	point, root string
	controllers []string // version 1
	v2          bool
}

// cgroupMounts reads the mount table (proc(5), /proc/pid/mountinfo): fields 4 and 5 are root and mount point; after " - "
// come the type, the source and the options, which name the controllers.
func (m machine) cgroupMounts() []cgroupMount {
	table, err := os.ReadFile(filepath.Join(m.proc, "self/mountinfo"))
	if err != nil {
		return nil
	}
	var mounts []cgroupMount
	for line := range strings.Lines(string(table)) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		where, what := strings.Fields(before), strings.Fields(after)
		if len(where) < 5 || len(what) < 3 || what[0] != "cgroup" && what[0] != "cgroup2" {
			continue
		}
		mounts = append(mounts, cgroupMount{
			root: unescape(where[3]), point: unescape(where[4]),
			controllers: strings.Split(what[2], ","), v2: what[0] == "cgroup2",
		})
	}
	return mounts
}

// unescape undoes what the mount table does to spaces, tabs, newlines and backslashes: \040 and the like.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// cores returns the group's processor quota in cores, rounded up, 0 for none.
func (g group) cores() int64 {
	var quota, period int64
	if g.v2 {
		q, p, _ := strings.Cut(readLine(filepath.Join(g.dir, "cpu.max")), " ")
		quota, period = number(q), number(p)
	} else {
		quota, period = g.number("cpu.cfs_quota_us"), g.number("cpu.cfs_period_us")
	}
	if quota == 0 || period == 0 {
		return 0
	}
	return (quota + period - 1) / period
}

// memory returns the group's limit, 0 for none, and how much of it is left. Cached file content that was not used lately
// counts as left, because the kernel drops it before it would refuse memory.
func (g group) memory() (limit, left int64) {
	if g.v2 {
		limit = g.number("memory.max")
		if high := g.number("memory.high"); high > 0 && (limit == 0 || high < limit) {
			limit = high // above it the kernel slows the group down until it hardly moves
		}
		return limit, max(0, limit-g.number("memory.current")+g.stat("inactive_file"))
	}
	limit = g.number("memory.limit_in_bytes")
	return limit, max(0, limit-g.number("memory.usage_in_bytes")+g.stat("total_inactive_file"))
}

func (g group) number(file string) int64 { return number(readLine(filepath.Join(g.dir, file))) }

// stat reads one number of memory.stat.
func (g group) stat(key string) int64 {
	b, err := os.ReadFile(filepath.Join(g.dir, "memory.stat"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if k, v, _ := strings.Cut(line, " "); k == key {
			return number(v)
		}
	}
	return 0
}
