/* Announce, then look. A process adds what it wants to its own `tentative`, and
 * only then sums what everybody has and wants. Of two that race, the one whose
 * announcement is second in the single order of all seq_cst operations sees the
 * other's bytes, as tentative or as committed: both can't pass where one fits.
 * Both may fail; the slow path lets them try again one after the other.
 *
 * A reservation is committed before the driver is asked, so what is tentative is
 * so for nanoseconds, or until its process is scheduled again.
 *
 * Where the node grants more memory than its GPUs have, a container has a second
 * bound: of what it has, only so much may lie on the GPU. Memory that may lie in the
 * host's (spilled) counts towards the limit alone. The sum of what is spilled is read
 * apart from the others and after them, so that memory that is spilled meanwhile may be
 * taken for the GPU's room: as long as it lives more than the share may lie on the GPU.
 * That moves memory, it takes none beyond the limit. */
#include "reserve.h"

#include <unistd.h>

#include "clock.h"
#include "filelock.h"
#include "limits.h"
#include "slot.h"
#include "usage.h"

enum outcome {
	FITS,
	CROWDED, /* it would fit if nobody else were trying */
	FULL,
};

static uint64_t add(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

struct room {
	uint64_t limit;
	uint64_t gpu; /* 0: no less than the limit */
};

static struct room room_of(int cell, bool spilling)
{
	return (struct room){ limits_room(cell), spilling ? 0 : limits_physical_bytes(cell) };
}

static bool over(struct process *p, int cell, uint64_t sum, struct room room)
{
	if (sum > room.limit)
		return true;
	if (__builtin_expect(!room.gpu, 1))
		return false;
	uint64_t spilled = usage_spilled(p->usage, cell);
	return sum > spilled && sum - spilled > room.gpu;
}

static enum outcome try(struct process *p, int cell, uint64_t bytes, struct room room, struct usage_sum *sum)
{
	struct vgpu_cell *own = &p->owner.slot->cells[cell];

	if (bytes > room.limit)
		return FULL; /* and not announced: no sum may overflow for its sake */
	atomic_fetch_add(&own->tentative, bytes); /* seq_cst: see above */
	*sum = usage_sum(p->usage, cell);
	if (over(p, cell, add(sum->committed, sum->tentative), room)) {
		atomic_fetch_sub(&own->tentative, bytes);
		return over(p, cell, add(sum->committed, bytes), room) ? FULL : CROWDED;
	}
	/* In this order: seen from elsewhere the bytes count twice for a moment,
	 * never not at all. */
	atomic_fetch_add(&own->committed, bytes);
	atomic_fetch_sub(&own->tentative, bytes);
	return FITS;
}

/* The waits below are bounded; a stopped process can cost time, never a hang. */
enum {
	SLOW_LOCK_US = 1000000,
	CROWD_US = 100000,
	CROWD_PAUSE_US = 20,
	FULL_LOOKS = 3, /* a sum is no snapshot: full must be seen so often in a row */
};

static bool try_alone(struct process *p, int cell, uint64_t bytes, bool spilling)
{
	uint64_t until = clock_us() + CROWD_US;
	int full = 0;

	for (;;) {
		struct usage_sum sum = { 0 };
		enum outcome outcome = try(p, cell, bytes, room_of(cell, spilling), &sum);

		if (outcome == FITS)
			return true;
		full = outcome == FULL ? full + 1 : 0;
		if (full == FULL_LOOKS || clock_us() > until)
			return false;
		if (outcome == CROWDED)
			clock_sleep_us(CROWD_PAUSE_US);
	}
}

/* One at a time, on a description of its own, so that the kernel ends the lock
 * with the process. Who does not get it in time tries all the same, unserialised. */
static bool reserve_slow(struct process *p, int cell, uint64_t bytes, bool spilling)
{
	int fd = usage_open();
	bool locked = fd >= 0 && filelock_wait(fd, VGPU_LOCK_SLOW, SLOW_LOCK_US);

	if (locked)
		slot_reap(p->usage, fd);
	bool fits = try_alone(p, cell, bytes, spilling);
	if (fd >= 0)
		close(fd);
	return fits;
}

static bool reserve_on(struct process *p, int cell, uint64_t bytes, bool spilling)
{
	struct usage_sum sum = { 0 };
	struct room room = room_of(cell, spilling);

	if (__builtin_expect(try(p, cell, bytes, room, &sum) == FITS, 1))
		return true;
	return bytes <= room.limit && reserve_slow(p, cell, bytes, spilling);
}

void reserve_force(struct process *p, int cell, uint64_t bytes)
{
	/* seq_cst: as in try(), but nothing is decided. */
	atomic_fetch_add(&p->owner.slot->cells[cell].committed, bytes);
}

static void undo_on(struct process *p, int cell, uint64_t bytes)
{
	/* seq_cst: not before the driver has the memory back, nor late. */
	atomic_fetch_sub(&p->owner.slot->cells[cell].committed, bytes);
}

static void undo_below(struct process *p, int end, uint64_t bytes)
{
	for (int cell = 0; cell < end; cell++)
		if (limits_granted(cell))
			undo_on(p, cell, bytes);
}

/* GPU after GPU. While the last is being asked the first ones are taken, so
 * another process may be refused bytes that are free again a moment later: on one
 * of the GPUs there was not room for both. */
static bool reserve_everywhere(struct process *p, uint64_t bytes, bool spilling)
{
	for (int cell = 0; cell < VGPU_MAX_DEVICES; cell++) {
		if (!limits_granted(cell) || reserve_on(p, cell, bytes, spilling))
			continue;
		undo_below(p, cell, bytes);
		return false;
	}
	return true;
}

bool reserve(struct process *p, int cell, uint64_t bytes)
{
	return __builtin_expect(cell != LEDGER_EVERY_CELL, 1) ? reserve_on(p, cell, bytes, false) :
								reserve_everywhere(p, bytes, false);
}

bool reserve_spilling(struct process *p, int cell, uint64_t bytes)
{
	return cell != LEDGER_EVERY_CELL ? reserve_on(p, cell, bytes, true) : reserve_everywhere(p, bytes, true);
}

/* After the bytes are committed, and undone before they are: in between they seem to
 * be on the GPU. seq_cst: with the sums of try(). */
static void spill(struct process *p, int cell, uint64_t bytes)
{
	for (int i = 0; i < VGPU_MAX_DEVICES; i++)
		if (i == cell || (cell == LEDGER_EVERY_CELL && limits_granted(i)))
			atomic_fetch_add(&p->owner.slot->cells[i].spilled, bytes);
}

void reserve_spilled(struct process *p, int cell, uint64_t bytes)
{
	spill(p, cell, bytes);
}

void reserve_spilled_undo(struct process *p, int cell, uint64_t bytes)
{
	spill(p, cell, 0 - bytes);
}

void reserve_undo(struct process *p, int cell, uint64_t bytes)
{
	if (__builtin_expect(cell != LEDGER_EVERY_CELL, 1))
		undo_on(p, cell, bytes);
	else
		undo_below(p, VGPU_MAX_DEVICES, bytes);
}

void reserve_refused(struct process *p, int cell)
{
	for (int i = 0; i < VGPU_MAX_DEVICES; i++)
		if (i == cell || (cell == LEDGER_EVERY_CELL && limits_granted(i))) /* Relaxed: nothing hangs on it. */
			atomic_fetch_add_explicit(&p->usage->buckets[i].refused, 1, memory_order_relaxed);
}
