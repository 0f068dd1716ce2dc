package cli

import (
	"fmt"
	"os"
	"slices"
	"strconv"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/users"
)

// What --user takes besides names and numbers.
const (
	userAuto = "auto"
	userSelf = "self"
	userRoot = "root"
)

// runsAs returns who the command runs as, nil for root. There are these two: an ordinary user's name space has one user, who can be
// called either.
func (o *runOptions) runsAs(inStep bool) (*users.Account, error) {
	switch o.user {
	case userAuto:
		if !inStep {
			return nil, nil
		}
	case userRoot, "0", "0:0", "root:root":
		return nil, nil
	}
	if os.Geteuid() == 0 {
		return nil, o.checkUser(users.Account{Name: userRoot, Group: userRoot})
	}
	self := users.Caller()
	return &self, o.checkUser(self)
}

// checkUser says no to anybody but the caller.
func (o *runOptions) checkUser(self users.Account) error {
	uid, gid := strconv.Itoa(self.UID), strconv.Itoa(self.GID)
	known := []string{userAuto, userSelf, self.Name, self.Name + ":" + self.Group, uid, uid + ":" + gid}
	if slices.Contains(known, o.user) {
		return nil
	}
	return fault.Usage(fault.Hint(fmt.Errorf("--user %s: a command runs as root or as %s, who started it", o.user, self.Name),
		"write --user root or --user self; what it writes to bound directories is yours with either"))
}
