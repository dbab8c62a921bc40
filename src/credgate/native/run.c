/* `credgate run` of the usual kind, without an interpreter: none is started, none stays beside the jail.
 *
 * It decides nothing. It asks the daemon, lends what credgate/commands/run.py lends, passes signals on, prints what the
 * daemon words, and returns the status that it is told. Whatever else is to be done is done by Python, in this very
 * process: before the daemon was asked from the beginning, and later with the sockets of the run (see `resumed` there).
 * Built by credgate/buildfront.py with PYTHON, START and STAMP. What it and the daemon say: credgate/front.py.
 */
#define _GNU_SOURCE
#include "front.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define CANNOT 125
#define LAST_WORD (60 * 1000)	/* ms for the daemon to close what belonged to the run, as in ended.py */
#ifndef PATIENCE
#define PATIENCE (10 * 1000)	/* ms without a word after which the daemon is looked at, as in thinclient.py */
#endif
#define IN_A_JAIL "/etc/ssl/certs/credgate-ca.pem"	/* as in cli.py */
#define BYTES (200 << 10)	/* of one message: see MOST of credgate/front.py */

__attribute__((used)) static const char stamp[] = "credgate-front:" STAMP;

static int own_argc;
static char **own_argv;
static void (*own_sigpipe)(int), (*own_sigxfsz)(int);
static int wake[2] = {-1, -1};
static const int forwarded[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
#define FORWARDED (sizeof forwarded / sizeof *forwarded)
static char text[BYTES + 1];

/* Become the Python launcher. resumed: the first word for start.py where this run has begun, else NULL. */
static _Noreturn void python(char *resumed)
{
	static char run[] = "run", interpreter[] = PYTHON, start[] = START;
	static char isolated[] = "-I", bare[] = "-S", module[] = "-m", package[] = "credgate";
	bool ours = own_argc > 1 && strcmp(own_argv[1], "run") == 0;
	char **words = calloc((size_t)own_argc + 6, sizeof *words);
	int count = 0;

	if (words != NULL) {
		words[count++] = interpreter;
		words[count++] = isolated;
		words[count++] = ours ? bare : module;
		words[count++] = ours ? start : package;
		if (ours)
			words[count++] = resumed ? resumed : run;
		for (int n = ours ? 2 : 1; n < own_argc; n++)
			words[count++] = own_argv[n];
		signal(SIGPIPE, own_sigpipe);
		signal(SIGXFSZ, own_sigxfsz);
		execv(PYTHON, words);
	}
	dprintf(2, "error: can't start %s: %s\nhint: scripts/setup makes it anew\n", PYTHON, strerror(errno));
	_exit(CANNOT);
}

/* Have Python go on from here: what it needs to know is which sockets these are, and how far the run has come. */
static _Noreturn void hand_over(const struct run *run)
{
	char resumed[96];
	const int kept[] = {run->control, run->peer, run->life};
	sigset_t held;

	sigemptyset(&held);	/* until its handlers are there: run.py unblocks them */
	for (size_t n = 0; run->planned && n < FORWARDED; n++)
		sigaddset(&held, forwarded[n]);
	sigprocmask(SIG_BLOCK, &held, NULL);
	for (size_t n = 0; n < sizeof kept / sizeof *kept; n++)
		fcntl(kept[n], F_SETFD, 0);
	snprintf(resumed, sizeof resumed, "run:%d,%d,%d,%d,%d", run->control, run->peer, run->life, run->planned,
		 run->ready);
	python(resumed);
}

static _Noreturn void malformed(void)
{
	dprintf(2, "error: got a message from the daemon that is none\nhint: credgate gateway stop, then try again\n");
	_exit(CANNOT);
}

static void say(const char *words, size_t size)
{
	while (size > 0) {
		ssize_t done = write(2, words, size);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return;	/* nobody reads our messages; the run goes on */
		words += done;
		size -= (size_t)done;
	}
}

/* The one descriptor pair that a message may bring: the launcher's ends of a jail that was made ahead. */
static bool take(struct msghdr *message, struct run *run)
{
	struct cmsghdr *header = CMSG_FIRSTHDR(message);
	int fds[2];

	if (message->msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		return false;
	if (header == NULL)
		return true;
	if (run->planned || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
	    header->cmsg_len != CMSG_LEN(sizeof fds))
		return false;
	memcpy(fds, CMSG_DATA(header), sizeof fds);
	close(run->peer);
	close(run->life);
	run->peer = fds[0];
	run->life = fds[1];
	return true;
}

/* A kind, a number of at most three digits, a line's end, and words to print: see credgate/front.py. */
static void obey(struct run *run, const char *said, size_t size)
{
	size_t at = 1;
	int number = 0;

	while (at < size && at < 4 && said[at] >= '0' && said[at] <= '9')
		number = number * 10 + (said[at++] - '0');
	if (at == 1 || at >= size || said[at] != '\n' || number > 255 ||
	    (!run->planned && (said[0] == 'R' || said[0] == 'E')))
		malformed();
	say(said + at + 1, size - at - 1);
	switch (said[0]) {
	case 'P':
		run->planned = true;
		break;
	case 'R':
		run->ready = true;
		break;
	case 'X':
		run->refused = number;
		break;
	case 'E':
		run->ended = number;
		break;
	case 'S':
		break;
	default:
		malformed();
	}
}

/* Take one message of the daemon's. What is written for Python, and the end of all, is left for it. */
static void hear(struct run *run)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} rights;
	struct iovec data = {.iov_base = text, .iov_len = sizeof text};
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = rights.bytes, .msg_controllen = sizeof rights.bytes};
	ssize_t size;

	do
		size = recv(run->control, text, 1, MSG_PEEK);
	while (size < 0 && errno == EINTR);
	if (size < 0 && errno == ECONNRESET && !run->planned)
		python(NULL);	/* unix(7): what we asked lay unread when the daemon ended. Nothing has begun */
	if (size <= 0 || text[0] == '{')
		hand_over(run);
	do
		size = recvmsg(run->control, &message, MSG_CMSG_CLOEXEC);
	while (size < 0 && errno == EINTR);
	if (size <= 0 || !take(&message, run))
		malformed();
	obey(run, text, (size_t)size);
}

