/* Makes the system calls of which the first argument names a group, by their numbers, and says what goes wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

#define CHECK(what, want) \
	do { \
		errno = 0; \
		long got = (long)(what); \
		if (got != (long)(want)) { \
			printf("line %d: %s is %ld (%s), want %ld\n", __LINE__, #what, got, strerror(errno), (long)(want)); \
			failures++; \
		} \
	} while (0)

#define REFUSED(what, why) \
	do { \
		errno = 0; \
		long got = (long)(what); \
		if (got != -1 || errno != (why)) { \
			printf("line %d: %s is %ld (%s), want %s\n", __LINE__, #what, got, strerror(errno), #why); \
			failures++; \
		} \
	} while (0)

static int make(const char *name)
{
	int fd = open(name, O_CREAT | O_RDWR, 0644);
	if (fd < 0) {
		perror(name);
		exit(1);
	}
	return fd;
}

static void native(void)
{
	int dir = open(".", O_RDONLY | O_DIRECTORY);
	char magic[64];
	close(make("chown"));
	close(make("lchown"));
	close(make("fchownat"));
	close(make("follow"));
	symlink("nowhere", "link");
	symlink("/root/follow", "tofollow");
#ifdef SYS_chown
	CHECK(syscall(SYS_chown, "chown", 10, 20), 0);
	CHECK(syscall(SYS_lchown, "lchown", 11, 21), 0);
	CHECK(syscall(SYS_mknod, "mknod", S_IFCHR | 0600, makedev(1, 5)), 0);
#else
	CHECK(syscall(SYS_fchownat, AT_FDCWD, "chown", 10, 20, 0), 0);
	CHECK(syscall(SYS_fchownat, AT_FDCWD, "lchown", 11, 21, 0), 0);
	CHECK(syscall(SYS_mknodat, AT_FDCWD, "mknod", S_IFCHR | 0600, makedev(1, 5)), 0);
#endif
	CHECK(syscall(SYS_fchown, make("fchown"), 12, 22), 0);
	CHECK(syscall(SYS_fchownat, dir, "fchownat", 13, 23, 0), 0);
	CHECK(syscall(SYS_fchownat, dir, "link", 14, 24, AT_SYMLINK_NOFOLLOW), 0);
	CHECK(syscall(SYS_fchownat, make("empty"), "", 15, 25, AT_EMPTY_PATH), 0);
	CHECK(syscall(SYS_fchownat, dir, "../root/tofollow", 16, 26, 0), 0);
	snprintf(magic, sizeof magic, "/proc/self/fd/%d", make("magic"));
	CHECK(syscall(SYS_fchownat, AT_FDCWD, magic, 17, 27, 0), 0);
	CHECK(syscall(SYS_mknodat, dir, "mknodat", S_IFBLK | 0600, makedev(7, 1)), 0);
	CHECK(syscall(SYS_mknodat, dir, "fifo", S_IFIFO | 0600, 0), 0);
}

static void bad(void)
{
	static char longer[8192];
	memset(longer, 'x', sizeof longer - 1);
	close(make("file"));
	REFUSED(syscall(SYS_fchown, -1, 1, 1), EBADF);
	REFUSED(syscall(SYS_fchown, 999, 1, 1), EBADF);
	REFUSED(syscall(SYS_fchownat, AT_FDCWD, (char *)8, 1, 1, 0), EFAULT);
	REFUSED(syscall(SYS_fchownat, AT_FDCWD, longer, 1, 1, 0), ENAMETOOLONG);
	REFUSED(syscall(SYS_fchownat, AT_FDCWD, "", 1, 1, 0), ENOENT);
	REFUSED(syscall(SYS_fchownat, AT_FDCWD, "file/below", 1, 1, 0), ENOTDIR);
	REFUSED(syscall(SYS_fchownat, AT_FDCWD, "file", 1, 1, 1 << 20), EINVAL);
	REFUSED(syscall(SYS_fchownat, 999, "file", 1, 1, 0), EBADF);
	REFUSED(syscall(SYS_mknodat, AT_FDCWD, "file", S_IFCHR, 0), EEXIST);
	REFUSED(syscall(SYS_mknodat, AT_FDCWD, "", S_IFCHR, 0), ENOENT);
	REFUSED(syscall(SYS_mknodat, AT_FDCWD, "..", S_IFCHR, 0), EEXIST);
	REFUSED(syscall(SYS_mknodat, AT_FDCWD, "/", S_IFCHR, 0), EEXIST);
	REFUSED(syscall(SYS_setgroups, -1, NULL), EINVAL);
	REFUSED(syscall(SYS_setgroups, 2, (char *)8), EFAULT);
	REFUSED(syscall(SYS_getresuid, (char *)8, (char *)8, (char *)8), EFAULT);
	REFUSED(syscall(SYS_setuid, -1), EINVAL);
	REFUSED(mount("none", "/tmp", "no-such-type", 0, NULL), EPERM);
	REFUSED(syscall(SYS_fchownat, AT_FDCWD, "/proc/1/root/etc", 1, 1, 0), ELOOP);
	REFUSED(syscall(SYS_fchownat, AT_FDCWD, "/proc/1/fd/5", 1, 1, 0), ELOOP);
}

static void keep(int again)
{
	if (again) { /* after exec */
		REFUSED(syscall(SYS_setgid, 0), EPERM);
		return;
	}
	CHECK(prctl(PR_SET_KEEPCAPS, 1), 0);
	CHECK(prctl(PR_GET_KEEPCAPS), 1);
	CHECK(syscall(SYS_setresuid, 70, 70, 70), 0);
	CHECK(syscall(SYS_setresgid, 71, 71, 71), 0);
	CHECK(syscall(SYS_setgroups, 0, NULL), 0);
	CHECK(link("/bin/calls", "other"), 0);
	execl("other", "other", "kept", NULL);
	CHECK(0, 1);
}

