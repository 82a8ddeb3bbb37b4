/*
 * Memory that was exported. Its bytes leave the cell of the client that made it and are a record of their own, because they live
 * as long as any process holds a descriptor, a handle or a mapping of it.
 *
 * The exported descriptor is an open file description of the state file that holds a lock on a byte of its own. Each process that uses the
 * memory keeps a copy of that descriptor, or one of its own with a lock on the same byte. So the kernel knows whether the memory is still in
 * use, also by a descriptor that is on its way through a socket, and a process that is killed leaves nothing behind.
 *
 * What is written there lies behind struct state in the file. The place is given out again once the record is gone.
 */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONTENT_ALIGN (64ull << 10) /* no page is larger */

static uint64_t align_up(uint64_t n)
{
	return (n + CONTENT_ALIGN - 1) / CONTENT_ALIGN * CONTENT_ALIGN;
}

static struct flock on_byte(unsigned slot, short type)
{
	return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = SHARE_BYTE + slot, .l_len = 1};
}

/* Whether a description other than fd's holds that byte. */
static bool held_by_others(int fd, unsigned slot)
{
	struct flock lock = on_byte(slot, F_WRLCK);

	return fcntl(fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

struct instance *share_instance(struct state *s, const struct share *sh)
{
	return sh->mig.slot ? instance_of(s, &sh->mig) : NULL;
}

static void clear_share(struct state *s, struct share *sh)
{
	struct instance *in = share_instance(s, sh);

	atomic_store(&s->dirty, 1);
	s->gpus[sh->gpu].used[CHARGE_DATA] -= sh->bytes;
	crash_point();
	if (in)
		in->used[CHARGE_DATA] -= sh->bytes;
	crash_point();
	s->groups[sh->group].gpus[sh->gpu].used[CHARGE_DATA] -= sh->bytes;
	crash_point();
	atomic_store(&sh->taken, 0);
	crash_point();
	atomic_store(&s->dirty, 0);
}

/* The host has its memory back. */
static void punch(int fd, const struct share *sh)
{
	if (sh->length)
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)sh->offset, (off_t)sh->length);
}

void shares_reap(struct view *v)
{
	struct state *s = v->s;

	for (unsigned i = 0; i < s->share_limit && i < MAX_SHARES; i++)
		if (atomic_load(&s->shares[i].taken) && !held_by_others(v->fd, i)) {
			punch(v->fd, &s->shares[i]);
			clear_share(s, &s->shares[i]);
		}
}

bool shares_on(const struct state *s, unsigned gpu)
{
	for (unsigned i = 0; i < s->share_limit && i < MAX_SHARES; i++)
		if (atomic_load(&s->shares[i].taken) && s->shares[i].bytes && s->shares[i].gpu == gpu)
			return true;
	return false;
}

bool shares_of(const struct state *s, unsigned group)
{
	for (unsigned i = 0; i < s->share_limit && i < MAX_SHARES; i++)
		if (atomic_load(&s->shares[i].taken) && s->shares[i].group == group)
			return true;
	return false;
}

/* Of shared memory only its maker shows it in NVML's lists; it is in no sum of a client. */
static void holds(struct view *v, const struct share *sh, bool imported, bool more)
{
	struct client_gpu *mine = &v->s->clients[v->self].gpus[sh->gpu];
	uint64_t *shared = imported ? &mine->imported : &mine->shared;

	*shared = more ? *shared + sh->bytes : *shared - sh->bytes;
}

/* A free record. The new descriptor has locked its byte, and no other has. */
static int take_record(struct view *v, int fd)
{
	for (unsigned i = 0; i < MAX_SHARES; i++) {
		struct flock exclusive = on_byte(i, F_WRLCK), lock = on_byte(i, F_RDLCK);

		if (atomic_load(&v->s->shares[i].taken) || fcntl(fd, F_OFD_SETLK, &exclusive))
			continue;
		fcntl(fd, F_OFD_SETLK, &lock);
		if (i >= v->s->share_limit)
			v->s->share_limit = i + 1;
		return (int)i;
	}
	return -1;
}

/* A share that has a part of that range; NULL: none. */
static const struct share *share_at(const struct state *s, uint64_t offset, uint64_t length)
{
	for (unsigned i = 0; i < s->share_limit && i < MAX_SHARES; i++) {
		const struct share *sh = &s->shares[i];

		if (atomic_load(&sh->taken) && sh->offset < offset + length && offset < sh->offset + sh->length)
			return sh;
	}
	return NULL;
}

