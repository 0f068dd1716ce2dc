package store

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// UserUsage is what one user has of a store. Sizes are in bytes.
type UserUsage struct {
	UID     uint32    `json:"uid"`
	Images  []string  `json:"images"`        // NAME:TAG, sorted
	Needs   int64     `json:"needs"`         // blobs that these stand on, whoever has brought them
	Alone   int64     `json:"alone"`         // of these, what no other user's images stand on
	Blobs   int64     `json:"blobs"`         // blobs that this user has brought
	Private int64     `json:"private"`       // records, unpacked trees, temporary files and logs
	Used    time.Time `json:"used,omitzero"` // when a record of theirs was last used; zero: there is none
}

// Total is what the user takes on the disk, and what a limit is about.
func (u UserUsage) Total() int64 { return u.Blobs + u.Private }

// Users says who has what in the store, the largest first. A store of one writer has one user, and others as far as files are theirs.
// What a member hides from this process is not counted.
func (s *Store) Users() ([]UserUsage, error) {
	members, err := s.members()
	if err != nil {
		return nil, err
	}
	c := census{store: s, users: map[uint32]*UserUsage{}, sizes: map[Digest]int64{}, needs: map[Digest]map[uint32]bool{}}
	if err := c.countBlobs(); err != nil {
		return nil, err
	}
	for _, m := range members {
		if err := c.countMember(m); err != nil && !errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
	}
	c.countNeeds()
	all := make([]UserUsage, 0, len(c.users))
	for _, uid := range slices.Sorted(maps.Keys(c.users)) {
		all = append(all, *c.users[uid])
	}
	slices.SortStableFunc(all, func(a, b UserUsage) int { return int(min(1, max(-1, b.Total()-a.Total()))) })
	return all, nil
}

// census counts what users have.
type census struct {
	store *Store
	users map[uint32]*UserUsage
	sizes map[Digest]int64           // of blobs, in bytes
	needs map[Digest]map[uint32]bool // whose images stand on a blob
}

func (c *census) user(uid uint32) *UserUsage {
	if c.users[uid] == nil {
		c.users[uid] = &UserUsage{UID: uid, Images: []string{}}
	}
	return c.users[uid]
}

func (c *census) countBlobs() error {
	return walkFiles(c.store.path(blobBucket), func(path string, info fs.FileInfo) error {
		c.sizes[Digest(digestPrefix+filepath.Base(path))] = info.Size()
		c.user(ownerOf(info)).Blobs += info.Size()
		return nil
	})
}

// uid is whose part of the store this is.
func (s *Store) uid() (uint32, error) {
	info, err := os.Stat(s.own)
	if err != nil {
		return 0, err
	}
	return ownerOf(info), nil
}

func (c *census) countMember(m *Store) error {
	uid, err := m.uid()
	if err != nil {
		return err
	}
	u := c.user(uid)
	images := m.path(recordBucket, string(KindImage)) + string(filepath.Separator)
	err = walkFiles(m.path(recordBucket), func(path string, info fs.FileInfo) error {
		u.Private += info.Size()
		if info.ModTime().After(u.Used) {
			u.Used = info.ModTime()
		}
		if strings.HasPrefix(path, images) {
			c.countImage(u, path)
		}
		return nil
	})
	slices.Sort(u.Images)
	for _, bucket := range []string{tmpBucket, logBucket} {
		u.Private += treeSize(m.path(bucket))
	}
	trees, treesErr := m.treeUsage()
	if errors.Is(treesErr, fs.ErrNotExist) { // a part that is being made
		treesErr = nil
	}
	u.Private += trees.Bytes
	return errors.Join(err, treesErr)
}

// countImage counts an image of u. One that cannot be read is none.
func (c *census) countImage(u *UserUsage, path string) {
	env, err := readEnvelope(path)
	if err != nil {
		return
	}
	r, err := env.image()
	if err != nil {
		return
	}
	u.Images = append(u.Images, r.FullName())
	for _, d := range env.Refs {
		if c.needs[d] == nil {
			c.needs[d] = map[uint32]bool{}
		}
		c.needs[d][u.UID] = true
	}
}

func (c *census) countNeeds() {
	for d, users := range c.needs {
		for uid := range users {
			u := c.user(uid)
			u.Needs += c.sizes[d]
			if len(users) == 1 {
				u.Alone += c.sizes[d]
			}
		}
	}
}
