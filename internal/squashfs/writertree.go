package squashfs

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"
)

// An Inode is a file system object to be written.
type Inode struct {
	Type         Type
	Mode         uint16 // permission bits, and set-user-ID, set-group-ID and sticky: 0o7777
	UID, GID     uint32
	ModTime      time.Time         // held in seconds, from 1970 to 2106
	Xattrs       map[string]string // names for which CanHoldXattr is true
	Data         *Data             // of a regular file, from the same Writer; nil: empty
	Target       string            // of a symlink
	Major, Minor uint32            // of a device: 12 and 20 bits
	Entries      []DirEntry        // of a directory, in any order: Finish sorts them
}

// A DirEntry gives an object a name. One that is no directory may have several: these are hard links.
type DirEntry struct {
	Name  string // not empty, at most 255 bytes, none of them zero or a slash
	Inode *Inode
}

// highestName is how long a name may be in Linux, in bytes.
const highestName = 255

// numbering is the first walk over a tree: it counts the objects and their names, and finds what cannot be written.
type numbering struct {
	owner *Writer
	nodes map[*Inode]*numbered
	path  []string // to where the walk is
}

// numbered is what an inode needs to know about others.
type numbered struct {
	number uint32 // from 1, in the order of a walk that takes names in order
	links  uint32 // names; of a directory 2 and its subdirectories
}

// at says where in the tree something is wrong.
func (n *numbering) at(err error) error {
	return fmt.Errorf("/%s: %w", path.Join(n.path...), err)
}

// add numbers an object and all below it.
func (n *numbering) add(in *Inode) error {
	if in == nil {
		return n.at(errors.New("there is a name and no file"))
	}
	if old := n.nodes[in]; old != nil {
		if in.Type == Dir {
			return n.at(errors.New("a directory has two names"))
		}
		old.links++
		return nil
	}
	if len(n.nodes) == math.MaxInt32 {
		return n.at(errors.New("too many files"))
	}
	if err := n.check(in); err != nil {
		return n.at(err)
	}
	node := &numbered{number: uint32(len(n.nodes)) + 1, links: 1}
	n.nodes[in] = node
	if in.Type != Dir {
		return nil
	}
	node.links = 2
	return n.addEntries(in, node)
}

func (n *numbering) addEntries(in *Inode, node *numbered) error {
	slices.SortFunc(in.Entries, func(a, b DirEntry) int { return strings.Compare(a.Name, b.Name) })
	before := ""
	for _, e := range in.Entries {
		n.path = append(n.path, e.Name)
		if err := checkNewName(e.Name, before); err != nil {
			return n.at(err)
		}
		before = e.Name
		if err := n.add(e.Inode); err != nil {
			return err
		}
		if e.Inode.Type == Dir {
			node.links++
		}
		n.path = n.path[:len(n.path)-1]
	}
	return nil
}

func checkNewName(name, before string) error {
	switch {
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("%q is no name for a file", name)
	case len(name) > highestName:
		return fmt.Errorf("the name has %d bytes: the most is %d", len(name), highestName)
	case name == before:
		return fmt.Errorf("%q is there twice", name)
	}
	return nil
}

// check finds what the format cannot hold.
func (n *numbering) check(in *Inode) error {
	switch in.Type {
	case Dir, Fifo, Socket:
	case Regular:
		if in.Data != nil && in.Data.owner != n.owner {
			return errors.New("its content is of another file system")
		}
	case Symlink:
		if in.Target == "" || len(in.Target) > maxLinkLen {
			return fmt.Errorf("a symlink's target has 1 to %d bytes, not %d", maxLinkLen, len(in.Target))
		}
	case Block, Char:
		const majorBits, minorBits = 12, 20
		if in.Major >= 1<<majorBits || in.Minor >= 1<<minorBits {
			return fmt.Errorf("device %d, %d: the numbers have at most %d and %d bits", in.Major, in.Minor, majorBits, minorBits)
		}
	default:
		return fmt.Errorf("a file of type %d", in.Type)
	}
	return nil
}
