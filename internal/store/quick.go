package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
)

// QuickTree is [Store.Tree] for what takes longer to put on disk than to make. The tree is believed until the machine's next
// boot: after a crash some of its files may be empty.
func (s *Store) QuickTree(ctx context.Context, name string, make func(dir string) error) (string, error) {
	return s.tree(ctx, name, make, durability{boot: bootID()})
}

// durability says what becomes of a tree when the machine crashes. The zero value is for one that may be damaged then and be
// believed all the same.
type durability struct {
	sync bool   // it is put on disk
	boot string // it is not believed after this boot
}

var onDisk = durability{sync: true}

// bootID identifies the time since the machine's last boot (random(4)).
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || len(bytes.TrimSpace(id)) == 0 {
		return "unknown"
	}
	return string(bytes.TrimSpace(id))
}

// treeDone reports whether the tree in dir is all there.
func treeDone(dir string) bool {
	marker := dir + doneSuffix
	info, err := os.Stat(marker)
	if err != nil || info.Size() == 0 {
		return err == nil
	}
	made, err := os.ReadFile(marker)
	return err == nil && string(made) == bootID() && string(made) != "unknown"
}

// markTree makes the tree in dir one that is believed.
func markTree(dir, boot string) error {
	marker := dir + doneSuffix
	if err := errors.Join(os.WriteFile(marker, []byte(boot), 0o444), os.Chmod(marker, 0o444)); err != nil {
		return fmt.Errorf("write to store: %w", err)
	}
	return nil
}
