#include "usage.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "exported.h"
#include "ipcrecord.h"
#include "limits.h"
#include "paths.h"
#include "log.h"
#include "slot.h"
#include "suspend.h"
#include "witness.h"

static _Atomic(struct vgpu_usage *) mapped;

static void *deny(const char *path, const char *why)
{
	static _Atomic unsigned once;

	log_line(&once, "CUDA is denied in this process: usage file %s: %s", path, why);
	return NULL;
}

static const char *usage_path(void)
{
	return path_or(VGPU_USAGE_FILE, "VGPU_USAGE_PATH");
}

/* Whether the usage is private: the limits are from the environment, and there is no usage file. */
static bool is_private(const char *path)
{
	return limits_from_environment() && path_missing(path);
}

static const char *wrong_header(const struct vgpu_usage *u)
{
	if (memcmp(u->magic, VGPU_USAGE_MAGIC, sizeof(u->magic)))
		return "wrong magic number";
	if (u->layout != VGPU_LAYOUT)
		return "unknown layout number";
	if (u->header_bytes != VGPU_USAGE_HEADER_BYTES || u->slot_bytes != VGPU_SLOT_BYTES ||
	    u->slot_count != VGPU_SLOT_COUNT || u->cell_offset != VGPU_SLOT_HEADER_BYTES ||
	    u->cell_bytes != VGPU_CELL_BYTES || u->cell_count != VGPU_MAX_DEVICES)
		return "wrong sizes in its header";
	if (limits_from_environment())
		return NULL;
	if (u->device_count != (uint32_t)limits_count())
		return "not as many GPUs as the limits file has";
	for (int i = 0; i < limits_count(); i++)
		if (memcmp(u->uuid[i], limits_uuid(i), 16))
			return "other GPUs than the limits file has";
	return NULL;
}

