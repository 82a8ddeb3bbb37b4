#include "duration.h"

struct duration *durations;

enum { OF_MEAN = 4 }; /* a new one counts a quarter */

void duration_learn(uint64_t key, uint64_t least, uint64_t most)
{
	struct duration *d = duration_place(key);
	uint64_t mean = duration_of(key);

	if (!mean)
		mean = most;
	else if (mean < least)
		mean += (least - mean + OF_MEAN - 1) / OF_MEAN;
	else if (mean > most)
		mean -= (mean - most + OF_MEAN - 1) / OF_MEAN;
	atomic_store_explicit(&d->ns, mean ? mean : 1, memory_order_relaxed);
	atomic_store_explicit(&d->key, key, memory_order_relaxed);
}
