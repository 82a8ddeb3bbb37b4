/* simctl mig: MIG mode, and MIG devices made, destroyed and listed. */
#define _GNU_SOURCE
#include "simctl.h"

#include <stdlib.h>
#include <string.h>

#define MIB (1ull << 20)

/* The memory slices of all placements that would still be open. */
static unsigned left_open(const struct gpu *c, unsigned taken)
{
	unsigned count, open = 0;
	const struct mig_profile *p = mig_profiles(c, &count);

	for (unsigned i = 0; i < count; i++) {
		for (unsigned start = 0; start < MIG_MEMORY_SLICES; start++)
			open += mig_may_start(&p[i], start, taken) ? p[i].size : 0;
	}
	return open;
}

/* Where it takes least from what could come after it; MIG_MEMORY_SLICES: nowhere. */
static unsigned best_start(const struct gpu *c, const struct mig_profile *p)
{
	unsigned taken = mig_taken(c), best = MIG_MEMORY_SLICES, most = 0;

	for (unsigned start = 0; start < MIG_MEMORY_SLICES; start++) {
		unsigned open;

		if (!mig_may_start(p, start, taken))
			continue;
		open = left_open(c, taken | mig_slices(start, p->size)) + 1;
		if (open > most) {
			most = open;
			best = start;
		}
	}
	return best;
}

static const struct mig_profile *find_profile(const struct gpu *c, const char *name)
{
	unsigned count;
	const struct mig_profile *p = mig_profiles(c, &count);

	for (unsigned i = 0; i < count; i++) {
		if (!strcmp(p[i].name, name))
			return &p[i];
	}
	fprintf(stderr, "simctl: MIG profiles of %s:", c->profile);
	for (unsigned i = 0; i < count; i++)
		fprintf(stderr, " %s", p[i].name);
	fputc('\n', stderr);
	complain("unknown MIG profile: %s", name);
	return NULL;
}

static bool put_instance(struct gpu *c, const struct mig_profile *p, unsigned start)
{
	unsigned slot;

	switch (mig_put(c, p, start, true, &slot)) {
	case MIG_FULL:
		return complain("%s: more than %u MIG devices", p->name, MAX_INSTANCES);
	case MIG_NO_MEMORY:
		return complain("%s: the GPU has less than its %llu MiB left", p->name, (unsigned long long)(p->memory_bytes / MIB));
	default:
		return true;
	}
}

static bool create_named(struct gpu *c, const char *name, long start)
{
	const struct mig_profile *p = find_profile(c, name);

	if (!p)
		return false;
	if (mig_count(c, name) >= p->most)
		return complain("%s: a GPU has %u of it at most", name, p->most);
	if (start < 0)
		start = best_start(c, p);
	if (!mig_may_start(p, (unsigned)start, mig_taken(c)))
		return complain("%s: no room left at a place where it may begin (simctl mig GPU profiles lists them)", name);
	return put_instance(c, p, (unsigned)start);
}

/* PROFILE[:START] */
static bool create(struct gpu *c, const char *text)
{
	char name[64];
	const char *colon = strchr(text, ':');
	size_t length = colon ? (size_t)(colon - text) : strlen(text);
	char *end = NULL;
	long start = colon ? strtol(colon + 1, &end, 10) : -1;

	if (length >= sizeof(name) || (colon && (end == colon + 1 || *end || start < 0 || start >= (long)MIG_MEMORY_SLICES)))
		return complain("want PROFILE or PROFILE:START, START from 0 to %u: %s", MIG_MEMORY_SLICES - 1, text);
	memcpy(name, text, length);
	name[length] = 0;
	return create_named(c, name, start);
}

bool mig_key(struct gpu *c, const char *value)
{
	if (!c->max_mig)
		return complain("%s has no MIG", c->profile);
	atomic_store(&c->mig_enabled, 1);
	return !strcmp(value, "on") || create(c, value);
}

static bool unused(const struct state *s, unsigned gpu, unsigned slot)
{
	const struct client *cl = mig_user(s, gpu, slot);

	if (!cl && shares_on(s, gpu))
		return complain("memory of GPU %u is held by a descriptor", gpu);
	return !cl || complain("GPU %u is in use by process %u", gpu, cl->pid);
}

static bool set_mode(struct state *s, unsigned gpu, bool on)
{
	struct gpu *c = &s->gpus[gpu];

	if (!c->max_mig)
		return complain("GPU %u: %s has no MIG", gpu, c->profile);
	if (atomic_load(&c->mig_enabled) == on)
		return true;
	if (!unused(s, gpu, 0))
		return false;
	for (unsigned i = 0; i < MAX_INSTANCES; i++)
		atomic_store(&c->instances[i].serial, 0);
	atomic_store(&c->mig_enabled, on);
	return true;
}

/* All of them or none. */
static bool create_all(struct gpu *c, const char *const *texts, unsigned count)
{
	uint32_t before = c->mig_serial;

	for (unsigned k = 0; k < count; k++) {
		if (create(c, texts[k]))
			continue;
		for (unsigned i = 0; i < MAX_INSTANCES; i++) {
			if (atomic_load(&c->instances[i].serial) > before)
				atomic_store(&c->instances[i].serial, 0);
		}
		return false;
	}
	return true;
}

