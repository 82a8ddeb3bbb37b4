/* Launches into a stream that is captured, with a debt of seconds: prints what the
 * launches and the captures came to. The driver is the fake one. */
#include <pthread.h>
#include <stdio.h>

#include "playedclock.h"

static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*begin)(void *, int), (*end)(void *, void **), (*launches)(void), (*broken)(void);
static int functions[100000];

static int one(int function, void *stream)
{
	return launch(&functions[function], 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void *elsewhere(void *arg)
{
	(void)arg;
	for (int i = 0; i < 3; i++)
		one(90000 + i, (void *)0x2000);
	return NULL;
}

int main(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *stream = (void *)0x1000, *graph;
	int (*init)(unsigned) = dlsym(cuda, "cuInit");
	pthread_t other;
	int before;

	launch = dlsym(cuda, "cuLaunchKernel");
	begin = dlsym(cuda, "cuStreamBeginCapture_v2");
	end = dlsym(cuda, "cuStreamEndCapture");
	launches = dlsym(cuda, "fakeLaunches");
	broken = dlsym(cuda, "fakeBroken");
	*(float *)dlsym(cuda, "fakeMilliseconds") = 20;
	if (init(0))
		return 1;
	/* Kernels of 20 ms of which the share is 50 %: these wait, and leave a debt. */
	for (int i = 0; i < 8; i++)
		one(0, stream);
	printf("begin %d\n", begin(stream, 0));
	before = launches();
	for (int i = 0; i < 50000; i++)
		one(i, stream);
	printf("captured %d\n", launches() - before);
	pthread_create(&other, NULL, elsewhere, NULL);
	pthread_join(other, NULL);
	printf("nested %d\n", begin((void *)0x3000, 0));
	printf("end of another %d\n", end((void *)0x3000, &graph));
	one(1, stream);
	printf("end %d\n", end(stream, &graph));
	printf("broken %d\n", broken());
	/* And everything is as before. */
	for (int i = 0; i < 4; i++)
		one(0, stream);
	printf("launched %d\n", launches() - before);
	return 0;
}
