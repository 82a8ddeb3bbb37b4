#include "bucket.c"

#include "creaders.h"

int creaders_turns(uint64_t earned, uint64_t spent, uint64_t refilled, uint64_t now, uint64_t ns, int64_t settle, uint32_t rate,
                   int most)
{
	struct vgpu_bucket b = {.earned = earned, .spent = spent, .refilled = refilled};
	uint64_t turn;
	int naps = 0;

	bucket_refill(&b, now, rate);
	bucket_settle(&b, settle, rate);
	if (bucket_charge(&b, ns, &turn))
		return 0;
	for (; naps < most; naps++) {
		bucket_refill(&b, now, rate);
		if (!left(&b, turn, rate))
			break;
		now += NAP_NS;
	}
	return naps;
}
