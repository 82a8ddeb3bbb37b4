/* First announce, then sum. A process adds its bytes to its own `tentative`, and only then sums
 * `tentative` and `committed` of all processes. If two processes race, the one with the second
 * announcement in the single order of all seq_cst operations sees the other's bytes, as
 * tentative or as committed: both can't succeed where one fits.
 * Both may fail; the slow path repeats them one after the other.
 *
 * A reservation is committed before the driver is called. So bytes are tentative for
 * nanoseconds, or until their process is scheduled again.
 *
 * Where the node grants more memory than its GPUs have, a container has a second bound: how
 * much of its memory may lie on the GPU. Memory that may lie in the host's (spilled) counts
 * only towards the limit. The spilled bytes are summed separately, after the other sums. So
 * memory that is spilled between the two sums may be subtracted from what lies on the GPU. As
 * long as that memory exists, more than the allowed part may lie on the GPU; the total never
 * exceeds the limit.
 *
 * A process that is checkpointed has its bytes out of the sums. To count them again is an
 * announcement of all of them, and before its process is restored a sum follows it. */
#include "reserve.h"

#include "clock.h"
#include "filelock.h"
#include "limits.h"
#include "resumed.h"
#include "slot.h"
#include "suspend.h"
#include "usage.h"

enum outcome {
	FITS,
	CROWDED, /* it would fit without the tentative bytes of others */
	FULL,
};

