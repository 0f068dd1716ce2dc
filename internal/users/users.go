// Package users finds users and groups of this machine by their names and numbers. Those of a cluster are in a directory service, which only the
// C library asks; getent(1) is its voice.
package users

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sconce.dev/sconce/internal/child"
)

// ID returns the id of a user, who may be given by it.
func ID(name string) (uint32, bool) {
	if u, err := user.Lookup(name); err == nil {
		return idNumber(u.Uid)
	}
	if id, ok := idNumber(name); ok {
		return id, true
	}
	return idNumber(getent("passwd", name, 2))
}

// Name returns a user's name, or the number when nobody knows one.
func Name(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	if name := getent("passwd", id, 0); name != "" {
		return name
	}
	return id
}

// Account is a user as the databases of a machine have them.
type Account struct {
	UID   int    `json:"uid"`
	GID   int    `json:"gid"`
	Name  string `json:"name"`
	Group string `json:"group"`
	Home  string `json:"home"` // absolute
}

// Caller returns who this process runs as. A user whom no database knows has the environment's name and home; one of whom that says
// nothing either has a number for a name, and the home /.
func Caller() Account {
	a := Account{UID: os.Geteuid(), GID: os.Getegid()}
	id, group := strconv.Itoa(a.UID), strconv.Itoa(a.GID)
	if u, err := user.LookupId(id); err == nil {
		a.Name, a.Home = u.Username, u.HomeDir
	} else {
		a.Name, a.Home = cmp.Or(getent("passwd", id, 0), plain(os.Getenv("USER")), id), getent("passwd", id, 5)
	}
	if !filepath.IsAbs(a.Home) {
		a.Home = plain(os.Getenv("HOME"))
	}
	if !filepath.IsAbs(a.Home) {
		a.Home = "/"
	}
	if g, err := user.LookupGroupId(group); err == nil {
		a.Group = g.Name
	} else {
		a.Group = cmp.Or(getent("group", group, 0), group)
	}
	return a
}

// plain returns a text that can be a field of passwd(5), "" for any other.
func plain(text string) string {
	if strings.ContainsAny(text, ":\n") {
		return ""
	}
	return text
}

// GroupID returns the id of a group, which may be given by it.
func GroupID(name string) (uint32, bool) {
	if g, err := user.LookupGroup(name); err == nil {
		return idNumber(g.Gid)
	}
	if id, ok := idNumber(name); ok {
		return id, true
	}
	return idNumber(getent("group", name, 2))
}

func idNumber(text string) (uint32, bool) {
	id, err := strconv.ParseUint(text, 10, 32)
	return uint32(id), err == nil
}

// getent returns a field of an entry of a system database; "" when there is none, or no getent.
func getent(database, key string, field int) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // a directory service may hang
	defer cancel()
	out, err := child.Output(exec.CommandContext(ctx, "getent", "--", database, key))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	fields := strings.Split(line, ":")
	if len(fields) <= field {
		return ""
	}
	return fields[field]
}
