package execop

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/image"
	"sconce.dev/sconce/internal/rootemu"
	"sconce.dev/sconce/internal/sandbox"
	"sconce.dev/sconce/internal/spelling"
	"sconce.dev/sconce/internal/store"
)

// The permissions of mounts that say nothing about them.
const (
	modeCache  = 0o755
	modeSecret = 0o400
	modeAgent  = 0o600
	modeTmpfs  = 0o1777
	modeFile   = 0o644

	modeProgram = 0o755
)

// Where secrets and agents appear when nobody says it.
const (
	secretDir = "/run/secrets"
	agentDir  = "/run/ssh-agent"
)

const defaultID = "default"

// attach makes everything ready that the command sees besides the image.
func (s *running) attach() error {
	for _, f := range s.c.Files {
		s.mounts = append(s.mounts, sandbox.Mount{Target: f.Target, Content: notNil(f.Content), Mode: cmp.Or(f.Mode, modeFile)})
	}
	if err := s.attachHost(); err != nil {
		return err
	}
	for _, m := range s.c.Mounts {
		if m.Kind == Cache {
			continue
		}
		if err := s.attachOne(m); err != nil {
			return fmt.Errorf("mount %s: %w", cmp.Or(m.Target, m.ID, string(m.Kind)), err)
		}
	}
	if err := s.attachCaches(); err != nil {
		return err
	}
	// What lies in another mount must come after it.
	slices.SortStableFunc(s.mounts, func(a, b sandbox.Mount) int { return cmp.Compare(path.Clean(a.Target), path.Clean(b.Target)) })
	return nil
}

// attachHost shows this machine's configuration. Its variables are given as proxies are: what the command says goes before them.
func (s *running) attachHost() error {
	if s.Host == nil {
		return nil
	}
	host := s.Host
	if len(host.Mirrors) > 0 {
		sources, err := AptSources(s.tree)
		if err != nil {
			return err
		}
		host = host.WithSources(sources)
	}
	for _, f := range host.Files {
		mode := uint32(modeFile)
		if f.Program {
			mode = modeProgram
		}
		s.mounts = append(s.mounts, sandbox.Mount{Target: f.Target, Content: notNil(f.Content), Mode: mode})
	}
	for _, secret := range host.Secrets {
		s.mask.add(secret)
	}
	s.hostEnv = host.Env
	return nil
}

func (s *running) attachOne(m Mount) error {
	if m.Target == "" && m.Kind != Secret && m.Kind != SSH {
		return fault.Usage(fmt.Errorf("a mount of the kind %q needs a target", m.Kind))
	}
	switch m.Kind {
	case Bind:
		return s.bind(m)
	case Tmpfs:
		s.mounts = append(s.mounts, sandbox.Mount{Target: m.Target, Size: m.Size, Mode: cmp.Or(m.Mode, modeTmpfs), UID: m.UID, GID: m.GID, ReadOnly: m.ReadOnly})
		return nil
	case Secret:
		return s.secret(m)
	case SSH:
		return s.agent(m)
	}
	return fault.Usage(fmt.Errorf("%q is no kind of mount", m.Kind))
}

func (s *running) bind(m Mount) error {
	if m.Tree != nil {
		s.mounts = append(s.mounts, sandbox.Mount{Target: m.Target, Tree: m.Tree})
		return nil
	}
	sm := sandbox.Mount{Target: m.Target, Source: m.Source, ReadOnly: m.ReadOnly, Dir: m.Dir}
	if m.Dir == "" {
		if len(m.Layers) == 0 {
			return fmt.Errorf("there are no files to be seen at %s", m.Target)
		}
		dirs, err := sandbox.Layers(s.ctx, s.Store, m.Layers)
		if err != nil {
			return err
		}
		sm.Layers = dirs
		tree, err := image.NewTree(s.ctx, s.Store, m.Layers)
		if err != nil {
			return err
		}
		s.after = tree.After(s.after)
	}
	s.mounts = append(s.mounts, sm)
	return nil
}