static uint64_t add(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

struct room {
	uint64_t limit;
	uint64_t gpu; /* bytes that may lie on the GPU; 0: as many as the limit */
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
		return FULL; /* not announced, so that it causes no overflow in a sum */
	atomic_fetch_add(&own->tentative, bytes); /* seq_cst: see above */
	*sum = usage_sum(p->usage, &p->ipcleft, cell);
	if (over(p, cell, add(sum->committed, sum->tentative), room)) {
		atomic_fetch_sub(&own->tentative, bytes);
		return over(p, cell, add(sum->committed, bytes), room) ? FULL : CROWDED;
	}
	/* In this order: other processes count the bytes twice for a moment, and never
	 * miss them. */
	atomic_fetch_add(&own->committed, bytes);
	atomic_fetch_sub(&own->tentative, bytes);
	return FITS;
}

/* The waits below are bounded: a stopped process delays others, but can't block them. */
enum {
	SLOW_LOCK_US = 1000000,
	CROWD_US = 100000,
	CROWD_PAUSE_US = 20,
	DYING_US = 2000000,
	DYING_PAUSE_US = 500,
	FULL_LOOKS = 3, /* a sum is no snapshot: FULL must be the result this many times in a row */
};

static bool try_repeatedly(struct process *p, int cell, uint64_t bytes, bool spilling)
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

struct request {
	int cell; /* LEDGER_EVERY_CELL: each granted GPU */
	uint64_t bytes;
	bool spilling;
	const struct suspended *set; /* slots that count again if it succeeds; may be NULL */
};

static bool is_of(const struct request *r, int cell)
{
	return cell == r->cell || (r->cell == LEDGER_EVERY_CELL && limits_granted(cell));
}

static bool try_cells(struct process *p, const struct request *r)
{
	for (int cell = 0; cell < VGPU_MAX_DEVICES; cell++)
		if (is_of(r, cell) && !try_repeatedly(p, cell, r->bytes, r->spilling))
			return false;
	return true;
}

static bool try_counting(struct process *p, const struct request *r)
{
	if (!r->set)
		return try_cells(p, r);
	suspend_unmark_all(r->set);
	bool fits = try_cells(p, r);
	if (!fits)
		suspend_mark_all(r->set);
	return fits;
}

/* One process at a time: the lock is on a file description of this process, so that the kernel ends
 * it with the process. After the time-out the process continues without the lock. */
static bool reserve_locked(struct process *p, const struct request *r)
{
	struct borrowed file = owner_borrow(&p->owner);
	bool locked = file.fd >= 0 && filelock_wait(file.fd, VGPU_LOCK_SLOW, SLOW_LOCK_US);

	if (locked)
		slot_reap(p->usage, file.fd);
	bool fits = try_counting(p, r);
	owner_return(&p->owner, file);
	return fits;
}

static bool dying(const struct process *p, const struct request *r)
{
	for (int cell = 0; cell < VGPU_MAX_DEVICES; cell++)
		if (is_of(r, cell) && slot_dying(p->usage, p->owner.slot, cell))
			return true;
	return false;
}

/* The memory of a process that is being killed is charged until its driver's files are closed, and
 * free right after: so it is waited for, without the lock. One that ended between the try and the look
 * for it leaves no trace, and the next try finds its memory free. */
static bool reserve_slow(struct process *p, const struct request *r)
{
	uint64_t until = clock_us() + DYING_US;
	int refused = 0; /* without a process that is being killed */

	while (!reserve_locked(p, r)) {
		bool waits = dying(p, r);

		refused = waits ? 0 : refused + 1;
		if (refused == 2 || clock_us() > until)
			return false;
		if (waits)
			clock_sleep_us(DYING_PAUSE_US);
	}
	return true;
}

bool reserve_again(struct process *p, const struct suspended *set)
{
	return reserve_slow(p, &(struct request){ .cell = LEDGER_EVERY_CELL, .set = set });
}

enum { LOOKS_FIRST = 256, LOOKS_MOST = 65536 };

/* Each slot of a dead process costs every sum some time. So one of some hundred sums that see a
 * dead owner clears the slots, and fewer where that is in vain (exported memory that is held). */
static void clear_dead(struct process *p)
{
	static _Atomic uint32_t looks, due, interval = LOOKS_FIRST;

	/* Relaxed: two threads that clear at once do no harm. */
	uint32_t look = atomic_fetch_add_explicit(&looks, 1, memory_order_relaxed);
	if ((int32_t)(look - atomic_load_explicit(&due, memory_order_relaxed)) < 0)
		return;
	struct borrowed file = owner_borrow(&p->owner);
	bool mine = file.fd >= 0 && filelock_try(file.fd, VGPU_LOCK_SLOW); /* else another process is at it */
	bool any = mine && slot_reap(p->usage, file.fd);
	owner_return(&p->owner, file);
	uint32_t next = any ? LOOKS_FIRST : atomic_load_explicit(&interval, memory_order_relaxed) * 2;
	next = next < LOOKS_MOST ? next : LOOKS_MOST;
	atomic_store_explicit(&interval, next, memory_order_relaxed);
	atomic_store_explicit(&due, look + next, memory_order_relaxed);
}

static bool reserve_on(struct process *p, int cell, uint64_t bytes, bool spilling)
{
	struct usage_sum sum = { 0 };
	struct room room = room_of(cell, spilling);

	if (__builtin_expect(suspended(p->owner.slot), 0))
		resumed_wait(p->owner.slot);
	if (__builtin_expect(try(p, cell, bytes, room, &sum) == FITS, 1)) {
		if (__builtin_expect(sum.deaths, 0))
			clear_dead(p);
		return true;
	}
	return bytes <= room.limit && reserve_slow(p, &(struct request){ .cell = cell, .bytes = bytes, .spilling = spilling });
}

void reserve_force(struct process *p, int cell, uint64_t bytes)
{
	/* seq_cst: as in try(), but without a check. */
	atomic_fetch_add(&p->owner.slot->cells[cell].committed, bytes);
}

/* The first half of try(). The bytes are in every sum from here on, and as announced ones they make no
 * allocation FULL. */
bool reserve_briefly(struct process *p, int cell, uint64_t bytes)
{
	struct room room = room_of(cell, false);

	if (bytes > room.limit)
		return false;
	atomic_fetch_add(&p->owner.slot->cells[cell].tentative, bytes);
	struct usage_sum sum = usage_sum(p->usage, &p->ipcleft, cell);
	if (!over(p, cell, add(sum.committed, sum.tentative), room))
		return true;
	reserve_briefly_undo(p, cell, bytes);
	return false;
}

void reserve_briefly_undo(struct process *p, int cell, uint64_t bytes)
{
	/* seq_cst: after the driver has freed the memory, as in undo_on(). */
	atomic_fetch_sub(&p->owner.slot->cells[cell].tentative, bytes);
}

static void undo_on(struct process *p, int cell, uint64_t bytes)
{
	/* seq_cst: after the driver has freed the memory, and visible at once. */
	atomic_fetch_sub(&p->owner.slot->cells[cell].committed, bytes);
}

static void undo_below(struct process *p, int end, uint64_t bytes)
{
	for (int cell = 0; cell < end; cell++)
		if (limits_granted(cell))
			undo_on(p, cell, bytes);
}

/* One GPU after another. The first GPUs stay charged while the next ones are tried. So another
 * process may be refused bytes that are free again a moment later; on one of the GPUs there
 * was no room for both. */
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

/* Called after the bytes are committed, and undone before they are given back; between the two
 * steps they count as memory on the GPU. seq_cst: ordered with the sums of try(). */
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
		if (i == cell || (cell == LEDGER_EVERY_CELL && limits_granted(i))) /* Relaxed: only displayed. */
			atomic_fetch_add_explicit(&p->usage->compute[i].refused, 1, memory_order_relaxed);
}
