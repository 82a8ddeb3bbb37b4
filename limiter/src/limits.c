#include "limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "crc32.h"
#include "envlimits.h"
#include "hooks.h"
#include "layout.h"
#include "least.h"
#include "paths.h"
#include "log.h"

/* Mapped once and never unmapped; a forked child inherits it. */
static _Atomic(const struct vgpu_limits *) mapped;
static _Atomic bool from_environment;

/* Per cell: the sequence of the last record with a right CRC, plus 1 (0: none), and the values of
 * that record, which stay valid if a rewrite fails. Threads that check at the same time could mix
 * the values of two rewrites: begun and ended count them, and a thread that was not the only one
 * leaves `checked` unchanged, so that the next call reads the record again. */
static _Atomic uint64_t checked[VGPU_MAX_DEVICES];
static _Atomic uint64_t last_good[VGPU_MAX_DEVICES];
static _Atomic uint64_t last_context[VGPU_MAX_DEVICES];
static _Atomic uint64_t last_residue[VGPU_MAX_DEVICES];
static _Atomic uint64_t last_physical[VGPU_MAX_DEVICES];
static _Atomic uint32_t last_share[VGPU_MAX_DEVICES]; /* policy << 16 | soft_percent << 8 | percent */
static _Atomic uint32_t last_pages[VGPU_MAX_DEVICES]; /* small_kib in the upper half, page_kib in the lower */
static _Atomic uint32_t begun[VGPU_MAX_DEVICES];
static _Atomic uint32_t ended[VGPU_MAX_DEVICES];

/* A limit that no GPU reaches; keeps sums of limits and sizes far from 2^64. */
static const uint64_t CEILING = (uint64_t)1 << 56;

static bool deny(const char *path, const char *why)
{
	static _Atomic unsigned once;

	log_line(&once, "CUDA is denied in this process: limits file %s: %s", path, why);
	return false;
}

static const char *wrong_header(const struct vgpu_limits *l)
{
	uint32_t crc = crc32_add(crc32_add(0, l, offsetof(struct vgpu_limits, generation)), &l->flags, sizeof(l->flags));

	if (memcmp(l->magic, VGPU_LIMITS_MAGIC, sizeof(l->magic)))
		return "wrong magic number";
	if (l->layout != VGPU_LAYOUT)
		return "unknown layout number";
	if (l->header_bytes != VGPU_LIMITS_HEADER_BYTES || l->record_bytes != VGPU_LIMITS_RECORD_BYTES)
		return "wrong header or record size";
	if (l->record_count < 1 || l->record_count > VGPU_MAX_DEVICES)
		return "record count is not 1 to 16";
	if (l->crc32 != crc)
		return "wrong checksum of the header";
	return NULL;
}

/* Reads a consistent copy of record i. False: the record is rewritten all the time, or it is
 * invalid. */
static bool read_record(const struct vgpu_limits *l, int i, struct vgpu_record *out)
{
	const struct vgpu_record *r = &l->records[i];

	for (int tries = 0; tries < 1000; tries++) {
		/* Acquire: the bytes below are read after the sequence. */
		uint32_t before = atomic_load_explicit(&r->sequence, memory_order_acquire);

		if (before & 1) {
			clock_nap_ns(10000);
			continue;
		}
		memcpy(out, r, sizeof(*out));
		/* The fence keeps the copy before the second read of the sequence. */
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(&r->sequence, memory_order_relaxed) != before)
			continue;
		atomic_store_explicit(&out->sequence, before, memory_order_relaxed);
		return crc32_add(0, out->uuid, sizeof(*out) - offsetof(struct vgpu_record, uuid)) == out->crc32 &&
		       out->memory_limit_bytes > 0;
	}
	return false;
}

static void keep_record(int i, const struct vgpu_record *r)
{
	uint64_t limit = r->memory_limit_bytes < CEILING ? r->memory_limit_bytes : CEILING;
	uint64_t context = r->context_bytes < CEILING ? r->context_bytes : CEILING;

	/* Relaxed: check_record() publishes them. */
	atomic_store_explicit(&last_good[i], limit, memory_order_relaxed);
	atomic_store_explicit(&last_context[i], context, memory_order_relaxed);
	atomic_store_explicit(&last_physical[i], r->physical_bytes < limit ? r->physical_bytes : 0, memory_order_relaxed);
	atomic_store_explicit(&last_residue[i], r->residue_bytes < CEILING ? r->residue_bytes : CEILING, memory_order_relaxed);
	uint64_t share = least(r->policy, 2) << 16 | least(r->core_soft_percent, 100) << 8 | least(r->core_percent, 100);
	atomic_store_explicit(&last_share[i], (uint32_t)share, memory_order_relaxed);
	atomic_store_explicit(&last_pages[i], (uint32_t)r->small_kib << 16 | r->page_kib, memory_order_relaxed);
}

