/* Opening, locking and repairing the state file. See state.h. */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* OFD locks don't exclude threads that share a descriptor; this does. */
static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;

/* $SIMGPU_CRASH=N: die by SIGKILL at the Nth crash point that this process reaches. For the tests of repair(). */
static long crash_countdown;

void crash_point(void)
{
	if (crash_countdown > 0 && --crash_countdown == 0)
		raise(SIGKILL);
}

static const char *default_path(void)
{
	const char *path = getenv("SIMGPU_STATE");

	return path && *path ? path : STATE_DEFAULT_PATH;
}

void *state_map(const char *path, uint64_t offset, uint64_t bytes)
{
	int fd = open(path && *path ? path : default_path(), O_RDWR | O_CLOEXEC);
	void *at = MAP_FAILED;
	struct stat st;

	if (fd < 0)
		return at;
	if (fstat(fd, &st) || (uint64_t)st.st_size < offset + bytes)
		errno = EPROTO;
	else
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
	close(fd);
	return at;
}

static int map_state(struct view *v, const char *path)
{
	v->s = state_map(path, 0, sizeof(struct state));
	if (v->s == MAP_FAILED)
		return errno;
	if (v->s->magic == STATE_MAGIC && v->s->layout == STATE_LAYOUT && v->s->size == sizeof(struct state) &&
	    v->s->gpu_count <= MAX_GPUS)
		return 0;
	munmap(v->s, sizeof(struct state));
	return EPROTO;
}

int state_open_again(void)
{
	return open(default_path(), O_RDWR | O_CLOEXEC);
}

int state_open(struct view *v, const char *path)
{
	int err;
	const char *crash = getenv("SIMGPU_CRASH");

	v->self = -1;
	v->s = NULL;
	if (crash && !crash_countdown)
		crash_countdown = strtol(crash, NULL, 10);
	v->fd = open(path && *path ? path : default_path(), O_RDWR | O_CLOEXEC);
	if (v->fd < 0)
		return errno;
	err = map_state(v, path);
	if (err) {
		close(v->fd);
		v->fd = -1;
		v->s = NULL;
	}
	return err;
}

void state_close(struct view *v)
{
	if (v->s)
		munmap(v->s, sizeof(struct state));
	if (v->fd >= 0)
		close(v->fd);
	v->s = NULL;
	v->fd = -1;
}

int state_byte_lock(int fd, int command, short type, off_t byte)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

	while (fcntl(fd, command, &lock)) {
		if (errno != EINTR)
			return errno;
	}
	return 0;
}

/* The MIG device of that GPU that the client's bytes are charged to; NULL: they are charged only to the GPU. */
struct instance *client_instance(struct state *s, const struct client *cl, unsigned gpu)
{
	return cl->mig.gpu == gpu ? instance_of(s, &cl->mig) : NULL;
}

static void repair_shares(struct state *s)
{
	for (unsigned i = 0; i < s->share_limit && i < MAX_SHARES; i++) {
		struct share *sh = &s->shares[i];
		struct instance *in = share_instance(s, sh);

		if (!atomic_load(&sh->taken))
			continue;
		if (in)
			in->used[CHARGE_DATA] += sh->bytes;
		s->gpus[sh->gpu].used[CHARGE_DATA] += sh->bytes;
		s->groups[sh->group].gpus[sh->gpu].used[CHARGE_DATA] += sh->bytes;
	}
}