static void whoami(void)
{
	printf("%d %d %d %d\n", getuid(), geteuid(), getgid(), getegid());
}

/* Every call that tells whose a file is, of one that belongs to 70 and 71. */
static void stats(void)
{
	int fd = make("file"), dir = open(".", O_RDONLY | O_DIRECTORY);
	struct stat s;
	struct statx x;
	CHECK(fchown(fd, 70, 71), 0);
	symlink("file", "way");
#define OWNED(call) \
	memset(&s, 0, sizeof s); \
	CHECK(call, 0); \
	CHECK(s.st_uid == 70 && s.st_gid == 71 && s.st_size == 0 && s.st_nlink == 1 && S_ISREG(s.st_mode) && s.st_ino != 0, 1)
#ifdef SYS_stat
	OWNED(syscall(SYS_stat, "way", &s));
	OWNED(syscall(SYS_lstat, "/root/file", &s));
#endif
	OWNED(syscall(SYS_fstat, fd, &s));
	OWNED(syscall(SYS_newfstatat, fd, "", &s, AT_EMPTY_PATH));
	OWNED(syscall(SYS_newfstatat, dir, "way", &s, 0));
	OWNED(syscall(SYS_newfstatat, dir, "../root/file", &s, AT_SYMLINK_NOFOLLOW));
	CHECK(syscall(SYS_statx, AT_FDCWD, "way", 0, STATX_BASIC_STATS, &x), 0);
	CHECK(x.stx_uid == 70 && x.stx_gid == 71 && x.stx_nlink == 1, 1);
	CHECK(syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x), 0);
	CHECK(x.stx_uid == 70 && x.stx_gid == 71, 1);
	CHECK(syscall(SYS_newfstatat, dir, "way", &s, AT_SYMLINK_NOFOLLOW), 0);
	CHECK(s.st_uid == 0 && S_ISLNK(s.st_mode), 1);
	REFUSED(syscall(SYS_newfstatat, dir, "missing", &s, 0), ENOENT);
	REFUSED(syscall(SYS_newfstatat, 999, "file", &s, 0), EBADF);
	REFUSED(syscall(SYS_newfstatat, dir, "file", (void *)8, 0), EFAULT);
	REFUSED(syscall(SYS_newfstatat, dir, (void *)8, &s, 0), EFAULT);
	REFUSED(syscall(SYS_fstat, -1, &s), EBADF);
}

static void before_exec(void) { keep(0); }
static void after_exec(void) { keep(1); }

