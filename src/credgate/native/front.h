#ifndef CREDGATE_FRONT_H
#define CREDGATE_FRONT_H

#include <stdbool.h>
#include <stddef.h>

/* What was asked for on the command line. */
struct asked {
	const char *policy, *role, *workdir;
	const char **names;	/* of --env */
	size_t named;
	bool read_only, quiet, warm;
	char **command;
	int words;
};

struct run {
	int control, peer, life;	/* the daemon, pid 1, the waiter: -1 where there is none */
	int daemon;	/* its pid */
	bool planned, ready, stopped;	/* the jail is made; proven; the daemon is stopped */
	int refused, ended;	/* statuses; -1 until then */
};

/* Read the command line as `plain` of commands/run.py does; false for what Python has to read. */
bool read_line(int argc, char **argv, struct asked *asked);

/* Whether 0, 1, 2 carry bytes alone, none is closed, and none a terminal. As stdio.py. */
bool standard_is_plain(void);

/* A connection to a daemon that is up, of our own user, in a directory as it has to be; else -1. As thinclient.py.
 * *pid: the daemon's. */
int connected(int *pid);

/* Ask for a run, and lend what its jail gets, in the order of `Borrowed` of standin.py. False: nothing was asked. */
bool ask(struct run *run, const struct asked *asked);

#endif
