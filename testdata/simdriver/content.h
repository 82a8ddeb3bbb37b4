/* Inside libcuda.so.1: what is written in device memory. Process lock held, for all of these. */
#ifndef SIMDRIVER_CONTENT_H
#define SIMDRIVER_CONTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct content {
	char *at;	 /* where the host has it; NULL: nothing was written, so it reads as zeros */
	uint64_t size;	 /* 0: the memory has none of its own */
	uint64_t offset; /* in the state file, where other processes have it too; 0: only here */
	bool file;	 /* an external memory's */
};

/* The host's place of it, to be written to; NULL: the host has no memory for it. */
char *content_write(struct content *c);
/* That part reads as zeros again, and costs the host nothing where it is whole pages. */
void content_zero(struct content *c, uint64_t from, uint64_t bytes);
/* It moves to that place of the state file. False: it can't be mapped. */
bool content_share(struct content *c, uint64_t offset);
/* What another process shares: all of c but `at` is set. */
bool content_open(struct content *c);
/* What a file holds, from that offset on; where it doesn't reach so far the memory is this process's own. */
void content_open_file(struct content *c, int fd, uint64_t offset);
void content_end(struct content *c);

#endif
