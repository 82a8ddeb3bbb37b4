/* Places of MIG devices on a GPU: what is free, and putting one there. In libnvidia-ml.so.1 and simctl. The state lock is held. */
#include "state.h"

#include <string.h>

/* Instance ids are those of a full binary tree over the memory slices: 0 all of them, 1 and 2 the halves, 3 to 6, 7 to 14. */
static unsigned instance_id(const struct mig_profile *p, unsigned start)
{
	return MIG_MEMORY_SLICES / p->size - 1 + start / p->size;
}

unsigned mig_slices(unsigned start, unsigned size)
{
	return ((1u << size) - 1) << start;
}

unsigned mig_taken(const struct gpu *c)
{
	unsigned taken = 0;

	for (unsigned i = 0; i < MAX_INSTANCES; i++) {
		if (atomic_load(&c->instances[i].serial))
			taken |= mig_slices(c->instances[i].start, c->instances[i].profile.size);
	}
	return taken;
}

unsigned mig_count(const struct gpu *c, const char *profile)
{
	unsigned n = 0;

	for (unsigned i = 0; i < MAX_INSTANCES; i++)
		n += atomic_load(&c->instances[i].serial) && !strcmp(c->instances[i].profile.name, profile);
	return n;
}

bool mig_may_start(const struct mig_profile *p, unsigned start, unsigned taken)
{
	return start < MIG_MEMORY_SLICES && p->starts & 1u << start && !(taken & mig_slices(start, p->size));
}

bool mig_memory_fits(const struct gpu *c)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < MAX_INSTANCES; i++) {
		if (atomic_load(&c->instances[i].serial))
			sum += c->instances[i].profile.memory_bytes;
	}
	return sum <= gpu_capacity(c);
}

/* The GPU may be smaller than a real one of its kind, by --gpu …:memory_mib. */
enum mig_put mig_put(struct gpu *c, const struct mig_profile *p, unsigned start, bool compute, unsigned *slot)
{
	struct instance *in = NULL;

	for (*slot = 1; *slot <= MAX_INSTANCES && !in; ++*slot) {
		if (!atomic_load(&c->instances[*slot - 1].serial))
			in = &c->instances[*slot - 1];
	}
	if (!in)
		return MIG_FULL;
	--*slot;
	memset(in, 0, sizeof(*in));
	in->id = instance_id(p, start);
	in->start = start;
	in->profile = *p;
	atomic_store(&in->compute, compute);
	if (in->profile.memory_bytes > gpu_capacity(c))
		in->profile.memory_bytes = gpu_capacity(c);
	crash_point();
	atomic_store(&in->serial, ++c->mig_serial);
	crash_point();
	if (mig_memory_fits(c))
		return MIG_PUT;
	atomic_store(&in->serial, 0);
	return MIG_NO_MEMORY;
}

const struct client *mig_user(const struct state *s, unsigned gpu, unsigned slot)
{
	for (unsigned i = 0; i < s->client_limit && i < MAX_CLIENTS; i++) {
		const struct client *cl = &s->clients[i];
		bool has_mig = cl->mig.slot && cl->mig.gpu == gpu;

		if (!atomic_load(&cl->taken))
			continue;
		if (slot ? has_mig && cl->mig.slot == slot
			 : has_mig || cl->gpus[gpu].used[CHARGE_CONTEXT] || cl->gpus[gpu].used[CHARGE_DATA])
			return cl;
	}
	return NULL;
}
