/* One stream is blocked, as behind a kernel that waits for another process; prints how long
 * the longest launch into it and into another took, in ms. The driver is the fake one. */
#include <stdio.h>

#include "playedclock.h"

static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static char functions[2];

static uint64_t longest(char *function, void *stream, int count)
{
	uint64_t most = 0;

	for (int i = 0; i < count; i++) {
		uint64_t start = played_ns, took;

		launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
		took = (played_ns - start) / 1000000;
		most = took > most ? took : most;
		play_us(12000); /* another tick of the clock */
	}
	return most;
}

int main(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *still = (void *)0x2000, *other = (void *)0x1000;
	int (*init)(unsigned) = dlsym(cuda, "cuInit");

	launch = dlsym(cuda, "cuLaunchKernel");
	*(float *)dlsym(cuda, "fakeMilliseconds") = 0.1f;
	*(void **)dlsym(cuda, "fakeStill") = still;
	if (init(0))
		return 1;
	longest(&functions[0], still, 1);
	play_us(400000);
	printf("another %llu\n", (unsigned long long)longest(&functions[1], other, 20));
	printf("still %llu\n", (unsigned long long)longest(&functions[1], still, 2));
	return 0;
}
