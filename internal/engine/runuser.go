package engine

import (
	"fmt"
	"os"
	"slices"
	"strconv"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/users"
)

// Who a command may run as, besides by the caller's name and number: auto is the caller in a job step, else root.
const (
	UserAuto = "auto"
	UserSelf = "self"
	UserRoot = "root"
)

// runsAs returns who the command runs as, nil for root. There are these two: an ordinary user's name space has one user, who can be
// called either.
func runsAs(user string, inStep bool) (*users.Account, error) {
	switch user {
	case UserAuto:
		if !inStep {
			return nil, nil
		}
	case UserRoot, "0", "0:0", "root:root":
		return nil, nil
	}
	if os.Geteuid() == 0 {
		return nil, checkUser(user, users.Account{Name: UserRoot, Group: UserRoot})
	}
	self := users.Caller()
	return &self, checkUser(user, self)
}

// checkUser says no to anybody but the caller.
func checkUser(user string, self users.Account) error {
	uid, gid := strconv.Itoa(self.UID), strconv.Itoa(self.GID)
	known := []string{UserAuto, UserSelf, self.Name, self.Name + ":" + self.Group, uid, uid + ":" + gid}
	if slices.Contains(known, user) {
		return nil
	}
	return fault.Usage(fault.Hint(fmt.Errorf("--user %s: a command runs as root or as %s, who started it", user, self.Name),
		"write --user root or --user self; what it writes to bound directories is yours with either"))
}
