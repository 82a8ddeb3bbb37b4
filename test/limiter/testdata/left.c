/* Memory that its maker leaves while another process has it open counts from then on, and not after that process has let it go:
 * by threads in place of processes, each on a GPU of its own, so that each knows its sum. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipcleft.h"

enum { THREADS = 8, ROUNDS = 30000, HOLDER = 100 };

static struct vgpu_usage *usage;
static struct ipcleft known; /* the threads are one process here */
static int fd;

static uint64_t sum(int cell)
{
	uint64_t bytes = 0;

	for (uint32_t word = 0, words = ipcrecord_words(usage); word < words; word++)
		bytes += ipcleft_bytes(&known, usage, cell, word);
	return bytes;
}

static void expect(const char *when, int cell, uint64_t bytes)
{
	uint64_t is = sum(cell);

	sum((cell + 1) % THREADS); /* so that several threads note each sum */
	if (is == bytes)
		return;
	printf("%s: %llu, not %llu\n", when, (unsigned long long)is, (unsigned long long)bytes);
	exit(1);
}

static void *run(void *arg)
{
	int cell = (int)(size_t)arg;
	uint32_t maker = (uint32_t)cell, holder = HOLDER + maker;

	for (uint64_t i = 1; i <= ROUNDS; i++) {
		uint64_t bytes = i * 512, key = i * THREADS + maker;
		int record = ipcrecord_make(usage, fd, maker, cell, bytes, key);

		if (record < 0 || !ipcrecord_hold(usage, record, holder, key))
			exit(2);
		expect("shared", cell, 0);
		if (i % 7)
			ipcrecord_leave(usage, record);
		else
			ipcrecord_clear(usage, maker); /* it was killed */
		expect("left", cell, bytes);
		if (i % 5)
			ipcrecord_let_go(usage, record, holder);
		else
			ipcrecord_clear(usage, holder);
		expect("let go", cell, 0);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];

	fd = memfd_create("usage", 0);
	if (ftruncate(fd, sizeof(*usage)))
		return 2;
	usage = mmap(NULL, sizeof(*usage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (usage == MAP_FAILED)
		return 2;
	for (size_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, run, (void *)i);
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ipcrecord_clear(usage, 0);
	for (uint32_t word = 0; word < ipcrecord_words(usage); word++)
		if ((uint32_t)atomic_load(&usage->ipc_left[word]))
			puts("a bit stays");
	printf("at most %s\n", ipcrecord_high(usage) <= THREADS ? "one for each" : "more");
	return 0;
}
