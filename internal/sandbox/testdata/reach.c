/* Looks through what /proc shows of other processes for the files whose device and inode numbers are the arguments, and tries to
   change what it finds. Prints the links that lead to one. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static char **wanted;
static int reached;

static void try(const char *path)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_NONBLOCK);
	if (fd < 0)
		fd = open(path, O_PATH);
	if (fd < 0)
		return;
	if (!fstat(fd, &st))
		for (char **w = wanted; w[0] && w[1]; w += 2)
			if (st.st_dev == strtoull(w[0], 0, 10) && st.st_ino == strtoull(w[1], 0, 10)) {
				printf("reached %s\n", path);
				reached = 1;
				if (!fchmod(fd, st.st_mode & 07777) || !futimens(fd, 0) || !fsetxattr(fd, "user.reached", "1", 1, 0) || open(path, O_WRONLY) >= 0)
					printf("changed %s\n", path);
			}
	close(fd);
}

static void each(const char *dir, void (*use)(const char *))
{
	DIR *d = opendir(dir);
	if (!d)
		return;
	for (struct dirent *e; (e = readdir(d));) {
		char path[4096];
		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		if (e->d_name[0] != '.')
			use(path);
	}
	closedir(d);
}

static void process(const char *dir)
{
	static const char *links[] = {"exe", "cwd", "root"}, *dirs[] = {"fd", "map_files", "task"};
	char path[4096];
	if (strspn(dir + 6, "0123456789") != strlen(dir + 6) && strncmp(dir, "/proc/self", 10))
		return;
	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, links[i]);
		try(path);
	}
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, dirs[i]);
		each(path, try);
	}
}

int main(int argc, char **argv)
{
	wanted = argv + 1;
	each("/proc", process);
	try("./");
	try("../");
	puts(reached ? "reached" : "nothing reached");
	return 0;
}