func (s *running) secret(m Mount) error {
	id := m.ID
	if id == "" {
		id = path.Base(m.Target)
	}
	get := s.Secrets[id]
	if get == nil {
		if !m.Required {
			return nil
		}
		hint := "give it: --secret id=" + id + ",src=FILE or --secret id=" + id + ",env=NAME"
		if near := spelling.Nearest(id, slices.Sorted(maps.Keys(s.Secrets))); near != "" {
			hint = fmt.Sprintf("you gave %q, did you mean this one? Else ", near) + hint
		}
		return fault.Hint(fmt.Errorf("the step needs the secret %q, which was not given", id), hint)
	}
	value, err := get()
	if err != nil {
		return fmt.Errorf("secret %q: %w", id, err)
	}
	s.mask.add(value)
	if m.Env != "" {
		if bytes.IndexByte(value, 0) >= 0 {
			return fmt.Errorf("secret %q contains a NUL, which no variable can", id)
		}
		s.env = append(s.env, m.Env+"="+string(value))
		if m.Target == "" {
			return nil
		}
	}
	target := m.Target
	if target == "" {
		target = path.Join(secretDir, path.Base(path.Clean("/"+id)))
	}
	s.mounts = append(s.mounts, sandbox.Mount{Target: target, Content: notNil(value), Mode: cmp.Or(m.Mode, modeSecret), UID: m.UID, GID: m.GID})
	return nil
}

// notNil makes an empty file of no bytes.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// agent makes a socket of the step's own, with the permissions that were asked for, whose connections go to the agent's.
func (s *running) agent(m Mount) error {
	id := cmp.Or(m.ID, defaultID)
	to := s.SSH[id]
	if to == "" {
		if !m.Required {
			return nil
		}
		return fault.Hint(fmt.Errorf("the step needs the SSH agent %q, which was not given", id), "start an agent (ssh-agent, ssh-add) and give it: --ssh "+id)
	}
	name := filepath.Join(s.work, "agent"+strconv.Itoa(len(s.mounts)))
	l, err := listen(name)
	if err != nil {
		return fmt.Errorf("make a socket: %w", err)
	}
	done := forward(s.ctx, l, to)
	s.ends = append(s.ends, done)
	owners := &rootemu.Owners{}
	if sandbox.Unpacked().Owners {
		err = os.Chown(name, m.UID, m.GID)
	} else {
		err = recordOwner(owners, name, m.UID, m.GID)
	}
	if err != nil {
		return err
	}
	if err := unix.Chmod(name, cmp.Or(m.Mode, modeAgent)); err != nil {
		return err
	}
	target := m.Target
	if target == "" {
		target = path.Join(agentDir, path.Base(path.Clean("/"+id)))
	}
	s.mounts = append(s.mounts, sandbox.Mount{Target: target, Dir: name, Owners: owners})
	if !hasVariable(s.c.Env, "SSH_AUTH_SOCK") && !hasVariable(s.env, "SSH_AUTH_SOCK") {
		s.env = append(s.env, "SSH_AUTH_SOCK="+target)
	}
	return nil
}

// listen makes a socket at a path of any length: the kernel takes 107 bytes.
func listen(name string) (net.Listener, error) {
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(name)))
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the name will mean something else; the directory goes with the step
	return l, nil
}

