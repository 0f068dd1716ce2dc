package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// LocalPlace is a directory of this machine for what is unpacked and what steps write.
type LocalPlace struct {
	Dir  string `json:"dir"`
	Type string `json:"type"` // of the file system
	Room int64  `json:"room"` // bytes; of a file system in memory no more than half of the memory that is left, and no more than its inodes are for
}

// enoughRoom is what layers and steps of an image with PyTorch take, in bytes: a place with so much is not left for a larger one.
const enoughRoom = 30e9

// fileRoom is how large a file of such an image is, in bytes: what a place has no inodes for it has no room for.
const fileRoom = 100e3

// LocalPlaces are where a machine may have room for temporary files, the preferred first.
func LocalPlaces() []string { return []string{os.TempDir(), "/tmp", "/var/tmp", "/dev/shm"} }

// ChooseLocalPlace returns the first of dirs that can do what is asked of it and has enough room, else the one with the most. The error
// says of each why it will not do.
func ChooseLocalPlace(dirs []string) (LocalPlace, error) {
	var best LocalPlace
	var refused []error
	for _, dir := range dirs {
		if err := HoldsLayers(dir); err != nil {
			refused = append(refused, err)
			continue
		}
		if p := placeAt(dir); p.Room > best.Room {
			best = p
		}
		if best.Room >= enoughRoom {
			break
		}
	}
	if best.Dir == "" {
		return best, errors.Join(refused...)
	}
	return best, nil
}

// PlaceInstead returns where to unpack layers, and the reason, when dir cannot hold them; no reason when it can. Directories in preferred are
// looked at before those of [LocalPlaces]. The error says why no other place will do either.
func PlaceInstead(dir string, preferred ...string) (place LocalPlace, reason, err error) {
	reason = HoldsLayers(dir)
	if reason == nil {
		return place, nil, nil
	}
	place, err = ChooseLocalPlace(append(preferred[:len(preferred):len(preferred)], LocalPlaces()...))
	if err != nil {
		err = fmt.Errorf("there is no place for what is unpacked and what steps write: %w\n%w", reason, err)
	}
	return place, reason, err
}

func placeAt(dir string) LocalPlace {
	fs := FileSystemOf(dir)
	p := LocalPlace{Dir: dir, Type: fs.Type, Room: fs.Free}
	if fs.Type == "tmpfs" || fs.Type == "ramfs" {
		p.Room = min(p.Room, AvailableMemory().Available/2)
	}
	if fs.Files > 0 {
		p.Room = min(p.Room, fs.FreeFiles*fileRoom)
	}
	return p
}

// HoldsLayers looks whether layers can be unpacked in dir and an overlay's upper layer can be there: whether it can be written, is of this machine
// alone, and has extended attributes of users, whiteouts and sockets. It tries, and leaves nothing behind.
func HoldsLayers(dir string) error {
	fs := FileSystemOf(dir)
	if fs.Shared || fs.Type == "overlay" {
		return fmt.Errorf("%s (%s): no overlay's upper layer can be there", dir, fs.Type)
	}
	try, err := os.MkdirTemp(dir, "sconce-try-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(try)
	if err := tryLayers(try); err != nil {
		return fmt.Errorf("%s (%s): %w", dir, fs.Type, err)
	}
	return nil
}

func tryLayers(dir string) error {
	if err := unix.Setxattr(dir, "user.overlay.try", []byte("y"), 0); err != nil {
		return fmt.Errorf("no extended attributes of users: %w", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	err := unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, filepath.Join(dir, "moved"), unix.RENAME_WHITEOUT)
	if err != nil && !errors.Is(err, unix.EPERM) { // which users get of older kernels, outside of their own namespace
		return fmt.Errorf("no whiteouts: %w", err)
	}
	return trySocket(dir)
}

// trySocket names the directory by a descriptor: the address of a socket has 107 characters at most.
func trySocket(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/socket", d.Fd()))
	if err != nil {
		return fmt.Errorf("no sockets: %w", err)
	}
	return l.Close()
}
