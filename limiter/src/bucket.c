/* Two sums that only rise. A launch adds its cost to `spent`, and starts when `earned` has reached
 * the value that `spent` had before. So launches of all processes and threads have an order,
 * without a queue in which a dead process could block others. A launch also refills: it moves
 * `refilled` to now, and only the thread that moved it adds what that time is worth. If it dies
 * between the two steps, its own container loses that time, at most a burst; no time is counted
 * twice.
 *
 * `earned` stays at most a burst above `spent`. That is how much can be in flight, and how much an
 * idle container can use at once: 50 ms of its share, no more than 50 ms of the GPU. */
#include "bucket.h"

#include "clock.h"
#include "cores.h"

enum {
	BURST_WALL_NS = 50000000,
	BURST_MOST_NS = 50000000,
	REFILL_NS = 10000,       /* least time between refills, so that rounding loses less than 1/10000 */
	REFILL_MOST_NS = 1000000000,
	NAP_NS = 10000000,       /* then the limits are read again */
};

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t worth(uint64_t ns, uint32_t rate)
{
	return ns * rate >> RATE_BITS;
}

static uint64_t burst(uint32_t rate)
{
	return least(worth(BURST_WALL_NS, rate), BURST_MOST_NS);
}

/* Adds to `earned`, within its bounds: at most a burst above `spent`, and at most BUCKET_MOST
 * below it, so that each wait ends. */
static void earn(struct vgpu_bucket *b, uint64_t ns, uint32_t rate)
{
	/* Relaxed, all: no other data depends on these numbers. */
	uint64_t earned = atomic_load_explicit(&b->earned, memory_order_relaxed), next;

	do {
		uint64_t spent = atomic_load_explicit(&b->spent, memory_order_relaxed);
		uint64_t most = spent + burst(rate), fewest = spent - BUCKET_MOST;

		next = earned + ns;
		if ((int64_t)(most - earned) < 0 || (int64_t)(most - next) < 0)
			next = most;
		else if ((int64_t)(next - fewest) < 0)
			next = fewest;
		/* A CAS, because a refill and a refund may race; neither is lost. */
	} while (!atomic_compare_exchange_weak_explicit(&b->earned, &earned, next, memory_order_relaxed, memory_order_relaxed));
}

void bucket_refill(struct vgpu_bucket *b, uint64_t now, uint32_t rate)
{
	uint64_t last = atomic_load_explicit(&b->refilled, memory_order_relaxed);
	bool fresh = last == 0 || (last > now && last - now > REFILL_MOST_NS); /* or another program wrote it */

	/* Done a moment ago, or by a thread with the fine clock, which is ahead of the coarse one. */
	if (!fresh && (last > now || now - last < REFILL_NS))
		return;
	/* If two refill at once, one of them moves it, and only that one adds. */
	if (!atomic_compare_exchange_strong_explicit(&b->refilled, &last, now, memory_order_relaxed, memory_order_relaxed))
		return;
	earn(b, fresh ? burst(rate) : worth(least(now - last, REFILL_MOST_NS), rate), rate);
}

void bucket_settle(struct vgpu_bucket *b, int64_t ns, uint32_t rate)
{
	if (ns > 0)
		atomic_fetch_add_explicit(&b->spent, least((uint64_t)ns, BUCKET_MOST), memory_order_relaxed);
	else if (ns < 0) /* `spent` never falls: a launch may be waiting for its value */
		earn(b, least((uint64_t)-ns, BUCKET_MOST), rate);
}

/* Nanoseconds until the turn is earned; 0: it is. */
static uint64_t left(struct vgpu_bucket *b, uint64_t turn, uint32_t rate)
{
	int64_t lack = (int64_t)(turn - atomic_load_explicit(&b->earned, memory_order_relaxed));
	int64_t behind = (int64_t)(atomic_load_explicit(&b->spent, memory_order_relaxed) - turn);

	if (lack <= 0 || behind < 0) /* a turn is never above `spent`: another program overwrote it */
		return 0;
	return (least((uint64_t)lack, BUCKET_MOST) << RATE_BITS) / rate + 1;
}

void bucket_wait(struct vgpu_bucket *b, int cell, uint64_t turn)
{
	uint64_t now = clock_ns(), wait;

	for (;;) {
		cores_limited(); /* follows the host */
		uint32_t rate = cores_rate(cell);
		if (!rate)
			break; /* not limited any more */
		bucket_refill(b, now, rate);
		wait = left(b, turn, rate);
		if (!wait)
			break;
		clock_nap_ns(least(wait, NAP_NS));
		/* Added during the wait: it can take minutes, and the host reads the sum each second. */
		uint64_t before = now;
		now = clock_ns();
		atomic_fetch_add_explicit(&b->throttled, now - before, memory_order_relaxed);
	}
}