// attachCaches takes the cache directories, in an order in which no two steps wait for each other.
func (s *running) attachCaches() error {
	caches := map[string]Mount{}
	for _, m := range s.c.Mounts {
		if m.Kind != Cache {
			continue
		}
		if m.Target == "" {
			return fault.Usage(fmt.Errorf("the cache %q needs a target", m.ID))
		}
		// Several mounts of one cache are one use of it, the strictest.
		name := m.cacheName()
		if other, ok := caches[name]; !ok || sharing[m.Sharing] > sharing[other.Sharing] {
			caches[name] = m
		}
	}
	taken := map[string]sandbox.Mount{}
	for _, name := range slices.Sorted(keys(caches)) {
		mount, err := s.takeCache(name, caches[name])
		if err != nil {
			return err
		}
		taken[name] = mount
	}
	for _, m := range s.c.Mounts {
		if m.Kind == Cache {
			mount := taken[m.cacheName()]
			mount.Target, mount.ReadOnly = m.Target, m.ReadOnly
			s.mounts = append(s.mounts, mount)
		}
	}
	return nil
}

func keys(m map[string]Mount) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// sharing orders how a cache may be shared, from the loosest; what is not in it is no way to.
var sharing = map[Sharing]store.CacheSharing{"": store.CacheShared, Shared: store.CacheShared, Private: store.CachePrivate, Locked: store.CacheLocked}

// cacheName names the cache in the store. Root and others have caches of their own, because only root can give files away.
func (m Mount) cacheName() string {
	who := "user"
	if sandbox.Unpacked().Owners {
		who = "root"
	}
	name := who + " " + cmp.Or(m.ID, path.Clean(m.Target))
	if m.From != "" || m.Source != "" {
		name += " from " + m.From + " " + path.Join("/", m.Source)
	}
	return name
}

// cacheRoot is the directory of a cache that commands see. That above it is closed to others, as those of unpacked layers are.
const cacheRoot = "root"

// takeCache returns a cache as a mount without a target.
func (s *running) takeCache(name string, m Mount) (sandbox.Mount, error) {
	how, ok := sharing[m.Sharing]
	if !ok {
		return sandbox.Mount{}, fault.Usage(fmt.Errorf("%q is no way to share a cache: %q, %q and %q are", m.Sharing, Shared, Private, Locked))
	}
	c, err := s.Store.CacheDir(s.ctx, name, how, func(dir string) error { return s.beginCache(m, dir) })
	if err != nil {
		return sandbox.Mount{}, err
	}
	s.ends = append(s.ends, c.Release)
	mount := sandbox.Mount{Dir: filepath.Join(c.Dir, cacheRoot)}
	if sandbox.Unpacked().Owners {
		return mount, nil
	}
	if mount.Owners, err = readOwners(c.Dir); err == nil {
		s.keepOwners(c.Dir, mount.Owners)
	}
	return mount, err
}

// beginCache makes a new cache.
func (s *running) beginCache(m Mount, dir string) error {
	if err := os.Chmod(dir, 0o700); err != nil {
		return err
	}
	root := filepath.Join(dir, cacheRoot)
	if err := os.Mkdir(root, 0o700); err != nil {
		return err
	}
	mode := cmp.Or(m.Mode, modeCache)
	var kept *rootemu.Owners
	if !sandbox.Unpacked().Owners {
		mode |= 0o700 // the user who builds is the only one there is
		kept = &rootemu.Owners{}
	}
	if len(m.Layers) > 0 {
		tree, err := image.NewTree(s.ctx, s.Store, m.Layers)
		if err != nil {
			return err
		}
		if err := copyTree(s.ctx, tree, m.Source, root, kept); err != nil {
			return err
		}
	}
	if kept == nil {
		return errors.Join(os.Chown(root, m.UID, m.GID), unix.Chmod(root, mode))
	}
	if err := recordOwner(kept, root, m.UID, m.GID); err != nil {
		return err
	}
	return errors.Join(unix.Chmod(root, mode), saveOwners(dir, kept.Entries()))
}

// recordOwner records an owner, unless that is root, who owns what has no record.
func recordOwner(owners *rootemu.Owners, name string, uid, gid int) error {
	if uid == 0 && gid == 0 {
		return nil
	}
	return owners.Give(name, rootemu.IDs{UID: uid, GID: gid})
}

var errNotDir = errors.New("it is not a directory")
