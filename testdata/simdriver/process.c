/* The process in the driver: cuInit, the visible devices, fork, the table of handles. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct process process;

static pthread_mutex_t objects_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static atomic_bool usable; /* cuInit succeeded, and this is not a forked child */
static bool forked;

void process_lock(void)
{
	pthread_mutex_lock(&objects_mutex);
}

void process_unlock(void)
{
	pthread_mutex_unlock(&objects_mutex);
}

static void before_fork(void)
{
	process_lock();
	state_lock_before_fork();
}

static void after_fork_parent(void)
{
	state_unlock_after_fork();
	process_unlock();
}

/* As with the real driver, the child can't use CUDA; the descriptor that it keeps keeps the parent's memory. */
static void after_fork_child(void)
{
	if (process.ready) {
		forked = true;
		atomic_store(&usable, false);
	}
	after_fork_parent();
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

CUresult from_errno(int err)
{
	switch (err) {
	case 0:
		return CUDA_SUCCESS;
	case ENOMEM:
		return CUDA_ERROR_OUT_OF_MEMORY;
	case ENOENT:
		return CUDA_ERROR_NO_DEVICE;
	case EPROTO:
		return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
	default:
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
}

CUresult enter(const char *symbol)
{
	int error;

	if (!atomic_load_explicit(&usable, memory_order_acquire))
		return CUDA_ERROR_NOT_INITIALIZED;
	if (fail_consume(&process.view, symbol, &error))
		return (CUresult)error;
	return CUDA_SUCCESS;
}

struct card *device_card(CUdevice dev)
{
	if (dev < 0 || (unsigned)dev >= process.device_count)
		return NULL;
	return &process.view.s->cards[process.devices[dev].card];
}

bool card_lost(unsigned card, uint32_t epoch)
{
	struct card *c = &process.view.s->cards[card];

	return atomic_load(&c->presence) != CARD_PRESENT || atomic_load(&c->epoch) != epoch;
}

struct candidate {
	unsigned card;
	uint64_t speed;
	uint64_t pci;
};

static int faster_first(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->speed != y->speed)
		return x->speed < y->speed ? 1 : -1;
	return x->pci < y->pci ? -1 : x->pci > y->pci;
}

/* CUDA numbers the fastest card 0 unless $CUDA_DEVICE_ORDER is PCI_BUS_ID. NVML always goes by PCI bus. */
static unsigned list_visible(const struct state *s, struct candidate *list)
{
	const char *order = getenv("CUDA_DEVICE_ORDER");
	bool by_bus = order && !strcmp(order, "PCI_BUS_ID");
	unsigned n = 0;

	for (unsigned i = 0; i < s->card_count; i++) {
		const struct card *c = &s->cards[i];

		if (!card_visible(c) || atomic_load(&s->cards[i].presence) != CARD_PRESENT)
			continue;
		list[n].card = i;
		list[n].speed = by_bus ? 0 : (uint64_t)c->sm_count * c->cores_per_sm * c->clock_khz;
		list[n].pci = (uint64_t)c->pci_domain << 32 | c->pci_bus << 8 | c->pci_device;
		n++;
	}
	qsort(list, n, sizeof(*list), faster_first);
	return n;
}

/* Index of the one card that the token names, or -1. */
static int find_candidate(const struct state *s, const struct candidate *list, unsigned n, const char *token)
{
	char uuid[UUID_TEXT];
	char *end;
	long index;
	int found = -1;

	if (strncmp(token, "GPU-", 4) != 0) {
		index = strtol(token, &end, 10);
		return end != token && !*end && index >= 0 && index < (long)n ? (int)index : -1;
	}
	for (unsigned i = 0; i < n; i++) {
		uuid_format(s->cards[list[i].card].uuid, uuid);
		if (strncmp(uuid, token, strlen(token)) != 0)
			continue;
		if (found >= 0)
			return -1;
		found = (int)i;
	}
	return found;
}

/* A token that names no card ends the list; one that names a card again makes all of it void. */
static unsigned apply_visible_devices(const struct state *s, const struct candidate *list, unsigned n, unsigned *cards)
{
	const char *text = getenv("CUDA_VISIBLE_DEVICES");
	char *copy = text ? strdup(text) : NULL;
	char *rest = copy, *token;
	unsigned count = 0;

	if (!copy) {
		for (; count < n; count++)
			cards[count] = list[count].card;
		return n;
	}
	while ((token = strsep(&rest, ","))) {
		int i = find_candidate(s, list, n, token + strspn(token, " "));

		if (i < 0)
			break;
		for (unsigned j = 0; j < count; j++) {
			if (cards[j] == list[i].card) {
				free(copy);
				return 0;
			}
		}
		cards[count++] = list[i].card;
	}
	free(copy);
	return count;
}

static CUresult find_devices(void)
{
	struct candidate list[MAX_CARDS];
	unsigned cards[MAX_CARDS];
	unsigned n = list_visible(process.view.s, list);

	n = apply_visible_devices(process.view.s, list, n, cards);
	for (unsigned i = 0; i < n; i++) {
		struct device *d = &process.devices[i];

		memset(d, 0, sizeof(*d));
		d->card = cards[i];
		d->epoch = atomic_load(&process.view.s->cards[cards[i]].epoch);
		d->primary.card = cards[i];
		d->primary.device = (CUdevice)i;
		d->primary.primary = true;
	}
	process.device_count = n;
	return n ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static void read_kernel_time(void)
{
	const char *text = getenv("SIMGPU_KERNEL_US");

	process.kernel_ns_set = text != NULL;
	process.kernel_ns = text ? strtoull(text, NULL, 10) * 1000 : 0;
}

static CUresult initialise(void)
{
	int error;
	CUresult r = from_errno(state_open(&process.view, NULL));

	if (r)
		return r;
	if (fail_consume(&process.view, "cuInit", &error))
		r = (CUresult)error;
	if (!r)
		r = find_devices();
	if (!r)
		r = from_errno(client_join(&process.view));
	if (r) {
		state_close(&process.view);
		return r;
	}
	read_kernel_time();
	pthread_once(&fork_once, watch_forks);
	process.ready = true;
	atomic_store_explicit(&usable, true, memory_order_release);
	return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags)
{
	CUresult r = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	if (forked)
		r = CUDA_ERROR_NOT_INITIALIZED;
	else if (!process.ready)
		r = initialise();
	else
		r = enter("cuInit");
	process_unlock();
	return r;
}

CUresult cuDriverGetVersion(int *version)
{
	struct view view;
	CUresult r;

	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	if (process.ready) {
		*version = (int)process.view.s->cuda_version;
		return CUDA_SUCCESS;
	}
	*version = 0;
	r = from_errno(state_open(&view, NULL));
	if (!r) {
		*version = (int)view.s->cuda_version;
		state_close(&view);
	}
	return r == CUDA_ERROR_NO_DEVICE ? CUDA_SUCCESS : r; /* documented: 0 where no driver is */
}
