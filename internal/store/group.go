package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/users"
)

// A store may belong to a group of users, who write to it together. They share what proves itself, blobs under their hash, and the locks by
// which a download is made once. What one's sconce believes without proof is one's own: records, trees, temporary files.
//
//	blobs-v1/sha256/ab/   of the keeper, who made the store; members may put files there, and remove their own
//	locks-v1/             likewise
//	users-v1/UID/         the buckets of one member: records-v1, trees-v1, tmp-v1, locks-v1, logs-v1
//
// The keeper's records are read by everybody, nobody else's are. The kernel keeps members apart by the sticky bit, the group together by the setgid bit, and
// modes are set whatever the umask.

// memberBucket has a directory for each member; a store with one is a group's.
const memberBucket = "users-v1"

// Modes of what a group writes to together.
const (
	keptMode   = 0o755 | fs.ModeSetgid                 // only the keeper writes there
	commonMode = 0o775 | fs.ModeSetgid | fs.ModeSticky // each member removes only what is theirs
)

// group is what is special about a store of a group.
type group struct {
	keeper uint32 // who made the store
	me     uint32

	mu      sync.Mutex       // one hash at a time
	checked map[Digest]Stamp // what this process has hashed
}

// InitGroup makes a store for the group with id gid in dir, or sets the modes of one right again. The calling user is its keeper.
func InitGroup(dir string, gid int) error {
	if _, err := os.Lstat(filepath.Join(dir, recordBucket)); err == nil {
		return fault.Hint(fmt.Errorf("%s is a store of one user", dir), "give the group a directory of its own; `sconce copy` and `sconce pull` bring images there")
	}
	dirs := []string{"", memberBucket, lockBucket, blobBucket, filepath.Join(blobBucket, "sha256")}
	modes := []fs.FileMode{0o750 | fs.ModeSetgid, commonMode, commonMode, keptMode, keptMode}
	for i := range 256 {
		dirs, modes = append(dirs, filepath.Join(blobBucket, "sha256", fmt.Sprintf("%02x", i))), append(modes, commonMode)
	}
	for i, name := range dirs {
		path := filepath.Join(dir, name)
		if err := initDir(path, gid, modes[i], name == ""); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, lockBucket, useLock), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o664)
	if err != nil {
		return err
	}
	return errors.Join(f.Chown(-1, gid), f.Chmod(0o664), f.Close())
}

// initDir makes a directory with a group and a mode. The mode of one that was there before stays, as far as others may read it, if
// open is true.
func initDir(path string, gid int, mode fs.FileMode, open bool) error {
	err := os.Mkdir(path, 0o750)
	if open && errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(path, 0o750)
	}
	if errors.Is(err, fs.ErrExist) {
		st, statErr := os.Lstat(path)
		if err = statErr; err == nil && !st.IsDir() {
			err = fmt.Errorf("%s is no directory", path)
		}
		if open && err == nil {
			mode |= st.Mode() & 0o005
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(os.Chown(path, -1, gid), os.Chmod(path, mode)) // in this order: chown takes the setgid bit away
}

// findGroup looks whether the store is one of a group. Without a directory of one's own in it, one reads what the keeper has.
func (s *Store) findGroup() error {
	members, err := os.Stat(filepath.Join(s.dir, memberBucket))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // whoever opens it says what may not be done
		return nil
	}
	if err != nil {
		return err
	}
	s.group = &group{keeper: ownerOf(members), me: uint32(os.Geteuid()), checked: map[Digest]Stamp{}}
	s.own = s.memberDir(s.group.keeper)
	return nil
}

func ownerOf(info fs.FileInfo) uint32 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Uid
	}
	return 0
}

func (s *Store) memberDir(uid uint32) string {
	return filepath.Join(s.dir, memberBucket, strconv.FormatUint(uint64(uid), 10))
}

