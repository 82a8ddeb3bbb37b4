#include "table.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paths.h"

static _Atomic(const struct vgpu_table *) tables[VGPU_MAX_DEVICES];

bool table_path(char path[TABLE_PATH_BYTES], int cell, const char *name, uint64_t id)
{
	const char *dir = path_or(VGPU_TURNS_DIR, "VGPU_TURNS_PATH");
	int length = name ? snprintf(path, TABLE_PATH_BYTES, "%s/%d/%s", dir, cell, name)
	                  : snprintf(path, TABLE_PATH_BYTES, "%s/%d/%016llx", dir, cell, (unsigned long long)id);

	return length > 0 && length < TABLE_PATH_BYTES;
}

/* NULL: there is no such file of this size. */
static void *map(const char *path, int access, size_t size)
{
	int fd = open(path, access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	void *at = MAP_FAILED;

	if (fd < 0)
		return NULL;
	if (lseek(fd, 0, SEEK_END) == (off_t)size)
		at = mmap(NULL, size, access == O_RDWR ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	return at != MAP_FAILED ? at : NULL;
}

/* CLOCK_MONOTONIC is one for all containers unless this one has a time namespace: then no peer's
 * times mean anything. */
static bool same_clock(void)
{
	char text[128];
	long long seconds = 0, ns = 0;
	int fd = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return true; /* a kernel without them */
	ssize_t length = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[length > 0 ? length : 0] = 0;
	return sscanf(text, "monotonic %lld %lld", &seconds, &ns) != 2 || (!seconds && !ns);
}

const _Atomic uint32_t *table_sequence(int cell)
{
	/* Acquire: pairs with the release below. */
	const struct vgpu_table *table = atomic_load_explicit(&tables[cell], memory_order_acquire), *none = NULL;
	char path[TABLE_PATH_BYTES];

	if (__builtin_expect(table != NULL, 1))
		return &table->sequence;
	if (!table_path(path, cell, "table", 0))
		return NULL;
	const struct vgpu_table *fresh = map(path, O_RDONLY, sizeof(*fresh));
	if (!fresh)
		return NULL;
	if (memcmp(fresh->magic, VGPU_TABLE_MAGIC, sizeof(fresh->magic)) || !same_clock() ||
	    !atomic_compare_exchange_strong_explicit(&tables[cell], &none, fresh, memory_order_release, memory_order_acquire)) {
		munmap((void *)fresh, sizeof(*fresh));
		return none ? &none->sequence : NULL;
	}
	return &fresh->sequence;
}

static bool has_share(const struct vgpu_share *s)
{
	return s->core_percent > 0;
}

/* What the shares leave, for each container without one. */
static double remainder_of(const struct vgpu_table *t, uint32_t count)
{
	uint32_t sum = 0, without = 0;

	for (uint32_t i = 0; i < count; i++) {
		sum += t->shares[i].core_percent;
		without += t->shares[i].id && !has_share(&t->shares[i]);
	}
	double left = sum < 100 && without ? (100 - sum) / (double)without : 0;
	double floor = t->floor_percent >= 1 && t->floor_percent <= 100 ? t->floor_percent : 1;
	return (left > floor ? left : floor) / 100;
}

static struct shares parse(const struct vgpu_table *t, uint64_t id)
{
	struct shares all = { .valid = false };
	uint32_t count = t->count < VGPU_TABLE_SHARES ? t->count : VGPU_TABLE_SHARES;
	double remainder = remainder_of(t, count);
	bool low = false, high = false;

	for (uint32_t i = 0; i < count; i++) {
		const struct vgpu_share *s = &t->shares[i];
		double weight = has_share(s) ? (s->core_percent < 100 ? s->core_percent : 100) / 100. : remainder;

		if (s->id == id) {
			all.valid = true;
			all.weight = weight;
			all.low = s->priority != 0;
		} else if (s->id) {
			all.any_share |= has_share(s);
			low |= s->priority != 0;
			high |= s->priority == 0;
			all.crowded |= all.count == VGPU_TURN_PEERS;
			if (all.crowded)
				continue;
			all.peers[all.count].id = s->id;
			all.peers[all.count].weight = weight;
			all.peers[all.count++].low = s->priority != 0;
		}
	}
	all.any_share |= all.low ? high : low;
	return all;
}

void table_read(int cell, uint64_t id, struct shares *out)
{
	const struct vgpu_table *t = atomic_load_explicit(&tables[cell], memory_order_acquire);

	for (int tries = 0; t && tries < 100; tries++) {
		/* Acquire: the bytes below are read after the sequence. */
		uint32_t before = atomic_load_explicit(&t->sequence, memory_order_acquire);

		if (before & 1)
			return; /* its writer is at work, or dead: the next look tries again */
		struct shares all = parse(t, id);
		/* The fence keeps these reads before the second one of the sequence. */
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(&t->sequence, memory_order_relaxed) != before)
			continue;
		*out = all;
		out->sequence = before;
		return;
	}
}

struct vgpu_turn *table_own(int cell, uint64_t id)
{
	char path[TABLE_PATH_BYTES];
	struct vgpu_turn *turn = table_path(path, cell, NULL, id) ? map(path, O_RDWR, sizeof(*turn)) : NULL;

	if (!turn || (!memcmp(turn->words.magic, VGPU_TURN_MAGIC, sizeof(turn->words.magic)) && turn->words.id == id))
		return turn;
	munmap(turn, sizeof(*turn));
	return NULL;
}
