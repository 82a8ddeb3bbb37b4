/* Opening, locking and repairing the state file. See state.h. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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

static int byte_lock(int fd, int command, short type, off_t byte)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

	while (fcntl(fd, command, &lock)) {
		if (errno != EINTR)
			return errno;
	}
	return 0;
}

/* The MIG device of that GPU that the client's bytes are charged to; NULL: they are charged only to the GPU. */
static struct instance *client_instance(struct state *s, const struct client *cl, unsigned gpu)
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
	err = byte_lock(v->fd, F_OFD_SETLKW, F_WRLCK, LOCK_BYTE);
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
	byte_lock(v->fd, F_OFD_SETLK, F_UNLCK, LOCK_BYTE);
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

static void reap_locked(struct view *v)
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
	reap_locked(v);
	state_unlock(v);
}

int gpu_used_now(struct view *v, unsigned gpu, const struct instance *in, uint64_t *bytes)
{
	int err = state_lock(v);

	if (err)
		return err;
	reap_locked(v);
	*bytes = in ? instance_used(in) : gpu_used(&v->s->gpus[gpu]);
	state_unlock(v);
	return 0;
}

uint64_t gpu_used(const struct gpu *c)
{
	return c->used[CHARGE_CONTEXT] + c->used[CHARGE_DATA];
}

uint64_t instance_used(const struct instance *in)
{
	return in->used[CHARGE_CONTEXT] + in->used[CHARGE_DATA];
}

uint64_t gpu_capacity(const struct gpu *c)
{
	return c->memory_bytes - c->reserved_bytes;
}

static void raise_to(uint64_t *peak, uint64_t value)
{
	if (value > *peak)
		*peak = value;
}

static bool would_peak(const struct gpu *c, const struct instance *in, const struct group_gpu *g, enum charge kind,
		       uint64_t bytes)
{
	if (in && instance_used(in) + bytes > in->peak_used)
		return true;
	return gpu_used(c) + bytes > c->peak_used || g->used[kind] + bytes > g->peak[kind] ||
	       g->used[CHARGE_CONTEXT] + g->used[CHARGE_DATA] + bytes > g->peak_total;
}

static bool fits(uint64_t capacity, uint64_t used, uint64_t bytes)
{
	return bytes <= capacity && used <= capacity - bytes;
}

/* Lock held, dirty set. */
static void add_bytes(struct state *s, struct client *cl, unsigned gpu, enum charge kind, uint64_t bytes)
{
	struct gpu *c = &s->gpus[gpu];
	struct group_gpu *g = &s->groups[cl->group].gpus[gpu];
	struct instance *in = client_instance(s, cl, gpu);

	crash_point();
	cl->gpus[gpu].used[kind] += bytes;
	crash_point();
	c->used[kind] += bytes;
	crash_point();
	if (in)
		in->used[kind] += bytes;
	crash_point();
	g->used[kind] += bytes;
	crash_point();
	raise_to(&c->peak_used, gpu_used(c));
	if (in)
		raise_to(&in->peak_used, instance_used(in));
	raise_to(&g->peak[kind], g->used[kind]);
	raise_to(&g->peak_total, g->used[CHARGE_CONTEXT] + g->used[CHARGE_DATA]);
}

static void remove_bytes(struct state *s, struct client *cl, unsigned gpu, enum charge kind, uint64_t bytes)
{
	cl->gpus[gpu].used[kind] -= bytes;
	crash_point();
	s->gpus[gpu].used[kind] -= bytes;
	crash_point();
	if (client_instance(s, cl, gpu))
		client_instance(s, cl, gpu)->used[kind] -= bytes;
	crash_point();
	s->groups[cl->group].gpus[gpu].used[kind] -= bytes;
}

static bool has_room(const struct gpu *c, const struct instance *in, uint64_t bytes)
{
	return fits(gpu_capacity(c), gpu_used(c), bytes) && (!in || fits(in->profile.memory_bytes, instance_used(in), bytes));
}

/* The lock; not while the own client has nothing of the GPUs: a call that was under way when it was checkpointed. */
static int lock_running(struct view *v)
{
	for (;;) {
		int err = state_lock(v);

		if (err || atomic_load(&v->s->clients[v->self].stage) != STAGE_CHECKPOINTED)
			return err;
		state_unlock(v);
		client_wait_running(v);
	}
}