// joinGroup makes the calling user's directory in a group's store.
func (s *Store) joinGroup() error {
	own := s.memberDir(s.group.me)
	if err := s.makeDir(own); err != nil {
		return err
	}
	info, err := os.Lstat(own)
	if err != nil {
		return err
	}
	if owner := ownerOf(info); !info.IsDir() || owner != s.group.me {
		return fault.Hint(fmt.Errorf("%s belongs to %s", own, users.Name(owner)), "the store's keeper, "+users.Name(s.group.keeper)+", can remove it")
	}
	s.own = own
	return unix.Access(s.path(blobBucket, "sha256", "00"), unix.W_OK)
}

// keepers is what everybody believes in a group's store: the keeper's records and trees. It is nil for the keeper.
func (s *Store) keepers() *Store {
	if s.group == nil || s.readOnly || s.group.me == s.group.keeper {
		return nil
	}
	return &Store{dir: s.dir, own: s.memberDir(s.group.keeper), group: s.group, readOnly: true}
}

// members are the parts of a store, one for each user who has any: the store itself unless it is a group's. What others have put
// among them is passed over.
func (s *Store) members() ([]*Store, error) {
	if s.group == nil {
		return []*Store{s}, nil
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, memberBucket))
	if err != nil {
		return nil, err
	}
	var all []*Store
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.IsDir() || e.Name() != strconv.FormatUint(uint64(ownerOf(info)), 10) {
			continue
		}
		m := &Store{dir: s.dir, own: filepath.Join(s.dir, memberBucket, e.Name()), group: s.group}
		all = append(all, m)
	}
	return all, nil
}

// mayRemove reports whether this process may remove what is in a member's part of the store.
func (s *Store) mayRemove(member *Store) bool { return s.own == member.own || s.group.me == 0 }

// Keeps reports whether this process may remove what others have put into the store.
func (s *Store) Keeps() bool {
	return s.group == nil || s.group.me == s.group.keeper || s.group.me == 0
}

// Group reports whether the store is one that a group writes to.
func (s *Store) Group() bool { return s.group != nil }

// trusted reports whether what a user has written is believed: root could change anything, and the keeper decides what the store is.
func (g *group) trusted(uid uint32) bool {
	return g == nil || uid == g.me || uid == g.keeper || uid == 0
}

// believe hashes a blob that another member has put there, unless this user has done so and it is as it was.
func (s *Store) believe(at *Store, d Digest, f *os.File) error {
	info, err := f.Stat()
	if err != nil || at.group.trusted(ownerOf(info)) {
		return err
	}
	at.group.mu.Lock()
	defer at.group.mu.Unlock()
	now, before := StampOf(info), Stamp{}
	if at.group.checked[d] == now {
		return nil
	}
	if found, err := s.ownRecord(KindHashed, d.Hex(), &before); err == nil && found && before == now {
		return nil
	}
	if err := hashFile(f, d); err != nil {
		err = fmt.Errorf("blob %s in store %s, which %s has put there: %w", d, at.dir, users.Name(ownerOf(info)), err)
		return fault.Hint(err, "its owner or the store's keeper can remove it with `sconce cache verify --remove`")
	}
	at.group.checked[d] = now
	if s.readOnly || now.Age() < Racy {
		return nil
	}
	return s.PutRecord(KindHashed, d.Hex(), []Digest{d}, now)
}

// ownRecord is GetRecord of this store alone.
func (s *Store) ownRecord(kind Kind, key string, v any) (bool, error) {
	path, err := s.recordPath(kind, key)
	if err != nil {
		return false, err
	}
	env, err := readEnvelope(path)
	if err != nil {
		return false, err
	}
	s.touch(path)
	return true, env.decode(v)
}

// hashFile compares what f holds with a digest, and goes back to the beginning.
func hashFile(f *os.File, d Digest) error {
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := SumDigest(h); got != d {
		return fmt.Errorf("it is not what its name says: its hash is %s", got)
	}
	_, err := f.Seek(0, io.SeekStart)
	return err
}
