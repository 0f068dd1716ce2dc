package sandbox

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// fillRoot mounts what a command expects to find besides the image's files.
func (b *builder) fillRoot() error {
	steps := []func() error{b.mountProc, b.mountDev, b.mountSys, b.cover, b.mountTmp, b.mountEtc, b.mountUser, b.mountTmpfs, b.mountBinds, b.mountMounts, b.makeWorkDir}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// mount mounts on the directory at name in the image.
func (b *builder) mount(source, name, fstype string, flags uintptr, data string) error {
	fd, err := b.root.dir(name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Mount(source, fdPath(fd), fstype, flags, data)
}

// bind mounts the host's file or directory source, with what is mounted below it, at name in the image.
func (b *builder) bind(source int, name string, readOnly bool) error {
	open := b.root.file
	if isDir(source) {
		open = b.root.dir
	}
	target, err := open(name)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	if err := unix.Mount(fdPath(source), fdPath(target), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := b.uncover(source, name); err != nil {
		return err
	}
	var attr uint64
	if readOnly {
		attr = unix.MOUNT_ATTR_RDONLY
	}
	if b.spec.ofHostRoot() && isDir(source) && !hasDevices(source) {
		attr |= unix.MOUNT_ATTR_NODEV
	}
	if attr == 0 {
		return nil
	}
	return b.restrict(name, attr)
}

// hasDevices reports whether a directory of the host is /dev, above it or below, but for the directories there that everybody writes to.
// In all others a command of the host's root, which may make
// devices, shall not be able to open them: a disk's among them.
func hasDevices(dir int) bool {
	name, err := os.Readlink(fdPath(dir))
	if err != nil || name == "/dev/shm" || name == "/dev/mqueue" || strings.HasPrefix(name, "/dev/shm/") {
		return false
	}
	return name == "/" || name == "/dev" || strings.HasPrefix(name, "/dev/")
}

// uncover takes the sandbox's own base away from what was bound at name, when source is the directory that the base covers, or
// one above it: /tmp is what people bind most.
func (b *builder) uncover(source int, name string) error {
	from, err := os.Readlink(fdPath(source))
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(from, b.base)
	if err != nil || !filepath.IsLocal(rel) {
		return nil // the base is elsewhere
	}
	fd, err := b.root.open(path.Join(name, rel), 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Unmount(fdPath(fd), unix.MNT_DETACH)
}

// restrict sets attributes, of mount_setattr(2), of the mount at name and of those below it.
func (b *builder) restrict(name string, set uint64) error {
	fd, err := b.root.open(name, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: set}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
	if !errors.Is(err, unix.ENOSYS) {
		return err
	}
	return remount(fd, uintptr(set)) // the two attributes in use are the flags of mount(2)
}

// remount does without mount_setattr(2), for Linux before 5.12, and reaches only the topmost mount. In a user
// namespace the flags that the mount has are locked and must be given again.
func remount(fd int, set uintptr) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	flags := unix.MS_REMOUNT | unix.MS_BIND | set
	for _, f := range []struct{ statfs, mount uintptr }{
		{unix.ST_NOSUID, unix.MS_NOSUID},
		{unix.ST_NODEV, unix.MS_NODEV},
		{unix.ST_NOEXEC, unix.MS_NOEXEC},
		{unix.ST_NOATIME, unix.MS_NOATIME},
		{unix.ST_NODIRATIME, unix.MS_NODIRATIME},
		{unix.ST_RELATIME, unix.MS_RELATIME},
	} {
		if uintptr(st.Flags)&f.statfs != 0 {
			flags |= f.mount
		}
	}
	return unix.Mount("", fdPath(fd), "", flags, "")
}

// rootOnlyProc are the parts of /proc by which root, even without capabilities, changes the host.
var rootOnlyProc = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"}

// rootSees is what tells root, even without capabilities, more of the host than other users learn. Docker covers the same.
var rootSees = []string{
	"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
	"/sys/firmware", "/sys/devices/virtual/powercap",
}

// cover makes these files and directories empty.
func (b *builder) cover() error {
	if !b.spec.ofHostRoot() {
		return nil
	}
	for _, name := range rootSees {
		fd, err := b.root.open(name, 0)
		if err != nil {
			continue // not every kernel has all
		}
		if isDir(fd) {
			err = unix.Mount("tmpfs", fdPath(fd), "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0555")
		} else if null, there := b.host.devices["null"]; there {
			err = unix.Mount(fdPath(null), fdPath(fd), "", unix.MS_BIND, "")
		}
		unix.Close(fd)
		if err != nil {
			return failed("cover "+name, err)
		}
	}
	return nil
}

func (b *builder) mountProc() error {
	var err error = unix.EPERM
	if !b.spec.Shared { // whose processes are the host's
		err = b.mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	if errors.Is(err, unix.EPERM) {
		// In a container whose /proc has covered parts the kernel allows no new one (mount_namespaces(7)). The one
		// that is there shows the wrong processes, but most programs read only /proc/self and /proc/cpuinfo.
		err = b.bind(b.host.proc, "/proc", false)
	}
	if err != nil {
		return failed("mount /proc", err)
	}
	if !b.spec.ofHostRoot() {
		return nil
	}
	for _, name := range rootOnlyProc {
		fd, err := b.root.open(name, 0)
		if err != nil {
			continue // not every kernel has all
		}
		err = b.bind(fd, name, true)
		unix.Close(fd)
		if err != nil {
			return failed("protect "+name, err)
		}
	}
	return nil
}

// devices are those of the host that every program may use.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// console is the name under which the terminal appears in the image: the sandbox has a devpts of its own, in which the
// terminal of the host has no name.
const console = "console"

// openDevices opens those devices that are there, and the terminal of this process.
func openDevices() map[string]int {
	open := map[string]int{}
	for _, name := range devices {
		if fd, err := openPath("/dev/" + name); err == nil {
			open[name] = fd
		}
	}
	for _, std := range []string{"/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"} {
		tty, err := os.Readlink(std)
		if err != nil || !strings.HasPrefix(tty, "/dev/pts/") {
			continue
		}
		if fd, err := openPath(tty); err == nil {
			open[console] = fd
			break
		}
	}
	return open
}

// mountDev mounts those devices alone that are bound there: what a command makes itself cannot be opened.
func (b *builder) mountDev() error {
	own, err := b.ownDevices()
	if err != nil {
		return err
	}
	if err := b.mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_STRICTATIME, "mode=0755,size=64m"); err != nil {
		return failed("mount /dev", err)
	}
	for name, fd := range b.host.devices {
		if made, ok := own[name]; ok {
			err := b.bind(made, "/dev/"+name, false)
			unix.Close(made)
			if err != nil {
				return failed("bind /dev/"+name, err)
			}
			continue
		}
		if err := b.bind(fd, "/dev/"+name, b.spec.ofHostRoot() || name == console); err != nil { // what is read-only is the mode: devices can be written to
			return failed("bind /dev/"+name, err)
		}
	}
	if err := b.mountShm(); err != nil {
		return failed("mount /dev/shm", err)
	}
	b.mountPts()
	b.mountQueues()
	return b.linkDevices()
}

// ownDevices makes devices that are the sandbox's own, which only the host's root may do: to the host's its command could give another mode.
// They lie in a file system that the next one hides, since devices can be opened there.
func (b *builder) ownDevices() (map[string]int, error) {
	if b.spec.UserNS {
		return nil, nil
	}
	if err := b.mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=64k"); err != nil {
		return nil, failed("mount /dev", err)
	}
	own := map[string]int{}
	for name, like := range b.host.devices {
		if name == console || !b.makeDevice(name, like) {
			continue
		}
		if fd, err := b.root.open("/dev/"+name, 0); err == nil {
			own[name] = fd
		}
	}
	return own, nil
}

// makeDevice makes a device like one of the host's, and reports whether it may.
func (b *builder) makeDevice(name string, like int) bool {
	var st unix.Stat_t
	if unix.Fstat(like, &st) != nil {
		return false
	}
	dev, err := b.root.dir("/dev")
	if err != nil {
		return false
	}
	defer unix.Close(dev)
	return unix.Mknodat(dev, name, st.Mode, int(st.Rdev)) == nil && unix.Fchmodat(dev, name, st.Mode&0o7777, 0) == nil
}

// mountShm gives the sandbox the memory that its processes share, or the host's. It holds half of the machine's memory at most.
func (b *builder) mountShm() error {
	if b.host.shm >= 0 {
		return b.bind(b.host.shm, "/dev/shm", false)
	}
	return b.mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777,size=50%")
}

// mountQueues does the same for POSIX message queues, which are seldom used, and not in every kernel.
func (b *builder) mountQueues() {
	if b.host.mqueue >= 0 {
		_ = b.bind(b.host.mqueue, "/dev/mqueue", false)
	} else if !b.spec.Shared {
		_ = b.mount("mqueue", "/dev/mqueue", "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
}

// mountPts gives the sandbox pseudo terminals of its own. A host that refuses is one where a command can do without.
func (b *builder) mountPts() {
	const options = "newinstance,ptmxmode=0666,mode=0620"
	for _, group := range []string{",gid=5", ""} { // group tty, which most user namespaces lack
		if b.mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, options+group) == nil {
			return
		}
	}
}

func (b *builder) linkDevices() error {
	dev, err := b.root.dir("/dev")
	if err != nil {
		return err
	}
	defer unix.Close(dev)
	for _, l := range []struct{ name, target string }{
		{"fd", "/proc/self/fd"},
		{"stdin", "/proc/self/fd/0"},
		{"stdout", "/proc/self/fd/1"},
		{"stderr", "/proc/self/fd/2"},
		{"ptmx", "pts/ptmx"},
	} {
		if err := unix.Symlinkat(l.target, dev, l.name); err != nil {
			return failed("make /dev/"+l.name, err)
		}
	}
	return nil
}

func (b *builder) mountSys() error {
	if b.host.sys < 0 {
		return nil
	}
	if err := b.bind(b.host.sys, "/sys", true); err != nil {
		return failed("bind /sys", err)
	}
	return nil
}

// mountTmp makes sure that there is a /tmp: minimal images come without, and few programs bear it.
func (b *builder) mountTmp() error {
	if fd, err := b.root.open("/tmp", unix.O_DIRECTORY); err == nil {
		unix.Close(fd)
		return nil
	}
	fd, err := b.root.dir("/tmp")
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Chmod(fdPath(fd), 0o1777); err != nil {
		return failed("make /tmp", err)
	}
	return nil
}

// mountEtc gives the image the host's name resolution. An image that has something else than a file there keeps it.
func (b *builder) mountEtc() error {
	for name, content := range map[string][]byte{"resolv.conf": b.spec.Resolv, "hosts": b.spec.Hosts} {
		if content == nil {
			continue
		}
		if err := b.mountFile(name, content); err != nil {
			return err
		}
	}
	return nil
}

// mountFile mounts a content over a file of the image's /etc, which is made if there is none. What is a directory stays.
func (b *builder) mountFile(name string, content []byte) error {
	inImage := path.Join("/etc", name)
	copied := filepath.Join(b.base, "files", name)
	if err := os.WriteFile(copied, content, 0o644); err != nil {
		return failed("write what is mounted at "+inImage, err)
	}
	fd, err := openPath(copied)
	if err != nil {
		return failed("write what is mounted at "+inImage, err)
	}
	defer unix.Close(fd)
	if at, err := b.root.open(inImage, unix.O_DIRECTORY); err == nil {
		return unix.Close(at)
	}
	if err := b.bind(fd, inImage, false); err != nil {
		return failed("mount "+inImage, err)
	}
	return nil
}

func (b *builder) mountTmpfs() error {
	for _, name := range b.spec.Tmpfs {
		if err := b.mount("tmpfs", name, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
			return failed("mount a file system in memory at "+name, err)
		}
	}
	return nil
}

func (b *builder) mountBinds() error {
	for i, bind := range b.spec.Binds {
		if err := b.bind(b.host.binds[i], bind.Target, bind.ReadOnly); err != nil {
			return failed("bind "+bind.Source+" to "+bind.Target, err)
		}
	}
	return nil
}

func (b *builder) makeWorkDir() error {
	fd, err := b.root.dir(b.spec.WorkDir)
	if err != nil {
		return failed("make the working directory "+b.spec.WorkDir, err)
	}
	return unix.Close(fd)
}

// loopbackUp brings up lo, which a new network namespace has down.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}