static struct vgpu_usage *map_private(void)
{
	void *at = mmap(NULL, VGPU_USAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return at == MAP_FAILED ? deny("(none)", strerror(errno)) : at;
}

static struct vgpu_usage *map_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return deny(path, strerror(errno));
	off_t size = lseek(fd, 0, SEEK_END);
	void *at = size == VGPU_USAGE_BYTES ? mmap(NULL, VGPU_USAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
	                                    : MAP_FAILED;
	close(fd);
	if (size != VGPU_USAGE_BYTES)
		return deny(path, "wrong length");
	if (at == MAP_FAILED)
		return deny(path, strerror(errno));
	const char *why = wrong_header(at);
	if (!why)
		return at;
	munmap(at, VGPU_USAGE_BYTES);
	return deny(path, why);
}

struct vgpu_usage *usage_map(void)
{
	/* Acquire: pairs with the release below; the header was checked before it. */
	struct vgpu_usage *usage = atomic_load_explicit(&mapped, memory_order_acquire);
	if (usage)
		return usage;
	const char *path = usage_path();
	usage = is_private(path) ? map_private() : map_file(path);
	struct vgpu_usage *other = NULL;
	if (usage &&
	    !atomic_compare_exchange_strong_explicit(&mapped, &other, usage, memory_order_acq_rel, memory_order_acquire)) {
		munmap(usage, VGPU_USAGE_BYTES);
		usage = other;
	}
	return usage;
}

int usage_open(void)
{
	const char *path = usage_path();

	if (is_private(path)) /* no other process shares it: a file of its own */
		return (int)syscall(SYS_memfd_create, "gpuslice", 1u /* MFD_CLOEXEC */);
	return open(path, O_RDWR | O_CLOEXEC);
}

static uint64_t add(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static inline void sum_slot(struct vgpu_slot *s, int cell, struct usage_sum *sum)
{
	struct vgpu_cell *c = &s->cells[cell];
	uint32_t owner = atomic_load(&s->owner); /* seq_cst: see suspend.h */

	sum->deaths |= (owner & FUTEX_OWNER_DIED) != 0;
	if (__builtin_expect(owner & VGPU_OWNER_SUSPENDED, 0)) {
		sum->suspended = true;
		sum->committed = add(sum->committed, exported_bytes(s, cell));
		return;
	}
	/* seq_cst, and in this order: a writer commits before it withdraws its
	 * announcement, so a reader in between counts twice, and never misses it. */
	sum->tentative = add(sum->tentative, atomic_load(&c->tentative));
	sum->committed = add(sum->committed, atomic_load(&c->committed));
}

/* Of a checkpointed maker all records may count. */
static uint64_t all_records(const struct vgpu_usage *usage, int cell)
{
	uint32_t high = ipcrecord_high(usage);
	uint64_t sum = 0;

	for (uint32_t i = 0; i < high; i++)
		sum += ipcrecord_bytes(usage, i, cell); /* each is below 2^42 */
	return sum;
}

struct usage_sum usage_sum(struct vgpu_usage *usage, struct ipcleft *left, int cell)
{
	struct usage_sum sum = { 0 };
	uint32_t words = usage_words(usage);

	for (uint32_t word = 0; word < words; word++)
		for (uint64_t bits = usage_word(usage, word); bits;)
			sum_slot(&usage->slots[usage_next(word, &bits)], cell, &sum);
	/* After the cells: a record takes over what was committed before the cell gives it up. */
	words = __builtin_expect(sum.suspended, 0) ? 0 : ipcrecord_words(usage);
	for (uint32_t word = 0; __builtin_expect(word < words, 0); word++)
		sum.committed = add(sum.committed, ipcleft_bytes(left, usage, cell, word));
	if (__builtin_expect(sum.suspended, 0))
		sum.committed = add(sum.committed, all_records(usage, cell));
	return sum;
}

static const struct vgpu_usage *map_to_read(const char *path, int *fd)
{
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	if (*fd < 0)
		return deny(path, strerror(errno));
	void *at = lseek(*fd, 0, SEEK_END) == VGPU_USAGE_BYTES
	                   ? mmap(NULL, VGPU_USAGE_BYTES, PROT_READ, MAP_SHARED, *fd, 0)
	                   : MAP_FAILED;
	if (at != MAP_FAILED && !wrong_header(at))
		return at;
	if (at != MAP_FAILED)
		munmap(at, VGPU_USAGE_BYTES);
	close(*fd);
	return deny(path, "it is not a usage file of this container");
}

uint64_t usage_spilled(struct vgpu_usage *usage, int cell)
{
	uint64_t spilled = 0;
	uint32_t words = usage_words(usage);

	for (uint32_t word = 0; word < words; word++)
		for (uint64_t bits = usage_word(usage, word); bits;) {
			struct vgpu_slot *s = &usage->slots[usage_next(word, &bits)];

			if (!suspended(s)) /* seq_cst: with the sums of try() */
				spilled = add(spilled, atomic_load(&s->cells[cell].spilled));
		}
	return spilled;
}

bool usage_read(int cell, uint64_t *used)
{
	const char *path = usage_path();
	int fd;

	*used = 0;
	if (is_private(path))
		return true;
	const struct vgpu_usage *usage = map_to_read(path, &fd);
	if (!usage)
		return false;
	uint32_t words = usage_words(usage);
	for (uint32_t word = 0; word < words; word++)
		for (uint64_t bits = usage_word(usage, word); bits;)
			*used = add(*used, slot_bytes(usage, fd, usage_next(word, &bits), cell));
	*used = add(*used, slot_left_bytes(usage, fd, cell));
	munmap((void *)usage, VGPU_USAGE_BYTES);
	close(fd);
	return true;
}

int usage_pids(unsigned int *pids, int room)
{
	const char *path = usage_path();
	uint64_t here = witness_pid_namespace();
	int fd, count = 0;

	if (is_private(path))
		return 0;
	const struct vgpu_usage *usage = map_to_read(path, &fd);
	if (!usage)
		return 0;
	uint32_t words = usage_words(usage);
	for (uint32_t word = 0; word < words; word++)
		for (uint64_t bits = usage_word(usage, word); bits && count < room;) {
			const struct vgpu_slot *s = &usage->slots[usage_next(word, &bits)];
			uint32_t owner = atomic_load_explicit(&s->owner, memory_order_acquire);

			if (owner && !(owner & FUTEX_OWNER_DIED) && s->pid_ns == here)
				pids[count++] = s->pid;
		}
	munmap((void *)usage, VGPU_USAGE_BYTES);
	close(fd);
	return count;
}
