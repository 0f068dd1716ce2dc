package rootemu

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// keep is the id -1 of calls that change several: leave this one.
const keep = ^uint32(0)

// ids are the four user or group ids of a process, see credentials(7).
type ids struct{ real, effective, saved, fs uint32 }

// identity is who a process believes to be.
type identity struct {
	users, groups ids
	supplementary []uint32

	// keeps is the program that has asked to keep root's rights when it becomes another user (PR_SET_KEEPCAPS of prctl(2)),
	// "" if it has not. They end with the next exec(2), which the supervisor does not hear of: the program is another then.
	keeps string

	// raised is the program with a setuid or setgid bit that has had its rights from it, "" if there was none.
	raised string
}

// rootIdentity is who a process is that has never asked to be somebody else.
func rootIdentity() *identity { return &identity{supplementary: []uint32{0}} }

// set is setuid(2) or setgid(2); privileged has CAP_SETUID or CAP_SETGID.
func (i *ids) set(id uint32, privileged bool) error {
	switch {
	case id == keep:
		return unix.EINVAL
	case privileged:
		*i = ids{id, id, id, id}
	case id == i.real || id == i.saved:
		i.effective, i.fs = id, id
	default:
		return unix.EPERM
	}
	return nil
}

// setRE is setreuid(2) or setregid(2).
func (i *ids) setRE(real, effective uint32, privileged bool) error {
	old := *i
	if !privileged && (!oneOf(real, old.real, old.effective) || !oneOf(effective, old.real, old.effective, old.saved)) {
		return unix.EPERM
	}
	replace(&i.real, real)
	replace(&i.effective, effective)
	if real != keep || effective != keep && effective != old.real {
		i.saved = i.effective
	}
	i.fs = i.effective
	return nil
}

// setRES is setresuid(2) or setresgid(2).
func (i *ids) setRES(real, effective, saved uint32, privileged bool) error {
	if !privileged {
		for _, id := range []uint32{real, effective, saved} {
			if !oneOf(id, i.real, i.effective, i.saved) {
				return unix.EPERM
			}
		}
	}
	replace(&i.real, real)
	replace(&i.effective, effective)
	replace(&i.saved, saved)
	i.fs = i.effective
	return nil
}

// setFS is setfsuid(2) or setfsgid(2): it returns the id before, and nothing tells whether it has changed.
func (i *ids) setFS(id uint32, privileged bool) uint32 {
	old := i.fs
	if privileged || oneOf(id, i.real, i.effective, i.saved, i.fs) {
		replace(&i.fs, id)
	}
	return old
}

func oneOf(id uint32, allowed ...uint32) bool { return id == keep || slices.Contains(allowed, id) }

func replace(old *uint32, id uint32) {
	if id != keep {
		*old = id
	}
}

// maxGroups is NGROUPS_MAX of the kernel.
const maxGroups = 1 << 16

// maxIdentities bounds the memory that a command can make the supervisor take; a machine has fewer accounts.
const maxIdentities = 1 << 12

// identities numbers all identities that processes have had.
type identities struct {
	numbered []*identity
	numbers  map[string]uint64
}

func newIdentities() *identities { return &identities{numbers: map[string]uint64{}} }

func (all *identities) numberOf(i *identity) (uint64, error) {
	key := fmt.Sprint(i.users, i.groups, i.supplementary, i.keeps, "\x00", i.raised)
	n, ok := all.numbers[key]
	if ok {
		return n, nil
	}
	if len(all.numbered) >= maxIdentities {
		return 0, unix.EAGAIN
	}
	n = uint64(len(all.numbered))
	all.numbered, all.numbers[key] = append(all.numbered, i), n
	return n, nil
}

// rlimitLocks is RLIMIT_LOCKS of getrlimit(2): Linux has not looked at it since 2.4.
//
// The kernel carries it along: a child has its parent's from the moment of the fork on, exec(2) keeps it, and the supervisor
// can read and set it of any process. That makes it the place to write down which identity a process has. There is no
// other bookkeeping that could miss a fork, or the death of a parent.
const rlimitLocks = 10

// identityMark distinguishes the number of an identity from a limit that somebody set.
const (
	identityMark = 0x5c0c_e000_0000_0000
	identityMask = 0xffff_f000_0000_0000
)

// identity returns who the process is.
func (p *process) identity() (*identity, error) {
	i, err := p.identityOf(int(p.pid))
	if err != nil || i.users.effective == 0 {
		return i, err
	}
	return p.raise(i)
}

// identityOf returns who a process is but for what the program that it runs makes of that.
func (s *supervisor) identityOf(pid int) (*identity, error) {
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, rlimitLocks, nil, &limit); err != nil {
		return nil, err
	}
	n := limit.Cur &^ uint64(identityMask)
	if limit.Cur&identityMask != identityMark || n >= uint64(len(s.identities.numbered)) {
		return rootIdentity(), nil
	}
	return s.identities.numbered[n], nil
}

// raise gives who runs a program with the setuid or setgid bit the rights of its owner. The kernel does not, where nobody may
// gain privileges; and because the supervisor hears of no exec(2), it is done with the first call after it.
func (p *process) raise(i *identity) (*identity, error) {
	name := p.program()
	if name == "" || name == i.raised {
		return i, nil
	}
	fd, err := p.openOwn("exe")
	if err != nil {
		return i, nil // a process that ends
	}
	defer unix.Close(fd)
	if !p.inImage(fd) {
		return i, nil
	}
	a := p.attributesOf(fd)
	raised := *i
	if a.Mode&unix.S_ISUID != 0 {
		raised.users.become(uint32(a.UID))
	}
	if a.Mode&unix.S_ISGID != 0 && a.Mode&unix.S_IXGRP != 0 {
		raised.groups.become(uint32(a.GID))
	}
	if raised.users == i.users && raised.groups == i.groups {
		return i, nil
	}
	raised.raised = name
	return &raised, p.setIdentity(&raised)
}