/* The last holder was killed: compute all totals again from the clients' cells and the shares. */
static void repair(struct state *s)
{
	for (unsigned c = 0; c < MAX_GPUS; c++) {
		memset(s->gpus[c].used, 0, sizeof(s->gpus[c].used));
		for (unsigned i = 0; i < MAX_INSTANCES; i++)
			memset(s->gpus[c].instances[i].used, 0, sizeof(s->gpus[c].instances[i].used));
	}
	for (unsigned g = 0; g < MAX_GROUPS; g++) {
		s->groups[g].clients = 0;
		for (unsigned c = 0; c < MAX_GPUS; c++)
			memset(s->groups[g].gpus[c].used, 0, sizeof(s->groups[g].gpus[c].used));
	}
	for (unsigned i = 0; i < s->client_limit && i < MAX_CLIENTS; i++) {
		struct client *cl = &s->clients[i];
		struct group *g = &s->groups[cl->group % MAX_GROUPS];

		if (!atomic_load(&cl->taken))
			continue;
		g->clients++;
		for (unsigned c = 0; c < MAX_GPUS; c++) {
			struct instance *in = client_instance(s, cl, c);

			for (unsigned k = 0; k < CHARGE_KINDS; k++) {
				if (in)
					in->used[k] += cl->gpus[c].used[k];
				s->gpus[c].used[k] += cl->gpus[c].used[k];
				g->gpus[c].used[k] += cl->gpus[c].used[k];
			}
		}
	}
	repair_shares(s);
}

int state_lock(struct view *v)
{
	int err;

	pthread_mutex_lock(&threads);
	err = state_byte_lock(v->fd, F_OFD_SETLKW, F_WRLCK, LOCK_BYTE);
	if (err) {
		pthread_mutex_unlock(&threads);
		return err;
	}
	if (atomic_load(&v->s->dirty)) {
		repair(v->s);
		atomic_store(&v->s->dirty, 0);
	}
	return 0;
}

void state_unlock(struct view *v)
{
	state_byte_lock(v->fd, F_OFD_SETLK, F_UNLCK, LOCK_BYTE);
	pthread_mutex_unlock(&threads);
}

void state_lock_before_fork(void)
{
	pthread_mutex_lock(&threads);
}

void state_unlock_after_fork(void)
{
	pthread_mutex_unlock(&threads);
}

bool client_lives(const struct view *v, unsigned slot)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LIFE_BYTE + slot, .l_len = 1};

	if ((int)slot == v->self)
		return true;
	return fcntl(v->fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

/* Lock held, dirty set. */
static void clear_client(struct state *s, struct client *cl)
{
	struct group *g = &s->groups[cl->group % MAX_GROUPS];

	for (unsigned c = 0; c < s->gpu_count; c++) {
		struct instance *in = client_instance(s, cl, c);

		for (unsigned k = 0; k < CHARGE_KINDS; k++) {
			uint64_t bytes = cl->gpus[c].used[k];

			if (in)
				in->used[k] -= bytes;
			crash_point();
			s->gpus[c].used[k] -= bytes;
			crash_point();
			g->gpus[c].used[k] -= bytes;
		}
	}
	g->clients--;
	crash_point();
	atomic_store(&cl->taken, 0);
	crash_point();
}

void clients_reap(struct view *v)
{
	struct state *s = v->s;

	for (unsigned i = 0; i < s->client_limit && i < MAX_CLIENTS; i++) {
		if (!atomic_load(&s->clients[i].taken) || client_lives(v, i))
			continue;
		engines_forget(v, i);
		atomic_store(&s->dirty, 1);
		clear_client(s, &s->clients[i]);
		atomic_store(&s->dirty, 0);
	}
	shares_reap(v);
}

void state_reap(struct view *v)
{
	if (state_lock(v))
		return;
	clients_reap(v);
	state_unlock(v);
}

int gpu_used_now(struct view *v, unsigned gpu, const struct instance *in, uint64_t *bytes)
{
	int err = state_lock(v);

	if (err)
		return err;
	clients_reap(v);
	*bytes = in ? instance_used(in) : gpu_used(&v->s->gpus[gpu]);
	for (unsigned i = 0; !in && i < v->s->client_limit && i < MAX_CLIENTS; i++) {
		if (atomic_load(&v->s->clients[i].taken)) {
			*bytes += gpu_init_bytes(&v->s->gpus[gpu]);
			break;
		}
	}
	state_unlock(v);
	return 0;
}
