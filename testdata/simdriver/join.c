/* How a process becomes a client: a slot, a group, and what is known of it. */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

		if (atomic_load(&cl->taken) || state_byte_lock(v->fd, F_OFD_SETLK, F_WRLCK, LIFE_BYTE + i))
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
	clients_reap(v);
	err = mig.slot && !instance_of(v->s, &mig) ? ENODEV : take_slot(v, mig);
	state_unlock(v);
	return err;
}
