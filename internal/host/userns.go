package host

import (
	"os"
	"path/filepath"
	"strings"
)

// Refusal is a setting of this host that keeps ordinary users from making a user namespace, or from using one.
type Refusal struct {
	Setting string `json:"setting"` // what refuses: a sysctl, a seccomp filter, the kernel
	Value   string `json:"value"`   // what it is set to
	Reason  string `json:"reason"`  // what that means, one clause
	Fix     string `json:"fix"`     // what an administrator can do
}

// sysctls are the switches of user namespaces, in the order in which they take effect, with the value that refuses.
var sysctls = []struct {
	name, refusing string
	reason, fix    string
}{
	{
		"user.max_user_namespaces", "0", "no user namespace may be made on this host",
		"an administrator can allow them: sysctl -w user.max_user_namespaces=15000",
	},
	{
		"user.max_mnt_namespaces", "0", "no mount namespace may be made on this host",
		"an administrator can allow them: sysctl -w user.max_mnt_namespaces=15000",
	},
	{
		"user.max_pid_namespaces", "0", "no pid namespace may be made on this host",
		"an administrator can allow them: sysctl -w user.max_pid_namespaces=15000",
	},
	{
		"kernel.unprivileged_userns_clone", "0", "only root may make user namespaces on this host",
		"an administrator can allow them: sysctl -w kernel.unprivileged_userns_clone=1",
	},
	{
		"kernel.apparmor_restrict_unprivileged_userns", "1", "AppArmor takes all rights away in user namespaces of programs without a profile",
		"an administrator can lift it: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give sconce an AppArmor profile with the rule \"userns,\"",
	},
}

// Refusals returns what is known to keep an ordinary user from working in a user namespace here, the most basic first.
// An empty answer does not prove that it works: a security module may have rules of its own, so whoever needs to know tries.
func Refusals() []Refusal { return refusals("/proc") }

// refusals reads the proc file system at proc.
func refusals(proc string) []Refusal {
	var found []Refusal
	if _, err := os.Stat(filepath.Join(proc, "self/ns/user")); err != nil {
		found = append(found, Refusal{
			Setting: "kernel", Value: "without CONFIG_USER_NS", Reason: "the kernel has no user namespaces",
			Fix: "use a kernel with CONFIG_USER_NS=y",
		})
	}
	for _, s := range sysctls {
		value := readLine(filepath.Join(proc, "sys", strings.ReplaceAll(s.name, ".", "/")))
		if value == s.refusing {
			found = append(found, Refusal{Setting: s.name, Value: value, Reason: s.reason, Fix: s.fix})
		}
	}
	if filtered(proc) {
		found = append(found, Refusal{
			Setting: "seccomp", Value: "filter", Reason: "this process runs under a system call filter, as in a container, which may forbid namespaces and mounts",
			Fix: "start the container with --security-opt seccomp=unconfined, or run sconce outside it",
		})
	}
	return found
}

// filtered reports whether a seccomp filter is on this process (proc(5): Seccomp in /proc/pid/status).
func filtered(proc string) bool {
	status, err := os.ReadFile(filepath.Join(proc, "self/status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "Seccomp:"); ok {
			return strings.TrimSpace(v) == "2"
		}
	}
	return false
}

// readLine returns the trimmed content of a small file, "" when it cannot be read.
func readLine(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
