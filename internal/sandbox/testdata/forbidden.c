/* Makes the calls that nothing in an image can make, and those that a step cannot, and prints how each ended. Those that measure have
   arguments with which they fail where they are let through. */
#include <errno.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void say(const char *name, long result) {
	printf("%s %s\n", name, result >= 0 ? "works" : errno == EPERM ? "is refused" : "fails otherwise");
}

int main(void) {
	char key = 'x', shift = 6;
	say("keyctl", syscall(SYS_keyctl, 0 /* KEYCTL_GET_KEYRING_ID */, -3 /* of the session */, 1));
	say("add_key", syscall(SYS_add_key, "user", "sconce-test", "x", 1, -1 /* of the thread */));
	say("request_key", syscall(SYS_request_key, "user", "sconce-test", 0, 0));
	say("TIOCSTI", ioctl(0, TIOCSTI, &key));
	say("TIOCLINUX", ioctl(0, TIOCLINUX, &shift));
	say("name space of control groups", syscall(SYS_unshare, 0x10000000 /* CLONE_NEWUSER */ | 0x02000000 /* CLONE_NEWCGROUP */));
	say("measuring by perf_event_open", syscall(SYS_perf_event_open, 0, 0, 0, -1, -1L));
	say("measuring by bpf", syscall(SYS_bpf, -1, 0, 1L << 40));
	say("measuring by userfaultfd", syscall(SYS_userfaultfd, -1));
	say("getpid", getpid());
	return 0;
}