/* By proc_pid_stat(5): the state stands behind the name, which may hold anything. */
static bool is_stopped(int pid)
{
	char path[32], facts[256];
	const char *state;
	ssize_t size;
	int file;

	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return false;
	size = read(file, facts, sizeof facts);
	close(file);
	state = size > 0 ? memrchr(facts, ')', (size_t)size) : NULL;
	return state != NULL && facts + size - state > 2 && (state[2] == 'T' || state[2] == 't');
}

/* The daemon has said nothing for a while. That may be, but not of one that is stopped: the run is refused. */
static void look(struct run *run)
{
	if (!is_stopped(run->daemon))
		return;
	dprintf(2, "error: the daemon, pid %d, is stopped\nhint: kill -CONT %d\n", run->daemon, run->daemon);
	run->refused = CANNOT;
	run->stopped = true;
}

/* Until there is a jail, or the run was refused. */
static void until_planned(struct run *run)
{
	struct pollfd source = {.fd = run->control, .events = POLLIN};

	while (!run->planned && run->refused < 0) {
		int ready = poll(&source, 1, PATIENCE);
		if (ready > 0)
			hear(run);
		else if (ready == 0)
			look(run);
	}
}

static void caught(int number)
{
	int before = errno;
	unsigned char byte = (unsigned char)number;

	if (write(wake[1], &byte, 1) < 0)
		errno = before;	/* full: so many wait already */
	errno = before;
}

static void interrupted(int number)
{
	_exit(128 + number);	/* as Python's, until there is a jail to pass it to */
}

static void catch_signals(void)
{
	struct sigaction action = {.sa_handler = caught, .sa_flags = SA_RESTART};

	if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) {
		dprintf(2, "error: credgate run: %s\nhint: end what holds open files\n", strerror(errno));
		_exit(CANNOT);
	}
	for (size_t n = 0; n < FORWARDED; n++)
		sigaction(forwarded[n], &action, NULL);
}

