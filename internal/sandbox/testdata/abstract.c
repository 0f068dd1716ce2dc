/* Connects to a socket of the abstract name space, whose name is the argument. With a second one it listens itself before. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int main(int argc, char **argv)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	socklen_t size = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(argv[1]);
	int from = socket(AF_UNIX, SOCK_STREAM, 0), to = socket(AF_UNIX, SOCK_STREAM, 0);
	strcpy(at.sun_path + 1, argv[1]);
	if (argc > 2 && (bind(to, (struct sockaddr *)&at, size) || listen(to, 1)))
		return puts(strerror(errno)), 2;
	if (connect(from, (struct sockaddr *)&at, size))
		return puts(strerror(errno)), 1;
	return puts("connected"), 0;
}