// become is what execve(2) does for a program with the setuid or setgid bit.
func (i *ids) become(id uint32) { i.effective, i.saved, i.fs = id, id, id }

func (p *process) setIdentity(i *identity) error {
	n, err := p.identities.numberOf(i)
	if err != nil {
		return err
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(int(p.pid), rlimitLocks, nil, &limit); err != nil {
		return err
	}
	limit.Cur = identityMark | n
	if err := p.alive(p.notification); err != nil {
		return err
	}
	return unix.Prlimit(int(p.pid), rlimitLocks, &limit, nil)
}

// identify answers the calls that ask for ids or change them.
func (p *process) identify(c call, args [6]uint64) (int64, error) {
	i, err := p.identity()
	if err != nil {
		return 0, err
	}
	switch c {
	case callGetuid:
		return int64(i.users.real), nil
	case callGeteuid:
		return int64(i.users.effective), nil
	case callGetgid:
		return int64(i.groups.real), nil
	case callGetegid:
		return int64(i.groups.effective), nil
	case callGetresuid:
		return 0, p.giveIDs(i.users, args)
	case callGetresgid:
		return 0, p.giveIDs(i.groups, args)
	case callGetgroups:
		return p.giveGroups(i.supplementary, args)
	case callPrctl:
		return 0, p.keepRights(i, args[1] != 0)
	}
	changed := *i
	value, err := p.change(&changed, c, args)
	if err != nil {
		return 0, err
	}
	return value, p.setIdentity(&changed)
}

// privileged reports whether the process has the rights of root to change its ids.
func (p *process) privileged(i *identity) bool {
	return i.users.effective == 0 || i.keeps != "" && i.keeps == p.program()
}

// program returns the path of the program that the process runs, "" if that cannot be found out.
func (p *process) program() string {
	dir, err := p.procDir(int(p.pid))
	if err != nil {
		return ""
	}
	name, err := readLinkAt(p.proc, dir+"/exe")
	if err != nil {
		return ""
	}
	return name
}

// keepRights is prctl(2) with PR_SET_KEEPCAPS. Only root has rights that it could keep.
func (p *process) keepRights(i *identity, keeps bool) error {
	changed := *i
	changed.keeps = ""
	if keeps && p.privileged(i) {
		changed.keeps = p.program()
	}
	if changed.keeps != i.keeps {
		if err := p.setIdentity(&changed); err != nil {
			return err
		}
	}
	return errKernel
}

// change does a call that changes ids.
func (p *process) change(i *identity, c call, args [6]uint64) (int64, error) {
	privileged := p.privileged(i)
	a, b, d := p.id(args[0]), p.id(args[1]), p.id(args[2])
	switch c {
	case callSetuid:
		return 0, i.users.set(a, privileged)
	case callSetgid:
		return 0, i.groups.set(a, privileged)
	case callSetreuid:
		return 0, i.users.setRE(a, b, privileged)
	case callSetregid:
		return 0, i.groups.setRE(a, b, privileged)
	case callSetresuid:
		return 0, i.users.setRES(a, b, d, privileged)
	case callSetresgid:
		return 0, i.groups.setRES(a, b, d, privileged)
	case callSetfsuid:
		return int64(i.users.setFS(a, privileged)), nil
	case callSetfsgid:
		return int64(i.groups.setFS(a, privileged)), nil
	case callSetgroups:
		if !privileged {
			return 0, unix.EPERM
		}
		var err error
		i.supplementary, err = p.takeGroups(args)
		return 0, err
	}
	return 0, unix.ENOSYS
}

// giveIDs writes the answer of getresuid(2).
func (p *process) giveIDs(i ids, args [6]uint64) error {
	for n, id := range []uint32{i.real, i.effective, i.saved} {
		if err := p.write(args[n], p.encode([]uint32{id})); err != nil {
			return err
		}
	}
	return nil
}

// giveGroups is getgroups(2).
func (p *process) giveGroups(groups []uint32, args [6]uint64) (int64, error) {
	size := int(int32(args[0]))
	switch {
	case size < 0 || size > 0 && size < len(groups):
		return 0, unix.EINVAL
	case size == 0:
		return int64(len(groups)), nil
	}
	return int64(len(groups)), p.write(args[1], p.encode(groups))
}

// takeGroups reads the argument of setgroups(2).
func (p *process) takeGroups(args [6]uint64) ([]uint32, error) {
	size := int(int32(args[0]))
	if size < 0 || size > maxGroups {
		return nil, unix.EINVAL
	}
	groups := make([]uint32, size)
	if !p.short {
		return groups, p.read(args[1], bytesOf(groups))
	}
	short := make([]uint16, size)
	if err := p.read(args[1], bytesOf(short)); err != nil {
		return nil, err
	}
	for n, id := range short {
		groups[n] = uint32(id)
	}
	return groups, nil
}

// encode shows ids as the process's programming interface has them.
func (p *process) encode(ids []uint32) []byte {
	if !p.short {
		return bytesOf(ids)
	}
	short := make([]uint16, len(ids))
	for n, id := range ids {
		short[n] = uint16(id)
	}
	return bytesOf(short)
}
