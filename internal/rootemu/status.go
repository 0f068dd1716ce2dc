package rootemu

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The kernel's proc_pid_status(5) says that every process is root. Where a command starts as somebody else, programs that read
// there who they are get a copy that names that one: what the file said when it was opened.

// statusOf returns whose status a path is, 0 for any other path. Only the names that programs use are known.
func (p *process) statusOf(name string) int {
	rest, ok := strings.CutPrefix(name, "/proc/")
	if !ok {
		return 0
	}
	whose, ok := strings.CutSuffix(rest, "/status")
	switch {
	case !ok:
		return 0
	case whose == "self" || whose == "thread-self":
		return int(p.pid)
	}
	pid, err := strconv.Atoi(whose)
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

// openStatus answers an open(2) for reading that is of somebody's status. Everything else is the kernel's.
func (p *process) openStatus(addr uint64, flags uint32) (int64, error) {
	if p.foreign || flags&(unix.O_PATH|unix.O_DIRECTORY) != 0 {
		return 0, errKernel
	}
	name, err := p.text(addr)
	if err != nil {
		return 0, errKernel
	}
	pid := p.statusOf(name)
	if pid == 0 {
		return 0, errKernel
	}
	root, err := p.openOwn("root")
	if err != nil {
		return 0, errKernel
	}
	own := p.isRoot(root)
	unix.Close(root)
	if !own { // there may be another /proc
		return 0, errKernel
	}
	text, err := p.status(pid)
	if err != nil {
		return 0, errKernel // which says what is wrong
	}
	fd, err := fileWith(text)
	if err != nil {
		return 0, errKernel
	}
	defer unix.Close(fd)
	return p.hand(fd, flags&unix.O_CLOEXEC)
}

// status returns a process's status as who it believes to be.
func (p *process) status(pid int) (string, error) {
	i, err := p.identityOf(pid)
	if err != nil {
		return "", err
	}
	fd, err := unix.Openat(p.proc, strconv.Itoa(pid)+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4*pageSize)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for line := range strings.Lines(string(buf[:n])) {
		switch field, _, _ := strings.Cut(line, ":"); field {
		case "Uid":
			line = i.users.line(field)
		case "Gid":
			line = i.groups.line(field)
		case "Groups":
			line = "Groups:\t"
			for _, g := range i.supplementary {
				line += strconv.Itoa(int(g)) + " "
			}
			line += "\n"
		}
		b.WriteString(line)
	}
	return b.String(), nil
}

func (i ids) line(field string) string {
	return fmt.Sprintf("%s:\t%d\t%d\t%d\t%d\n", field, i.real, i.effective, i.saved, i.fs)
}

// fileWith opens a file in memory, for reading.
func fileWith(text string) (int, error) {
	fd, err := unix.MemfdCreate("status", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	if n, err := unix.Write(fd, []byte(text)); err != nil || n != len(text) {
		return -1, os.ErrInvalid
	}
	// The supervisor's working directory is /proc/self/fd.
	return unix.Open(strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}