/* A place in the file for what is written there; 0: the file can't grow so far. */
static uint64_t find_place(struct view *v, uint64_t length)
{
	struct share room = {.length = length};
	const struct share *other;
	struct stat st;

	room.offset = align_up(sizeof(struct state));
	while ((other = share_at(v->s, room.offset, length)) != NULL)
		room.offset = align_up(other->offset + other->length);
	punch(v->fd, &room); /* a writer can outlive its record, for a moment */
	if (fstat(v->fd, &st))
		return 0;
	if ((uint64_t)st.st_size < room.offset + length && ftruncate(v->fd, (off_t)(room.offset + length)))
		return 0;
	return room.offset;
}

static void fill_share(struct view *v, struct share *sh, const struct share *what)
{
	struct state *s = v->s;
	struct client *cl = &s->clients[v->self];

	atomic_store(&s->dirty, 1);
	crash_point();
	cl->gpus[what->gpu].used[CHARGE_DATA] -= what->bytes;
	crash_point();
	sh->gpu = what->gpu;
	sh->bytes = what->bytes;
	sh->serial = ++s->next_share;
	sh->offset = what->offset;
	sh->length = what->length;
	sh->ended = 0;
	memcpy(sh->note, what->note, sizeof(sh->note));
	sh->group = cl->group;
	sh->mig = cl->mig.gpu == what->gpu ? cl->mig : (struct mig){0};
	atomic_store(&sh->taken, 1);
	crash_point();
	holds(v, sh, false, true);
	atomic_store(&s->dirty, 0);
}

int share_create(struct view *v, const struct share *what, int *fd, unsigned *slot)
{
	struct share with = *what;
	int record = -1, err;

	*fd = state_open_again();
	if (*fd < 0)
		return errno;
	err = state_lock(v);
	if (!err) {
		shares_reap(v);
		with.offset = find_place(v, with.length);
		if (with.offset)
			record = take_record(v, *fd);
		if (record >= 0)
			fill_share(v, &v->s->shares[record], &with);
		state_unlock(v);
	}
	if (record < 0) {
		close(*fd);
		return err ? err : EAGAIN;
	}
	*slot = (unsigned)record;
	return 0;
}

static bool same_file(int a, int b)
{
	struct stat x, y;

	return !fstat(a, &x) && !fstat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* The record of the byte that is locked by this descriptor: for it the byte is free. */
static int record_of(struct view *v, int fd)
{
	for (unsigned i = 0; i < v->s->share_limit && i < MAX_SHARES; i++)
		if (atomic_load(&v->s->shares[i].taken) && held_by_others(v->fd, i) && !held_by_others(fd, i))
			return (int)i;
	return -1;
}

int share_import(struct view *v, int fd, struct share *found, int *kept, unsigned *slot)
{
	int record, err;

	if (!same_file(fd, v->fd))
		return EINVAL;
	err = state_lock(v);
	if (err)
		return err;
	record = record_of(v, fd);
	*kept = record < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (*kept >= 0) {
		memcpy(found, &v->s->shares[record], sizeof(*found));
		holds(v, found, true, true);
		*slot = (unsigned)record;
	}
	state_unlock(v);
	return *kept < 0 ? EINVAL : 0;
}

int share_open(struct view *v, unsigned slot, uint64_t serial, struct share *found, int *kept)
{
	struct flock lock = on_byte(slot, F_RDLCK);
	const struct share *sh;
	int err;

	if (slot >= MAX_SHARES)
		return EINVAL;
	*kept = state_open_again();
	if (*kept < 0)
		return errno;
	err = state_lock(v);
	if (!err) {
		shares_reap(v);
		sh = &v->s->shares[slot];
		if (!atomic_load(&sh->taken) || sh->serial != serial || sh->ended)
			err = EINVAL;
		else if (fcntl(*kept, F_OFD_SETLK, &lock))
			err = errno;
		else
			memcpy(found, sh, sizeof(*found));
		state_unlock(v);
	}
	if (err)
		close(*kept);
	return err;
}

void share_end(struct view *v, int kept, unsigned slot, bool imported)
{
	if (state_lock(v))
		return;
	holds(v, &v->s->shares[slot], imported, false);
	close(kept);
	shares_reap(v);
	state_unlock(v);
}

void share_withdraw(struct view *v, int kept, unsigned slot)
{
	if (state_lock(v))
		return;
	v->s->shares[slot].ended = 1;
	state_unlock(v);
	share_end(v, kept, slot, false);
}

void share_close(struct view *v, int kept)
{
	if (state_lock(v))
		return;
	close(kept);
	shares_reap(v);
	state_unlock(v);
}