/* The slot of INDEX, as simctl and NVML on the host count, or of a UUID; 0: none. */
static unsigned find_slot(const struct gpu *c, const char *text)
{
	unsigned slots[MAX_INSTANCES];
	unsigned n = instances_in_order(c, slots);
	char *end, uuid[UUID_TEXT];
	unsigned long index = strtoul(text, &end, 10);

	if (end != text && !*end)
		return index < n ? slots[index] : 0;
	for (unsigned i = 0; i < n; i++) {
		mig_uuid_format(c, &c->instances[slots[i] - 1], uuid);
		if (!strcasecmp(uuid, text))
			return slots[i];
	}
	return 0;
}

bool find_instance(const struct state *s, const char *text, unsigned *gpu, unsigned *slot)
{
	char *end;
	unsigned long index = strtoul(text, &end, 10);

	if (end != text && *end == ':') {
		*gpu = (unsigned)index;
		*slot = index < s->gpu_count ? find_slot(&s->gpus[index], end + 1) : 0;
		return *slot != 0;
	}
	for (*gpu = 0; !strncasecmp(text, "MIG-", 4) && *gpu < s->gpu_count; ++*gpu) {
		*slot = find_slot(&s->gpus[*gpu], text);
		if (*slot)
			return true;
	}
	return false;
}

static bool destroy(struct state *s, unsigned gpu, const char *text)
{
	struct gpu *c = &s->gpus[gpu];
	bool all = !strcmp(text, "all");
	unsigned slot = all ? 0 : find_slot(c, text);

	if (!all && !slot)
		return complain("GPU %u: no such MIG device: %s", gpu, text);
	if (!unused(s, gpu, slot))
		return false;
	for (unsigned i = 0; i < MAX_INSTANCES; i++) {
		if (all || i + 1 == slot)
			atomic_store(&c->instances[i].serial, 0);
	}
	return true;
}

static bool list_instances(const struct gpu *c)
{
	unsigned slots[MAX_INSTANCES];
	unsigned n = instances_in_order(c, slots);
	char uuid[UUID_TEXT];

	printf("%-5s %-40s %-12s %4s %4s %-10s %10s\n", "INDEX", "UUID", "PROFILE", "GI", "CI", "START:SIZE", "MEMORY MiB");
	for (unsigned i = 0; i < n; i++) {
		const struct instance *in = &c->instances[slots[i] - 1];

		mig_uuid_format(c, in, uuid);
		printf("%-5u %-40s %-12s %4u %4u %u:%-8u %10llu\n", i, uuid, in->profile.name, in->id, 0u, in->start,
		       in->profile.size, (unsigned long long)(in->profile.memory_bytes / MIB));
	}
	return true;
}

static bool list_mig_profiles(const struct gpu *c)
{
	unsigned count, taken = mig_taken(c);
	const struct mig_profile *p = mig_profiles(c, &count);

	printf("%-12s %10s %4s %7s %s\n", "PROFILE", "MEMORY MiB", "SM", "MADE/OF", "STARTS (FREE)");
	for (unsigned i = 0; i < count; i++) {
		printf("%-12s %10llu %4u %5u/%u", p[i].name, (unsigned long long)(p[i].memory_bytes / MIB), p[i].sm_count,
		       mig_count(c, p[i].name), p[i].most);
		for (unsigned start = 0; start < MIG_MEMORY_SLICES; start++) {
			if (p[i].starts & 1u << start)
				printf(mig_may_start(&p[i], start, taken) ? " %u" : " (%u)", start);
		}
		putchar('\n');
	}
	return true;
}

static int usage(void)
{
	complain("mig GPU enable | disable | create PROFILE[:START] … | destroy UUID|INDEX|all | list | profiles");
	return 2;
}

int command_mig(struct view *v, unsigned gpu, const char *const *words, unsigned count)
{
	struct gpu *c = &v->s->gpus[gpu];
	const char *what = words[0];
	bool ok;

	state_reap(v);
	if (state_lock(v))
		return !complain("lock the state: failed");
	if (count == 1 && !strcmp(what, "list"))
		ok = list_instances(c);
	else if (count == 1 && !strcmp(what, "profiles"))
		ok = c->max_mig ? list_mig_profiles(c) : complain("GPU %u: %s has no MIG", gpu, c->profile);
	else if (count == 1 && (!strcmp(what, "enable") || !strcmp(what, "disable")))
		ok = set_mode(v->s, gpu, *what == 'e');
	else if (count > 1 && !strcmp(what, "create"))
		ok = atomic_load(&c->mig_enabled) ? create_all(c, words + 1, count - 1)
						  : complain("GPU %u: MIG is off; simctl mig %u enable", gpu, gpu);
	else if (count == 2 && !strcmp(what, "destroy"))
		ok = destroy(v->s, gpu, words[1]);
	else
		ok = false, what = NULL;
	state_unlock(v);
	return what ? !ok : usage();
}
