/* Processes that begin to use CUDA at the same moment:
 *
 *   join PROCESSES
 *
 * Prints for each "init total allocation" in nanoseconds: only cuInit; all from dlopen
 * until a context is current; and the first allocation after that. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void use(double *took)
{
	void *context;
	unsigned long long p;
	double begin = now();
	void *h = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(h, "cuInit");
	int (*retain)(void **, int) = (int (*)(void **, int))dlsym(h, "cuDevicePrimaryCtxRetain");
	int (*current)(void *) = (int (*)(void *))dlsym(h, "cuCtxSetCurrent");
	int (*alloc)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))dlsym(h, "cuMemAlloc_v2");
	double before = now();

	if (init(0))
		_exit(1);
	took[0] = now() - before;
	if (retain(&context, 0) || current(context))
		_exit(1);
	before = now();
	took[1] = before - begin;
	if (alloc(&p, 2 << 20))
		_exit(1);
	took[2] = now() - before;
}

int main(int argc, char **argv)
{
	int count = atoi(argv[1]), go[2], done[2], status, failed = 0;
	double (*took)[3] = mmap(NULL, (size_t)count * sizeof(*took), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char c;

	if (argc != 2 || pipe(go) || pipe(done))
		return 2;
	for (int i = 0; i < count; i++) {
		if (fork())
			continue;
		close(go[1]);
		close(done[1]);
		read(go[0], &c, 1); /* its end */
		use(took[i]);
		read(done[0], &c, 1); /* all stay until the last one is there */
		_exit(0);
	}
	close(done[0]);
	usleep(100000 + 1000 * (unsigned)count);
	close(go[1]);
	for (int i = 0; i < count; i++)
		for (double end = now() + 6e10; !((volatile double *)took[i])[2] && now() < end;)
			usleep(1000);
	close(done[1]);
	while (wait(&status) > 0)
		failed += status != 0;
	for (int i = 0; i < count; i++)
		printf("%.0f %.0f %.0f\n", took[i][0], took[i][1], took[i][2]);
	return failed != 0;
}