static void identity(void)
{
	uid_t r, e, s, groups[4] = {0};
	gid_t wanted[2] = {71, 72};
	struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
	CHECK(getgroups(4, groups), 1);
	CHECK(groups[0], 0);
	/* for a while, as apt and sshd do */
	CHECK(syscall(SYS_setresuid, -1, 42, -1), 0);
	CHECK(geteuid(), 42);
	CHECK(getuid(), 0);
	CHECK(syscall(SYS_setresuid, -1, 0, -1), 0);
	CHECK(geteuid(), 0);
	/* for good */
	CHECK(syscall(SYS_setgroups, 2, wanted), 0);
	CHECK(syscall(SYS_setresgid, 71, 71, 71), 0);
	CHECK(syscall(SYS_setresuid, 70, 70, 70), 0);
	CHECK(getresuid(&r, &e, &s), 0);
	CHECK(r == 70 && e == 70 && s == 70, 1);
	CHECK(getresgid(&r, &e, &s), 0);
	CHECK(r == 71 && e == 71 && s == 71, 1);
	CHECK(getgroups(0, NULL), 2);
	REFUSED(getgroups(1, groups), EINVAL);
	CHECK(getgroups(4, groups), 2);
	CHECK(groups[0] == 71 && groups[1] == 72, 1);
	CHECK(setrlimit(RLIMIT_LOCKS, &unlimited), 0); /* as pam_limits does */
	CHECK(getuid(), 70);
	CHECK(getegid(), 71);
	REFUSED(syscall(SYS_setuid, 0), EPERM);
	REFUSED(syscall(SYS_setreuid, 0, -1), EPERM);
	REFUSED(syscall(SYS_setgid, 0), EPERM);
	REFUSED(syscall(SYS_setgroups, 0, NULL), EPERM);
	CHECK(syscall(SYS_setfsuid, 0), 70);
	CHECK(syscall(SYS_setfsuid, -1), 70);
	CHECK(syscall(SYS_capset, NULL, NULL), 0);
	pid_t child = fork();
	if (child == 0) {
		/* a daemon: its parent is gone when it asks */
		if (fork() == 0) {
			for (int fd = 0; fd < 64; fd++)
				if (fd != 1)
					close(fd);
			usleep(100000);
			CHECK(getuid(), 70);
			CHECK(getegid(), 71);
			CHECK(syscall(SYS_setuid, 70), 0);
			REFUSED(syscall(SYS_setuid, 0), EPERM);
			exit(failures);
		}
		exit(0);
	}
	waitpid(child, NULL, 0);
	usleep(300000);
	CHECK(getuid(), 70);
}

static void after_vfork(void)
{
	int status, fd = make("vfork");
	pid_t child = vfork();
	if (child == 0) {
		long err = syscall(SYS_fchown, fd, 30, 31);
		err |= syscall(SYS_setuid, 5);
		_exit(err || syscall(SYS_getuid) != 5);
	}
	CHECK(waitpid(child, &status, 0), child);
	CHECK(status, 0);
	CHECK(getuid(), 0);
}

static void in_root(void)
{
	mkdir("jail", 0755);
	mkdir("jail/sub", 0755);
	close(make("jail/a"));
	close(make("jail/b"));
	close(make("jail/c"));
	close(make("b"));
	CHECK(chdir("jail"), 0);
	CHECK(chroot("."), 0);
	CHECK(symlink("/b", "absolute"), 0);
	CHECK(chown("/../../a", 40, 41), 0);
	CHECK(chdir("sub"), 0);
	CHECK(chown("../absolute", 42, 43), 0);
	CHECK(chown("../../../../c", 44, 45), 0);
	REFUSED(chown("/root/b", 1, 1), ENOENT);
}

/* Interrupts whoever answers, all of whose threads are in process 1, until the process that it returns is killed. */
static pid_t interrupt_answers(void)
{
	pid_t child = fork();
	if (child == 0)
		for (pid_t thread = 1;; thread = thread % 40 + 1)
			syscall(SYS_tgkill, 1, thread, SIGURG);
	return child;
}

/* Each file is new, so that its descriptor comes from who answers. */
static void exclusive(void)
{
	pid_t other;
	chmod(".", 0777);
	other = interrupt_answers();
	CHECK(syscall(SYS_setuid, 70), 0);
	for (int i = 0; i < 4000 && failures < 5; i++) {
		int fd = open("new", O_CREAT | O_EXCL | O_RDWR, 0600);
		CHECK(fd > 2, 1);
		CHECK(ftruncate(fd, 0), 0);
		if (fd > 2)
			CHECK(close(fd), 0);
		CHECK(unlink("new"), 0);
		fd = open("kept", O_CREAT | O_RDWR, 0600);
		CHECK(fd > 2, 1);
		CHECK(ftruncate(fd, 0), 0);
		CHECK(close(fd), 0);
		if (i % 2)
			CHECK(unlink("kept"), 0);
	}
	CHECK(open("/dev/null", O_RDONLY), 3); /* nothing stays open */
	kill(other, SIGKILL);
}

