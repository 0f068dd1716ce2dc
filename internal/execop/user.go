package execop

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/fault"
)

// identity is who a command runs as.
type identity struct {
	uid, gid int
	groups   []int // supplementary
	home     string
}

// maxAccounts bounds /etc/passwd and /etc/group, in bytes.
const maxAccounts = 16 << 20

// user resolves Command.User as container runtimes do: names are looked up in the image, numbers need no account. The
// supplementary groups are those that list the user, unless a group is named.
func (s *running) user() (identity, error) {
	name, group, hasGroup := strings.Cut(s.c.User, ":")
	if name == "" {
		name = "0"
	}
	passwd, err := s.accounts("/etc/passwd")
	if err != nil {
		return identity{}, err
	}
	who, account, err := findUser(passwd, name)
	if err != nil {
		return identity{}, err
	}
	groups, err := s.accounts("/etc/group")
	if err != nil {
		return identity{}, err
	}
	if hasGroup {
		who.gid, err = findGroup(groups, group)
		return who, err
	}
	for _, g := range groups { // name:password:gid:members
		if len(g) < 4 || account == "" || !slices.Contains(strings.Split(g[3], ","), account) {
			continue
		}
		if id, ok := parseID(g[2]); ok && id != who.gid && !slices.Contains(who.groups, id) {
			who.groups = append(who.groups, id)
		}
	}
	return who, nil
}

// accounts reads a file of lines of fields. One that is not there has no lines.
func (s *running) accounts(file string) ([][]string, error) {
	data, err := s.tree.ReadFile(file, maxAccounts)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up users in the image: %w", err)
	}
	var lines [][]string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			lines = append(lines, strings.Split(line, ":"))
		}
	}
	return lines, nil
}

// findUser finds a user, and the name of the account if there is one.
func findUser(passwd [][]string, name string) (identity, string, error) {
	number, isNumber := parseID(name)
	for _, f := range passwd { // name:password:uid:gid:comment:home:shell
		if len(f) < 6 {
			continue
		}
		uid, ok := parseID(f[2])
		if !ok || f[0] != name && (!isNumber || uid != number) {
			continue
		}
		who := identity{uid: uid, home: f[5]}
		who.gid, _ = parseID(f[3])
		if who.home == "" {
			who.home = "/"
		}
		return who, f[0], nil
	}
	if !isNumber {
		return identity{}, "", fault.Hint(fmt.Errorf("the image has no user %q", name), "make it in an earlier step (useradd), or give a number")
	}
	who := identity{uid: number, home: "/"}
	if number == 0 {
		who.home = "/root"
	}
	return who, "", nil
}

func findGroup(groups [][]string, name string) (int, error) {
	for _, g := range groups {
		if len(g) < 3 || g[0] != name {
			continue
		}
		if id, ok := parseID(g[2]); ok {
			return id, nil
		}
	}
	if id, ok := parseID(name); ok {
		return id, nil
	}
	return 0, fault.Hint(fmt.Errorf("the image has no group %q", name), "make it in an earlier step (groupadd), or give a number")
}

func parseID(text string) (int, bool) {
	id, err := strconv.ParseUint(text, 10, 32)
	return int(id), err == nil && id < 1<<32-1
}
