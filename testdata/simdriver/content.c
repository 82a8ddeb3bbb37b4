/*
 * What is written in device memory lies in memory of the host, of the process that has the device memory. It is mapped
 * with the first write, anywhere: never at the device's address, where a stray access shall fault. Pages cost the host something
 * once they are written. Exported memory lies in the state file, behind struct state: each process that has the file open can map it,
 * whatever else it can see of the host.
 */
#define _GNU_SOURCE
#include "content.h"
#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL (64ull << 10) /* less than that is no mapping of its own: a process can't have very many */

static bool is_small(const struct content *c)
{
	return c->size < SMALL && !c->offset && !c->file;
}

char *content_write(struct content *c)
{
	void *at;

	if (c->at)
		return c->at;
	if (is_small(c)) {
		c->at = calloc(1, c->size);
		return c->at;
	}
	at = mmap(NULL, c->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return NULL;
	madvise(at, c->size, MADV_DONTFORK); /* a forked child can't use the driver */
	c->at = at;
	return at;
}

void content_zero(struct content *c, uint64_t from, uint64_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = (from + page - 1) / page * page, last = (from + bytes) / page * page;

	if (!c->at)
		return;
	if (is_small(c) || c->file || first >= last || madvise(c->at + first, last - first, c->offset ? MADV_REMOVE : MADV_DONTNEED)) {
		memset(c->at + from, 0, bytes);
		return;
	}
	memset(c->at + from, 0, first - from);
	memset(c->at + last, 0, from + bytes - last);
}

static void release(struct content *c)
{
	if (!c->at)
		return;
	if (is_small(c))
		free(c->at);
	else
		munmap(c->at, c->size);
	c->at = NULL;
}

/* Pages that are zero are not written: they would take memory. */
static void copy_pages(char *to, const char *from, uint64_t size)
{
	static const char zeros[4096];

	for (uint64_t at = 0; at < size; at += sizeof(zeros)) {
		uint64_t piece = size - at < sizeof(zeros) ? size - at : sizeof(zeros);

		if (memcmp(from + at, zeros, piece) != 0)
			memcpy(to + at, from + at, piece);
	}
}

bool content_share(struct content *c, uint64_t offset)
{
	char *at = state_map(NULL, offset, c->size);

	if (at == MAP_FAILED)
		return false;
	madvise(at, c->size, MADV_DONTFORK);
	if (c->at)
		copy_pages(at, c->at, c->size);
	release(c);
	c->at = at;
	c->offset = offset;
	return true;
}

bool content_open(struct content *c)
{
	char *at = state_map(NULL, c->offset, c->size);

	if (at == MAP_FAILED)
		return false;
	madvise(at, c->size, MADV_DONTFORK);
	c->at = at;
	return true;
}

void content_open_file(struct content *c, int fd, uint64_t offset)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	off_t end = lseek(fd, 0, SEEK_END);
	void *at;

	if (end < 0 || offset % page || (uint64_t)end < offset || (uint64_t)end - offset < c->size)
		return;
	at = mmap(NULL, c->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
	if (at == MAP_FAILED)
		return;
	c->at = at;
	c->file = true;
}

void content_end(struct content *c)
{
	release(c);
	*c = (struct content){0};
}
