/* Time that kernels took, in buckets. In all three programs. */
#include "state.h"

#include <time.h>

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void bucket_add(struct busy_bucket *b, uint64_t epoch, uint64_t ns)
{
	uint64_t old = atomic_load(&b->epoch_and_ns);
	uint64_t new;

	do {
		if ((uint32_t)(old >> 32) == (uint32_t)epoch)
			new = old + ns;
		else
			new = epoch << 32 | ns;
	} while (!atomic_compare_exchange_weak(&b->epoch_and_ns, &old, new));
}

void busy_add(struct busy_bucket *ring, uint64_t start_ns, uint64_t end_ns, uint64_t busy_ns)
{
	uint64_t span = end_ns - start_ns;

	while (start_ns < end_ns) {
		uint64_t epoch = start_ns / BUSY_BUCKET_NS;
		uint64_t next = (epoch + 1) * BUSY_BUCKET_NS;
		uint64_t stop = end_ns < next ? end_ns : next;
		uint64_t part = stop - start_ns;

		if (end_ns - start_ns <= BUSY_BUCKETS * BUSY_BUCKET_NS) /* else it is forgotten before the end */
			bucket_add(&ring[epoch % BUSY_BUCKETS], epoch,
				   busy_ns == span ? part : (uint64_t)((double)part * (double)busy_ns / (double)span));
		start_ns = stop;
	}
}

unsigned busy_percent(const struct busy_bucket *ring, uint64_t from_ns, uint64_t to_ns)
{
	uint64_t busy = 0, span = 0;

	for (uint64_t e = from_ns / BUSY_BUCKET_NS; e < to_ns / BUSY_BUCKET_NS; e++) {
		uint64_t word = atomic_load(&ring[e % BUSY_BUCKETS].epoch_and_ns);

		span += BUSY_BUCKET_NS;
		if ((uint32_t)(word >> 32) == (uint32_t)e)
			busy += (uint32_t)word;
	}
	if (!span)
		return 0;
	return busy >= span ? 100 : (unsigned)((busy * 100 + span / 2) / span);
}
