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
			charge_remove(s, cl, c, k, cl->gpus[c].saved[k]);
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
	clients_reap(v);
	for (unsigned c = 0; !err && c < s->gpu_count; c++) {
		const uint64_t *saved = cl->gpus[c].saved;

		if (!charge_fits(&s->gpus[c], client_instance(s, cl, c), saved[CHARGE_CONTEXT] + saved[CHARGE_DATA]))
			err = ENOMEM;
	}
	if (!err)
		err = enter_stage(cl, STAGE_CHECKPOINTED, STAGE_LOCKED);
	atomic_store(&s->dirty, 1);
	for (unsigned c = 0; !err && c < s->gpu_count; c++) {
		for (unsigned k = 0; k < CHARGE_KINDS; k++) {
			charge_add(s, cl, c, k, cl->gpus[c].saved[k]);
			cl->gpus[c].saved[k] = 0;
		}
	}
	atomic_store(&s->dirty, 0);
	state_unlock(v);
	return err;
}