static void forward(const struct run *run)
{
	unsigned char numbers[64];
	char order[64];
	ssize_t count = read(wake[0], numbers, sizeof numbers);

	for (ssize_t n = 0; n < count; n++) {
		int size = snprintf(order, sizeof order, "{\"op\":\"signal\",\"number\":%d}", numbers[n]);
		if (send(run->peer, order, (size_t)size, MSG_NOSIGNAL) < 0)
			return;	/* pid 1 is gone: the next poll says so */
	}
}

/* Until pid 1 is gone, or the run was refused. What pid 1 says is for a launcher with a terminal. */
static void until_gone(struct run *run)
{
	struct pollfd sources[] = {
		{.fd = run->peer, .events = POLLIN}, {.fd = run->control, .events = POLLIN}, {.fd = wake[0], .events = POLLIN}};
	char unread[256];
	ssize_t size;

	while (run->refused < 0) {
		int ready = poll(sources, 3, run->ready ? -1 : PATIENCE);
		if (ready == 0)
			look(run);
		if (ready <= 0)
			continue;
		if (sources[2].revents)
			forward(run);
		if (sources[1].revents)
			hear(run);
		if (run->ended >= 0)
			sources[1].fd = -1;
		if (sources[0].revents == 0)
			continue;
		size = recv(run->peer, unread, sizeof unread, 0);
		if (size == 0 || (size < 0 && errno != EINTR))
			return;
	}
}

/* Wait for the confirmed end: the jail's, then the daemon's last word. */
static void until_ended(struct run *run)
{
	struct pollfd source = {.fd = run->control, .events = POLLIN};
	char unread[256];
	ssize_t size;
	int silent = 0;

	shutdown(run->peer, SHUT_RDWR);	/* pid 1 ends everything when this goes, whatever became of us */
	do
		size = recv(run->life, unread, sizeof unread, 0);
	while (size > 0 || (size < 0 && errno == EINTR));
	while (run->ended < 0 && !run->stopped) {
		int ready = poll(&source, 1, PATIENCE);
		if (ready < 0)
			continue;
		silent = ready ? 0 : silent + PATIENCE;
		if (ready == 0 && silent < LAST_WORD) {
			look(run);
			continue;
		}
		if (run->refused >= 0 && (ready == 0 || recv(run->control, unread, 1, MSG_PEEK) <= 0))
			return;
		if (ready == 0) {
			dprintf(2, "error: no end from the daemon in 60 s\nhint: see its log\n");
			_exit(CANNOT);
		}
		hear(run);
	}
}

int main(int argc, char **argv)
{
	struct asked asked = {0};
	struct run run = {.control = -1, .peer = -1, .life = -1, .refused = -1, .ended = -1};
	struct rlimit files;

	own_argc = argc;
	own_argv = argv;
	own_sigpipe = signal(SIGPIPE, SIG_IGN);
	own_sigxfsz = signal(SIGXFSZ, SIG_IGN);	/* setrlimit(2): a limit of file sizes holds for the request's file too */
	if (argc < 2 || strcmp(argv[1], "run") != 0 || geteuid() == 0 || !read_line(argc, argv, &asked) ||
	    access(IN_A_JAIL, F_OK) == 0 || !standard_is_plain())
		python(NULL);
	if (signal(SIGINT, interrupted) == SIG_IGN)
		signal(SIGINT, SIG_IGN);
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;	/* as hostlimits.py: the daemon reads this process's limits */
		setrlimit(RLIMIT_NOFILE, &files);
	}
	run.control = connected(&run.daemon);
	if (run.control < 0 || !ask(&run, &asked))
		python(NULL);
	until_planned(&run);
	if (run.planned) {
		catch_signals();
		until_gone(&run);
		until_ended(&run);
	}
	return run.refused >= 0 ? run.refused : run.ended;
}
