/* What the front has to know before it asks the daemon, and the request itself. See run.c. */
#define _GNU_SOURCE
#include "front.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define VERSION "1"	/* of what is said: see credgate/front.py */
#define LENT 6

/* `--name=value`, or `--name value`: then *at is the value's place. As for argparse, no value begins with "-". */
static bool value_of(const char *name, char **argv, int *at, const char **value)
{
	size_t length = strlen(name);
	const char *word = argv[*at], *next = argv[*at + 1];
	bool apart = strcmp(word, name) == 0;

	if (!apart && (strncmp(word, name, length) != 0 || word[length] != '='))
		return false;
	if (!apart)
		next = word + length + 1;
	if (next == NULL || *next == '\0' || *next == '-')
		return false;
	*at += apart;
	*value = next;
	return true;
}

static bool is_switch(const char *word, struct asked *asked)
{
	if (strcmp(word, "-q") == 0 || strcmp(word, "--quiet") == 0)
		return asked->quiet = true;
	if (strcmp(word, "--read-only") == 0)
		return asked->read_only = true;
	if (strcmp(word, "--warm") == 0)
		return asked->warm = true;
	return false;
}

bool read_line(int argc, char **argv, struct asked *asked)
{
	const char *name;

	asked->policy = asked->role = asked->workdir = "";
	asked->names = calloc((size_t)argc, sizeof *asked->names);
	if (asked->names == NULL)
		return false;
	for (int at = 2; at < argc; at++) {
		if (strcmp(argv[at], "--") == 0 || argv[at][0] != '-') {
			at += argv[at][0] == '-';
			asked->command = argv + at;
			asked->words = argc - at;
			return at < argc && strcmp(argv[at], "--") != 0;
		}
		if (is_switch(argv[at], asked))
			continue;
		if (value_of("--env", argv, &at, &name))
			asked->names[asked->named++] = name;
		else if (!value_of("--policy", argv, &at, &asked->policy) && !value_of("--role", argv, &at, &asked->role) &&
			 !value_of("--workdir", argv, &at, &asked->workdir))
			return false;
	}
	return false;
}

/* A connected stream of unix(7): what node makes in place of a pipe. As `_is_pair` of stdio.py. */
static bool is_pair(int number)
{
	struct sockaddr_un at;
	socklen_t size = sizeof at, length = sizeof(int);
	int domain = 0, kind = 0;

	return getsockopt(number, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX &&
	       getsockopt(number, SOL_SOCKET, SO_TYPE, &kind, &length) == 0 && kind == SOCK_STREAM &&
	       getpeername(number, (struct sockaddr *)&at, &size) == 0;
}

bool standard_is_plain(void)
{
	struct stat facts;

	for (int number = 0; number < 3; number++) {
		if (fstat(number, &facts) != 0)
			return false;
		if (S_ISCHR(facts.st_mode) ? isatty(number) : !S_ISREG(facts.st_mode) && !S_ISFIFO(facts.st_mode) &&
							      !(S_ISSOCK(facts.st_mode) && is_pair(number)))
			return false;
	}
	return true;
}

int connected(int *pid)
{
	const char *home = getenv("HOME"), *state = getenv("XDG_STATE_HOME");
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	struct ucred who = {.uid = (uid_t)-1};
	socklen_t size = sizeof who;
	struct stat facts;
	bool set = state != NULL && *state != '\0';
	int length, control;

	if (home == NULL || *home != '/' || (set && *state != '/'))
		return -1;
	length = snprintf(at.sun_path, sizeof at.sun_path, "%s%s/credgate/run", set ? state : home,
			  set ? "" : "/.local/state");
	if (length < 0 || (size_t)length + sizeof "/control" > sizeof at.sun_path)
		return -1;
	if (lstat(at.sun_path, &facts) != 0 || !S_ISDIR(facts.st_mode) || facts.st_uid != geteuid() ||
	    (facts.st_mode & 07777) != 0700)
		return -1;
	memcpy(at.sun_path + length, "/control", sizeof "/control");
	control = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (control < 0)
		return -1;
	if (connect(control, (struct sockaddr *)&at, sizeof at) == 0 &&
	    getsockopt(control, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == geteuid()) {
		*pid = who.pid;
		return control;
	}
	close(control);
	return -1;
}

static bool put(int file, const char *word)
{
	size_t size = strlen(word) + 1;

	return write(file, word, size) == (ssize_t)size;
}

/* What was asked for, each word ended by NUL: `request` of credgate/front.py reads it. -1 where that fails. */
static int written(const struct asked *asked)
{
	extern char **environ;
	char count[24], cwd[4096];
	int file = memfd_create("request", MFD_CLOEXEC);
	bool good = file >= 0 && getcwd(cwd, sizeof cwd) != NULL && *cwd == '/';

	good = good && put(file, cwd) && put(file, asked->policy) && put(file, asked->role) && put(file, asked->workdir);
	good = good && put(file, asked->read_only ? "1" : "");
	snprintf(count, sizeof count, "%zu", asked->named);
	good = good && put(file, count);
	for (size_t n = 0; good && n < asked->named; n++)
		good = put(file, asked->names[n]);
	snprintf(count, sizeof count, "%d", asked->words);
	good = good && put(file, count);
	for (int n = 0; good && n < asked->words; n++)
		good = put(file, asked->command[n]);
	for (char **each = environ; good && *each != NULL; each++)
		good = put(file, *each);
	return good ? file : -1;
}

bool ask(struct run *run, const struct asked *asked)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(LENT * sizeof(int))];
	} rights = {0};
	char body[128];
	struct iovec data = {.iov_base = body};
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = rights.bytes, .msg_controllen = sizeof rights.bytes};
	int to_pid1[2], life[2], file = written(asked);
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	bool sent;

	if (file < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, to_pid1) != 0 ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, life) != 0)
		return false;
	const int lent[LENT] = {file, to_pid1[1], life[1], 0, 1, 2};
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof lent);
	memcpy(CMSG_DATA(header), lent, sizeof lent);
	data.iov_len = (size_t)snprintf(body, sizeof body,
					"{\"op\":\"run.front\",\"front\":" VERSION ",\"ttys\":[],\"warm\":%s,\"quiet\":%s}",
					asked->warm ? "true" : "false", asked->quiet ? "true" : "false");
	sent = sendmsg(run->control, &message, MSG_NOSIGNAL) >= 0;
	for (int n = 0; n < 3; n++)
		close(lent[n]);
	run->peer = to_pid1[0];
	run->life = life[0];
	return sent;
}