int charge_take(struct view *v, unsigned gpu, enum charge kind, uint64_t bytes)
{
	struct state *s = v->s;
	struct gpu *c = &s->gpus[gpu];
	struct client *cl = &s->clients[v->self];
	struct instance *in;
	int err = lock_running(v);

	if (err)
		return err;
	in = client_instance(s, cl, gpu);
	if (!in && atomic_load(&c->mig_enabled)) { /* switched on since the caller looked */
		state_unlock(v);
		return ENODEV;
	}
	/* A dead client's bytes must neither refuse this one nor count towards a peak. */
	if (would_peak(c, in, &s->groups[cl->group].gpus[gpu], kind, bytes))
		reap_locked(v);
	if (!has_room(c, in, bytes)) {
		state_unlock(v);
		return ENOMEM;
	}
	atomic_store(&s->dirty, 1);
	add_bytes(s, cl, gpu, kind, bytes);
	atomic_store(&s->dirty, 0);
	state_unlock(v);
	return 0;
}

void charge_return(struct view *v, unsigned gpu, enum charge kind, uint64_t bytes)
{
	struct state *s = v->s;

	if (lock_running(v))
		return;
	atomic_store(&s->dirty, 1);
	remove_bytes(s, &s->clients[v->self], gpu, kind, bytes);
	atomic_store(&s->dirty, 0);
	state_unlock(v);
}

int client_grow(struct view *v, unsigned slot, unsigned gpu, uint64_t bytes)
{
	struct state *s = v->s;
	struct client *cl = &s->clients[slot];
	int err = state_lock(v);

	if (err)
		return err;
	reap_locked(v);
	if (!has_room(&s->gpus[gpu], client_instance(s, cl, gpu), bytes))
		err = ENOMEM;
	if (!err && !atomic_load(&cl->taken))
		err = ESRCH;
	if (!err) {
		atomic_store(&s->dirty, 1);
		add_bytes(s, cl, gpu, CHARGE_CONTEXT, bytes);
		atomic_store(&s->dirty, 0);
	}
	state_unlock(v);
	return err;
}

void client_wait_running(struct view *v)
{
	_Atomic uint32_t *stage = &v->s->clients[v->self].stage;
	uint32_t now;

	while ((now = atomic_load(stage)) != STAGE_RUNNING)
		syscall(SYS_futex, stage, FUTEX_WAIT, now, NULL, NULL, 0);
}

/* Lock held. */
static int enter_stage(struct client *cl, enum stage from, enum stage to)
{
	if (atomic_load(&cl->stage) != from)
		return EINVAL;
	atomic_store(&cl->stage, to);
	syscall(SYS_futex, &cl->stage, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	return 0;
}

int client_stage(struct view *v, unsigned slot, enum stage from, enum stage to)
{
	int err = state_lock(v);

	if (err)
		return err;
	err = enter_stage(&v->s->clients[slot], from, to);
	state_unlock(v);
	return err;
}

int client_save(struct view *v, unsigned slot)
{
	struct state *s = v->s;
	struct client *cl = &s->clients[slot];
	int err = state_lock(v);

	if (err)
		return err;
	err = enter_stage(cl, STAGE_LOCKED, STAGE_CHECKPOINTED);
	atomic_store(&s->dirty, 1);
	for (unsigned c = 0; !err && c < s->gpu_count; c++) {
		for (unsigned k = 0; k < CHARGE_KINDS; k++) {
			cl->gpus[c].saved[k] = cl->gpus[c].used[k];
			remove_bytes(s, cl, c, k, cl->gpus[c].saved[k]);
		}
	}
	atomic_store(&s->dirty, 0);
	state_unlock(v);
	return err;
}

int client_restore(struct view *v, unsigned slot)
{
	struct state *s = v->s;
	struct client *cl = &s->clients[slot];
	int err = state_lock(v);

	if (err)
		return err;
	reap_locked(v);
	for (unsigned c = 0; !err && c < s->gpu_count; c++) {
		const uint64_t *saved = cl->gpus[c].saved;

		if (!has_room(&s->gpus[c], client_instance(s, cl, c), saved[CHARGE_CONTEXT] + saved[CHARGE_DATA]))
			err = ENOMEM;
	}
	if (!err)
		err = enter_stage(cl, STAGE_CHECKPOINTED, STAGE_LOCKED);
	atomic_store(&s->dirty, 1);
	for (unsigned c = 0; !err && c < s->gpu_count; c++) {
		for (unsigned k = 0; k < CHARGE_KINDS; k++) {
			add_bytes(s, cl, c, k, cl->gpus[c].saved[k]);
			cl->gpus[c].saved[k] = 0;
		}
	}
	atomic_store(&s->dirty, 0);
	state_unlock(v);
	return err;
}

static uint64_t own_group_id(void)
{
	const char *text = getenv("SIMGPU_GROUP");
	uint64_t id = text ? strtoull(text, NULL, 0) : 0;
	struct stat st;

	if (!id && !stat("/proc/self/ns/mnt", &st))
		id = st.st_ino;
	return id ? id : 1;
}

/* The group of that id, else a free one, else the one without clients that was joined longest ago. Lock held. */
static unsigned find_group(struct state *s, uint64_t id)
{
	unsigned best = 0;
	uint64_t oldest = UINT64_MAX;

	for (unsigned i = 0; i < MAX_GROUPS; i++) {
		struct group *g = &s->groups[i];

		if (g->id == id)
			return i;
		if (!g->clients && g->last_join < oldest && !shares_of(s, i)) {
			oldest = g->last_join;
			best = i;
		}
	}
	if (oldest != UINT64_MAX) {
		memset(&s->groups[best], 0, sizeof(s->groups[best]));
		s->groups[best].id = id;
	}
	return best;
}

static uint64_t own_start_time(void)
{
	char text[1024];
	char *at;
	ssize_t n;
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	text[n] = 0;
	at = strrchr(text, ')'); /* the name may hold anything; field 3 follows it */
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at, NULL, 10) : 0;
}