static bool check_record(const struct vgpu_limits *l, int i)
{
	struct vgpu_record r;

	/* seq_cst, all four: no thread was checking when this one began, and none began before it
	 * ended. A thread that a fork removes in between makes the child read the record at each
	 * call, which is slow and correct. */
	uint32_t before = atomic_load(&ended[i]);
	bool exclusive = atomic_fetch_add(&begun[i], 1) == before;
	bool right = read_record(l, i, &r);

	if (right)
		keep_record(i, &r);
	exclusive &= atomic_load(&begun[i]) == before + 1;
	/* Release: a thread that reads this sequence in `checked` reads these values. */
	if (right && exclusive)
		atomic_store_explicit(&checked[i], (uint64_t)r.sequence + 1, memory_order_release);
	atomic_fetch_add(&ended[i], 1);
	return right;
}

static const char *check(const struct vgpu_limits *l)
{
	const char *why = wrong_header(l);

	for (int i = 0; !why && i < (int)l->record_count; i++)
		if (!check_record(l, i))
			why = "a record has a wrong checksum or no limit";
	return why;
}

static bool publish(const struct vgpu_limits *l)
{
	const struct vgpu_limits *none = NULL;

	/* Release: the content that was checked. If another thread has published a
	 * mapping of the same file, this one is removed. */
	if (!atomic_compare_exchange_strong_explicit(&mapped, &none, l, memory_order_release, memory_order_relaxed))
		munmap((void *)l, VGPU_LIMITS_BYTES);
	return true;
}

static bool map_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return deny(path, strerror(errno));
	off_t size = lseek(fd, 0, SEEK_END);
	void *at = size == VGPU_LIMITS_BYTES ? mmap(NULL, VGPU_LIMITS_BYTES, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
	close(fd);
	if (size != VGPU_LIMITS_BYTES)
		return deny(path, "not 4096 bytes long");
	if (at == MAP_FAILED)
		return deny(path, strerror(errno));
	const char *why = check(at);
	if (!why)
		return publish(at);
	munmap(at, VGPU_LIMITS_BYTES);
	return deny(path, why);
}

/* Only a process without gpuslice's mount may set its own limits. */
static bool use_environment(void)
{
	if (!envlimits_read())
		return deny(VGPU_LIMITS_FILE, "there is none, and no CUDA_DEVICE_MEMORY_LIMIT either");
	atomic_store_explicit(&from_environment, true, memory_order_release);
	return true;
}

bool limits_ready(void)
{
	/* Acquire: pairs with publish(). */
	if (atomic_load_explicit(&mapped, memory_order_acquire) || limits_from_environment())
		return true;
	const char *path = path_or(VGPU_LIMITS_FILE, "VGPU_LIMITS_PATH");
	if (!strcmp(path, VGPU_LIMITS_FILE) && path_missing(VGPU_DIR))
		return use_environment();
	return map_file(path);
}

bool limits_from_environment(void)
{
	return atomic_load_explicit(&from_environment, memory_order_acquire);
}

bool limits_mig(void)
{
	const struct vgpu_limits *l = atomic_load_explicit(&mapped, memory_order_acquire);

	/* The host never grants MIG devices and whole GPUs to one container. */
	return l && l->records[0].flags & VGPU_RECORD_MIG;
}

static uint32_t flags_of(int cell)
{
	const struct vgpu_limits *l = atomic_load_explicit(&mapped, memory_order_acquire);

	return l ? l->records[cell].flags : 0;
}

bool limits_unmeasured(int cell)
{
	return flags_of(cell) & VGPU_RECORD_UNMEASURED;
}

bool limits_measured_first(int cell)
{
	return flags_of(cell) & (VGPU_RECORD_FIRST | VGPU_RECORD_UNMEASURED);
}

const char *limits_name(int cell)
{
	return atomic_load_explicit(&mapped, memory_order_acquire)->records[cell].name;
}

static const char *why_unlisted(void)
{
	if (limits_from_environment())
		return "the environment gives it no memory limit";
	if (limits_mig() && !hook_exists(HOOK_cuDeviceGetUuid_v2))
		return "this container has a MIG device, which only a driver of CUDA 11.4 or newer can distinguish from its GPU";
	return "this container's limits file has no record of it";
}

static void log_unlisted(const uint8_t u[16])
{
	static _Atomic unsigned once;

	log_line(&once, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x is denied: %s", u[0], u[1], u[2],
	    u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15],
	    why_unlisted());
}