static void *chown_many(void *arg)
{
	long first = (long)arg;
	for (long i = first; i < first + 250; i++) {
		char name[32];
		snprintf(name, sizeof name, "%ld", i);
		close(make(name));
		CHECK(chown(name, i, i + 1), 0);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t all[8];
	for (long i = 0; i < 8; i++)
		pthread_create(&all[i], NULL, chown_many, (void *)(i * 250));
	for (int i = 0; i < 8; i++)
		pthread_join(all[i], NULL);
}

#ifdef __x86_64__
static sigjmp_buf no_i386;

static void leave(int sig)
{
	(void)sig;
	siglongjmp(no_i386, 1);
}

/* Calls as a 32-bit program does. Addresses of a static program, which is not PIE, have 32 bits. */
static long call32(long number, long a, long b, long c, long d, long e)
{
	long result;
	__asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e) : "memory", "r8", "r9", "r10", "r11");
	return (int)result;
}

static void i386(void)
{
	static char n_chown[] = "chown", n_lchown[] = "lchown", n_16[] = "chown16", n_at[] = "fchownat", n_mknod[] = "mknod";
	static uint32_t ids[3];
	static uint16_t ids16[3], groups16[2] = {71, 72};
	signal(SIGSEGV, leave);
	if (sigsetjmp(no_i386, 1)) {
		puts("skip: the kernel runs no 32-bit programs");
		exit(0);
	}
	if (call32(20, 0, 0, 0, 0, 0) == -ENOSYS) {
		puts("skip: the kernel runs no 32-bit programs");
		exit(0);
	}
	close(make(n_chown));
	close(make(n_lchown));
	close(make(n_16));
	close(make(n_at));
	CHECK(call32(212, (long)n_chown, 10, 20, 0, 0), 0);
	CHECK(call32(198, (long)n_lchown, 11, 21, 0, 0), 0);
	CHECK(call32(182, (long)n_16, 12, 0xffff, 0, 0), 0);
	CHECK(call32(298, AT_FDCWD, (long)n_at, 13, 23, 0), 0);
	CHECK(call32(207, make("fchown"), 14, 24, 0, 0), 0);
	CHECK(call32(14, (long)n_mknod, S_IFCHR | 0600, makedev(1, 5), 0, 0), 0);
	CHECK(call32(81, 2, (long)groups16, 0, 0, 0), 0);
	CHECK(call32(205, 3, (long)ids, 0, 0, 0), 2);
	CHECK(ids[0] == 71 && ids[1] == 72, 1);
	CHECK(call32(208, 5, 6, 7, 0, 0), 0);
	CHECK(call32(209, (long)&ids[0], (long)&ids[1], (long)&ids[2], 0, 0), 0);
	CHECK(ids[0] == 5 && ids[1] == 6 && ids[2] == 7, 1);
	CHECK(call32(165, (long)&ids16[0], (long)&ids16[1], (long)&ids16[2], 0, 0), 0);
	CHECK(ids16[0] == 5 && ids16[1] == 6 && ids16[2] == 7, 1);
	CHECK(call32(24, 0, 0, 0, 0, 0), 5);
	CHECK(call32(201, 0, 0, 0, 0, 0), 6);
	CHECK(call32(213, 0, 0, 0, 0, 0), -EPERM);
	CHECK(call32(164, 0xffff, 7, 0xffff, 0, 0), 0);
	CHECK(geteuid(), 7);
}
#else
static void i386(void)
{
	puts("skip: not this machine's");
}
#endif

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} groups[] = {
		{"native", native}, {"i386", i386}, {"bad", bad}, {"identity", identity}, {"keep", before_exec}, {"whoami", whoami}, {"stats", stats}, {"kept", after_exec}, {"vfork", after_vfork}, {"chroot", in_root}, {"threads", threads}, {"exclusive", exclusive},
	};
	setvbuf(stdout, NULL, _IONBF, 0);
	for (unsigned i = 0; argc > 1 && i < sizeof groups / sizeof *groups; i++)
		if (strcmp(argv[1], groups[i].name) == 0) {
			groups[i].run();
			return failures != 0;
		}
	return 2;
}
