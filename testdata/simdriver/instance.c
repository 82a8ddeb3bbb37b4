/* MIG devices in the state file: finding them, and what their place on the GPU fixes. In all three programs. */
#include "state.h"

#include <stdio.h>
#include <string.h>

#define FIRST_CAP_MINOR 3u  /* 1 and 2 are the config and monitor capabilities */
#define CAPS_OF_INSTANCE 9u /* the GPU instance and up to eight compute instances */

struct instance *instance_at(struct gpu *c, unsigned slot)
{
	struct instance *in;

	if (!slot || slot > MAX_INSTANCES)
		return NULL;
	in = &c->instances[slot - 1];
	return atomic_load(&in->serial) ? in : NULL;
}

struct instance *instance_of(struct state *s, const struct mig *mig)
{
	struct instance *in = mig->gpu < MAX_GPUS ? instance_at(&s->gpus[mig->gpu], mig->slot) : NULL;

	return in && atomic_load(&in->serial) == mig->serial ? in : NULL;
}

unsigned gpu_instances_in_order(const struct gpu *c, unsigned slots[MAX_INSTANCES])
{
	unsigned n = 0;

	for (unsigned id = 0; id < CAP_INSTANCE_IDS; id++) {
		for (unsigned i = 0; i < MAX_INSTANCES; i++) {
			if (atomic_load(&c->instances[i].serial) && c->instances[i].id == id)
				slots[n++] = i + 1;
		}
	}
	return n;
}

unsigned instances_in_order(const struct gpu *c, unsigned slots[MAX_INSTANCES])
{
	unsigned n = gpu_instances_in_order(c, slots), kept = 0;

	for (unsigned i = 0; i < n; i++) {
		if (atomic_load(&c->instances[slots[i] - 1].compute))
			slots[kept++] = slots[i];
	}
	return kept;
}

/* The GPU's own, marked as a derived one (version 5), with the id + 1 of the two instances mixed in. */
void instance_uuid(const struct gpu *c, const struct instance *in, uint8_t uuid[16])
{
	memcpy(uuid, c->uuid, 16);
	uuid[6] = (uint8_t)(0x50 | (uuid[6] & 0x0f));
	uuid[10] ^= (uint8_t)(in->id + 1);
	uuid[11] ^= 1;
	if (c->mig_uuids != MIG_UUIDS_CREATION)
		return;
	for (unsigned i = 0; i < 4; i++)
		uuid[i] ^= (uint8_t)(atomic_load(&in->serial) >> 8 * (3 - i));
}

/* As a real driver numbers them. */
unsigned cap_minor(const struct gpu *c, unsigned id, unsigned which)
{
	return FIRST_CAP_MINOR + (c->minor * CAP_INSTANCE_IDS + id) * CAPS_OF_INSTANCE + which;
}

void instance_name(const struct gpu *c, const struct instance *in, char text[DEVICE_NAME])
{
	if (in)
		snprintf(text, DEVICE_NAME, "%s MIG %s", c->name, in->profile.name);
	else
		snprintf(text, DEVICE_NAME, "%s", c->name);
}
