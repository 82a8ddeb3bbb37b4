/* What a client has of the memory of a GPU: in its cell, and in the totals of the GPU, the MIG device and the group. */
#include "client.h"
#include "memory_limit.h"

#include <errno.h>
#include <string.h>

uint64_t gpu_used(const struct gpu *c)
{
	return c->used[CHARGE_CONTEXT] + c->used[CHARGE_DATA];
}

uint64_t gpu_init_bytes(const struct gpu *c)
{
	return atomic_load(&c->mig_enabled) ? 0 : c->init_bytes;
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

void charge_add(struct state *s, struct client *cl, unsigned gpu, enum charge kind, uint64_t bytes)
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

void charge_remove(struct state *s, struct client *cl, unsigned gpu, enum charge kind, uint64_t bytes)
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

bool charge_fits(const struct gpu *c, const struct instance *in, uint64_t bytes)
{
	return fits(gpu_capacity(c), gpu_used(c) + gpu_init_bytes(c), bytes) && (!in || fits(in->profile.memory_bytes, instance_used(in), bytes));
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
	uint64_t cgroups[MAX_CGROUP_DEPTH];
	int err;

	cgroups_own(s, cgroups);
	err = lock_running(v);
	if (err)
		return err;
	memcpy(cl->cgroups, cgroups, sizeof(cgroups));
	in = client_instance(s, cl, gpu);
	if (!in && atomic_load(&c->mig_enabled)) { /* switched on since the caller looked */
		state_unlock(v);
		return ENODEV;
	}
	/* A dead client's bytes must neither refuse this one nor count towards a peak. */
	if (would_peak(c, in, &s->groups[cl->group].gpus[gpu], kind, bytes) || !limits_fit(s, cl, gpu, bytes))
		clients_reap(v);
	if (!charge_fits(c, in, bytes) || !limits_fit(s, cl, gpu, bytes)) {
		state_unlock(v);
		return ENOMEM;
	}
	atomic_store(&s->dirty, 1);
	charge_add(s, cl, gpu, kind, bytes);
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
	charge_remove(s, &s->clients[v->self], gpu, kind, bytes);
	atomic_store(&s->dirty, 0);
	state_unlock(v);
}

int charge_take_unlisted(struct view *v, unsigned gpu, uint64_t bytes, uint64_t unlisted)
{
	int err = charge_take(v, gpu, CHARGE_CONTEXT, bytes);

	if (!err)
		v->s->clients[v->self].gpus[gpu].unlisted += unlisted;
	return err;
}

void charge_return_unlisted(struct view *v, unsigned gpu, uint64_t bytes, uint64_t unlisted)
{
	v->s->clients[v->self].gpus[gpu].unlisted -= unlisted;
	charge_return(v, gpu, CHARGE_CONTEXT, bytes);
}

int client_grow(struct view *v, unsigned slot, unsigned gpu, uint64_t bytes)
{
	struct state *s = v->s;
	struct client *cl = &s->clients[slot];
	int err = state_lock(v);

	if (err)
		return err;
	clients_reap(v);
	if (!charge_fits(&s->gpus[gpu], client_instance(s, cl, gpu), bytes) || !limits_fit(s, cl, gpu, bytes))
		err = ENOMEM;
	if (!err && !atomic_load(&cl->taken))
		err = ESRCH;
	if (!err) {
		atomic_store(&s->dirty, 1);
		charge_add(s, cl, gpu, CHARGE_CONTEXT, bytes);
		atomic_store(&s->dirty, 0);
	}
	state_unlock(v);
	return err;
}
