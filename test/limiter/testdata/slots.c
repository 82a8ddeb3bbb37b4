/* Two processes' claims of one slot, played by two owners of this program on the
 * library's own sources: the helper threads run when they are let run. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "filelock.h"
#include "loader.h"
#include "process.h"
#include "slot.h"
#include "usage.h"

_Atomic uint32_t turn_beating;
void turn_beat(void) {}

static const char *path;

int usage_open(void) { return open(path, O_RDWR | O_CLOEXEC); }

static struct late { void *(*run)(void *); void *argument; sem_t gate; } late[8];
static int threads;

static void *wait_first(void *argument)
{
	struct late *l = argument;

	sem_wait(&l->gate);
	return l->run(l->argument);
}

static int create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *argument)
{
	struct late *l = &late[threads++];

	l->run = run;
	l->argument = argument;
	sem_init(&l->gate, 0, 0);
	return pthread_create(thread, NULL, wait_first, l);
}

void *loader_function(const char *name)
{
	static const struct { const char *name; void *function; } all[] = {
		{ "pthread_create", create }, { "pthread_detach", pthread_detach }, { "pthread_attr_init", pthread_attr_init },
		{ "pthread_attr_destroy", pthread_attr_destroy }, { "pthread_attr_setstacksize", pthread_attr_setstacksize },
		{ "pthread_sigmask", pthread_sigmask },
	};

	for (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!strcmp(all[i].name, name))
			return all[i].function;
	return NULL;
}

static int claim(struct vgpu_usage *u, struct owner *o, int then_close)
{
	int fd = usage_open(), slot = slot_claim(u, fd);

	owner_start(o, u, fd, slot);
	if (then_close)
		close(fd);
	return slot;
}

static int let_run(int thread, struct owner *o)
{
	sem_post(&late[thread].gate);
	return owner_wait(o);
}

static int number(struct vgpu_usage *u, struct owner *o)
{
	return (int)(o->slot - u->slots);
}

int main(int argc, char **argv)
{
	static struct owner first, second, third, fourth;

	path = argv[argc - 1];
	struct vgpu_usage *u = mmap(NULL, VGPU_USAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, usage_open(), 0);
	int a = claim(u, &first, 1), b = claim(u, &second, 0); /* the first has closed its descriptors */
	printf("claimed %d %d\n", a, b);
	a = let_run(0, &first);
	uint32_t word = u->slots[0].owner;
	b = let_run(1, &second);
	printf("owned %d %d\n", a, b);
	printf("second first: %d %d, words are %s\n", number(u, &second), number(u, &first),
	       u->slots[0].owner == word && u->slots[1].owner != word && u->slots[1].owner ? "their own" : "mixed up");
	printf("pids are %s\n", u->slots[0].pid == (uint32_t)getpid() && u->slots[1].pid == (uint32_t)getpid() ? "there" : "missing");
	/* The loser keeps no lock of the winner's slot, or no process could clear that slot later. */
	int fd = usage_open();
	printf("byte of 0 locked %d\n", filelock_taken(fd, VGPU_LOCK_SLOT(0)));
	printf("byte of 1 locked %d\n", filelock_taken(fd, VGPU_LOCK_SLOT(1)));

	/* The other order, and every other slot taken: the late one has none. */
	a = claim(u, &third, 1), b = claim(u, &fourth, 0);
	printf("claimed %d %d\n", a, b);
	for (int i = 3; i < VGPU_PROCESSES; i++)
		u->slots[i].owner = 1;
	b = let_run(3, &fourth);
	a = let_run(2, &third);
	printf("owned %d %d\n", b, a);
	printf("denied where no other is free\n");
	return 0;
}