static uint32_t own_graphics(void)
{
	const char *text = getenv("SIMGPU_GRAPHICS");

	if (!text)
		return GRAPHICS_NO;
	return strcmp(text, "only") ? GRAPHICS_ALSO : GRAPHICS_ONLY;
}

static void fill_client(struct state *s, struct client *cl, struct mig mig)
{
	struct stat st;

	memset(cl->gpus, 0, sizeof(cl->gpus[0]) * s->gpu_count);
	cl->pid = (uint32_t)getpid();
	atomic_store(&cl->host_pid, cl->pid);
	cl->pid_namespace = stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
	cl->start_time = own_start_time();
	cl->joined = ++s->next_client;
	cl->mig = mig;
	cl->graphics = own_graphics();
	atomic_store(&cl->stage, STAGE_RUNNING);
	cl->group = find_group(s, own_group_id());
	s->groups[cl->group].clients++;
	s->groups[cl->group].last_join = cl->joined;
}

static int take_slot(struct view *v, struct mig mig)
{
	struct state *s = v->s;

	for (unsigned i = 0; i < MAX_CLIENTS; i++) {
		struct client *cl = &s->clients[i];

		if (atomic_load(&cl->taken) || byte_lock(v->fd, F_OFD_SETLK, F_WRLCK, LIFE_BYTE + i))
			continue;
		engines_forget(v, i); /* the slot's last owner */
		atomic_store(&s->dirty, 1);
		crash_point();
		fill_client(s, cl, mig);
		crash_point();
		if (i >= s->client_limit)
			s->client_limit = i + 1;
		atomic_store(&cl->taken, 1);
		crash_point();
		atomic_store(&s->dirty, 0);
		v->self = (int)i;
		return 0;
	}
	return EAGAIN;
}

int client_join(struct view *v, struct mig mig)
{
	int err = state_lock(v);

	if (err)
		return err;
	reap_locked(v);
	err = mig.slot && !instance_of(v->s, &mig) ? ENODEV : take_slot(v, mig);
	state_unlock(v);
	return err;
}

bool fail_consume(struct view *v, const char *symbol, int *error)
{
	struct state *s = v->s;

	if (!atomic_load_explicit(&s->fail_count, memory_order_relaxed))
		return false;
	for (unsigned i = 0; i < MAX_FAILS; i++) {
		struct fail *f = &s->fails[i];

		if (atomic_load(&f->left) <= 0 || strncmp(f->symbol, symbol, sizeof(f->symbol)) != 0)
			continue;
		if (atomic_fetch_sub(&f->left, 1) > 0) {
			*error = f->error;
			return true;
		}
		atomic_fetch_add(&f->left, 1);
	}
	return false;
}