int limits_cell(const uint8_t uuid[16], int ordinal)
{
	if (!limits_ready())
		return -1;
	const struct vgpu_limits *l = atomic_load_explicit(&mapped, memory_order_acquire);
	if (!l && ordinal >= 0 && ordinal < VGPU_MAX_DEVICES && envlimits_bytes(ordinal))
		return ordinal;
	for (int i = 0; l && i < (int)l->record_count; i++)
		if (!memcmp(l->records[i].uuid, uuid, 16))
			return i;
	log_unlisted(uuid);
	return -1;
}

uint64_t limits_bytes(int cell)
{
	const struct vgpu_limits *l = atomic_load_explicit(&mapped, memory_order_acquire);

	if (!l)
		return envlimits_bytes(cell);
	uint64_t now = (uint64_t)atomic_load_explicit(&l->records[cell].sequence, memory_order_acquire) + 1;
	/* Acquire: pairs with the release in check_record(). If a rewrite of a record
	 * is wrong or has not ended, the last valid limit applies: the writer may be
	 * dead, and then no call waits for it until the agent has fixed the record. */
	if (__builtin_expect(now != atomic_load_explicit(&checked[cell], memory_order_acquire), 0) && now & 1)
		check_record(l, cell);
	return atomic_load_explicit(&last_good[cell], memory_order_relaxed);
}

uint64_t limits_context_bytes(int cell)
{
	if (limits_from_environment())
		return 0;
	limits_bytes(cell); /* reads the record again if it has changed */
	return atomic_load_explicit(&last_context[cell], memory_order_relaxed);
}

uint64_t limits_residue_bytes(int cell)
{
	if (limits_from_environment())
		return 0;
	limits_bytes(cell); /* reads the record again if it has changed */
	return atomic_load_explicit(&last_residue[cell], memory_order_relaxed);
}

uint64_t limits_physical_bytes(int cell)
{
	if (limits_from_environment() || cell < 0 || cell >= VGPU_MAX_DEVICES)
		return 0;
	limits_bytes(cell); /* reads the record again if it has changed */
	return atomic_load_explicit(&last_physical[cell], memory_order_relaxed);
}

void limits_warn_unmovable(int cell)
{
	static _Atomic unsigned once;
	unsigned long long gpu = limits_physical_bytes(cell), mib = 1 << 20;

	if (gpu)
		log_line(&once, "memory pools, virtual memory (cuMemCreate) and graphs can't be in the host's memory: at most %llu of this container's %llu MiB are theirs",
		    gpu / mib, (unsigned long long)limits_bytes(cell) / mib);
}

struct limits_pages limits_pages(int cell)
{
	if (limits_from_environment())
		return (struct limits_pages){ 0 };
	limits_bytes(cell); /* reads the record again if it has changed */
	uint32_t both = atomic_load_explicit(&last_pages[cell], memory_order_relaxed);
	uint64_t page = (both & 0xffff) * (uint64_t)1024, small = (both >> 16) * (uint64_t)1024;
	return (struct limits_pages){ page, small < page ? small : page };
}

uint64_t limits_room(int cell)
{
	uint64_t limit = limits_bytes(cell), residue = limits_residue_bytes(cell);

	return residue < limit ? limit - residue : 0;
}

struct limits_share limits_share(int cell)
{
	if (limits_from_environment())
		return (struct limits_share){ .disabled = true };
	limits_bytes(cell); /* reads the record again if it has changed */
	uint32_t all = atomic_load_explicit(&last_share[cell], memory_order_relaxed), policy = all >> 16;
	return (struct limits_share){ (uint8_t)all, (uint8_t)(all >> 8), policy == 1, policy == 2 };
}

uint64_t limits_turn_id(void)
{
	const struct vgpu_limits *l = atomic_load_explicit(&mapped, memory_order_acquire);

	return l && !limits_mig() ? l->turn_id : 0;
}

const _Atomic uint64_t *limits_generation(void)
{
	const struct vgpu_limits *l = atomic_load_explicit(&mapped, memory_order_acquire);

	return l ? &l->generation : NULL;
}

bool limits_granted(int cell)
{
	return limits_from_environment() ? envlimits_bytes(cell) > 0 : cell < limits_count();
}

int limits_count(void)
{
	const struct vgpu_limits *l = atomic_load_explicit(&mapped, memory_order_acquire);

	return l ? (int)l->record_count : 0;
}

const uint8_t *limits_uuid(int cell)
{
	return atomic_load_explicit(&mapped, memory_order_acquire)->records[cell].uuid;
}
