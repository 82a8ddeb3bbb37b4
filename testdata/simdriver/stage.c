/* The stages of a checkpoint: a client that is locked makes no calls; one that is checkpointed has nothing of the GPUs. */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

void client_wait_running(struct view *v)
{
	_Atomic uint32_t *stage = &v->s->clients[v->self].stage;
	uint32_t now;

	while ((now = atomic_load(stage)) != STAGE_RUNNING)
		syscall(SYS_futex, stage, FUTEX_WAIT, now, NULL, NULL, 0);
}

/* Lock held. All of them or none. */
static int enter_stage(struct state *s, const unsigned *slots, unsigned count, enum stage from, enum stage to)
{
	for (unsigned i = 0; i < count; i++) {
		if (atomic_load(&s->clients[slots[i]].stage) != from)
			return EINVAL;
	}
	for (unsigned i = 0; i < count; i++) {
		_Atomic uint32_t *stage = &s->clients[slots[i]].stage;

		atomic_store(stage, to);
		syscall(SYS_futex, stage, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	}
	return 0;
}

int clients_stage(struct view *v, const unsigned *slots, unsigned count, enum stage from, enum stage to)
{
	int err = state_lock(v);

	if (err)
		return err;
	err = enter_stage(v->s, slots, count, from, to);
	state_unlock(v);
	return err;
}

static void save(struct state *s, struct client *cl)
{
	for (unsigned c = 0; c < s->gpu_count; c++) {
		for (unsigned k = 0; k < CHARGE_KINDS; k++) {
			cl->gpus[c].saved[k] = cl->gpus[c].used[k];
			charge_remove(s, cl, c, k, cl->gpus[c].saved[k]);
		}
	}
}

int clients_save(struct view *v, const unsigned *slots, unsigned count)
{
	struct state *s = v->s;
	int err = state_lock(v);

	if (err)
		return err;
	err = enter_stage(s, slots, count, STAGE_LOCKED, STAGE_CHECKPOINTED);
	atomic_store(&s->dirty, 1);
	for (unsigned i = 0; !err && i < count; i++)
		save(s, &s->clients[slots[i]]);
	atomic_store(&s->dirty, 0);
	state_unlock(v);
	return err;
}

static bool restore_fits(struct state *s, const unsigned *slots, unsigned count, unsigned gpu)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < count; i++) {
		const uint64_t *saved = s->clients[slots[i]].gpus[gpu].saved;

		bytes += saved[CHARGE_CONTEXT] + saved[CHARGE_DATA];
	}
	return charge_fits(&s->gpus[gpu], client_instance(s, &s->clients[slots[0]], gpu), bytes);
}

static void restore(struct state *s, struct client *cl)
{
	for (unsigned c = 0; c < s->gpu_count; c++) {
		for (unsigned k = 0; k < CHARGE_KINDS; k++) {
			charge_add(s, cl, c, k, cl->gpus[c].saved[k]);
			cl->gpus[c].saved[k] = 0;
		}
	}
}

int clients_restore(struct view *v, const unsigned *slots, unsigned count)
{
	struct state *s = v->s;
	int err = state_lock(v);

	if (err)
		return err;
	clients_reap(v);
	for (unsigned c = 0; !err && c < s->gpu_count; c++) {
		if (!restore_fits(s, slots, count, c))
			err = ENOMEM;
	}
	if (!err)
		err = enter_stage(s, slots, count, STAGE_CHECKPOINTED, STAGE_LOCKED);
	atomic_store(&s->dirty, 1);
	for (unsigned i = 0; !err && i < count; i++)
		restore(s, &s->clients[slots[i]]);
	atomic_store(&s->dirty, 0);
	state_unlock(v);
	return err;
}
