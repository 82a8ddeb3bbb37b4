/* What the next process of a container with a share of 30 % may use after one had work for 30 s and ended.
 *
 *   ceiling IDLE
 *
 * IDLE: seconds between the two. Prints milliseconds. */
#include <stdio.h>
#include <stdlib.h>

#include "ceiling.h"

static const uint64_t SECOND = 1000000000;

int main(int argc, char **argv)
{
	struct vgpu_compute compute = { 0 };
	struct ceiling_own first = { 0 }, next = { 0 };
	struct span none = { 0 };
	uint64_t now = 1000 * SECOND;

	if (argc != 2)
		return 2;
	ceiling_step(&compute, &first, 0, 0.3, &none, now);
	for (int i = 0; i < 30; i++) {
		struct span work = { .from = now, .to = now + SECOND, .ns = SECOND };

		ceiling_show(&compute, &first, 0, now + SECOND);
		now += SECOND;
		ceiling_step(&compute, &first, 0, 0.3, &work, now);
	}
	now += strtoull(argv[1], NULL, 10) * SECOND;
	printf("%lld\n", (long long)ceiling_step(&compute, &next, 1, 0.3, &none, now) / 1000000);
	return 0;
}
