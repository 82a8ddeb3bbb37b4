/* NVML names processes by PIDs that may be of any namespace, and lists those of others. So a process
 * finds its own entry by moving it: it takes some pages for a moment, a number of them that
 * no other process can know. An entry is a candidate if it rose and fell by just that, twice. Of several
 * candidates the least counts. So no figure of another process is ever charged that is larger than this
 * process's own. */
#include "residue.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "hooks.h"
#include "least.h"
#include "limits.h"
#include "loader.h"
#include "process.h"
#include "reserve.h"
#include "thread.h"

enum looking { IDLE, LOOKS, ENDED };

#ifndef RESIDUE_FIRST_US /* tests make it long: they don't depend on the machine's load */
#define RESIDUE_FIRST_US 300000
#endif

enum {
	STACK_BYTES = 1 << 20, /* NVML's needs are not documented */
	PERIOD_NS = 999999999,
	FIRST_US = RESIDUE_FIRST_US, /* an allocation waits that long at most for the first look */
	ASK_NS = 5000000,
	LOOKS_OF_ONE_STEP = 3,
	BETWEEN_US = 10000,
	MOST_PAGES = 15,
	MOST_PAUSE = 15,
	ATTEMPTS = 2, /* no allocation waits for more */
	EXIT_US = 1000000, /* a program's exit waits that long at most for a look that is under way */
};

static uint64_t some_pages(uint64_t page)
{
	uint64_t random;

	if (syscall(SYS_getrandom, &random, sizeof(random), 1 /* GRND_NONBLOCK */) != sizeof(random))
		random = clock_ns() / 64;
	return (1 + random % MOST_PAGES) * page;
}

static const struct figure *find(const struct figure *list, int count, const struct figure *entry)
{
	for (int i = 0; i < count; i++)
		if (list[i].pid == entry->pid && list[i].list == entry->list)
			return &list[i];
	return NULL;
}

struct probe {
	struct figure before[FIGURES_MOST], during[FIGURES_MOST], after[FIGURES_MOST];
	int n_before, n_during, n_after;
};

/* False: the memory can't be had, or not given back. */
static bool take_pages(struct probe *probe, struct residue_gpu *gpu, const CUmemAllocationProp *prop, uint64_t bytes)
{
	CUmemGenericAllocationHandle handle;

	if (REAL(cuMemCreate)(&handle, bytes, prop, 0) != CUDA_SUCCESS)
		return false;
	probe->n_during = figures_read(gpu->device, probe->during);
	return REAL(cuMemRelease)(handle) == CUDA_SUCCESS;
}

/* Returns the bytes by which this process's entry has moved; 0: nothing is known. */
static uint64_t move(struct process *p, int cell, struct probe *probe)
{
	struct residue_gpu *gpu = &p->residue.gpus[cell];
	struct { CUmemAllocationProp prop; unsigned char rest[112]; } place = { 0 };
	size_t page = 0;

	probe->n_before = probe->n_during = probe->n_after = 0;
	place.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	place.prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	place.prop.location.id = atomic_load_explicit(&gpu->dev, memory_order_relaxed);
	if (REAL(cuMemGetAllocationGranularity)(&page, &place.prop, 0) != CUDA_SUCCESS || !page)
		return 0;
	uint64_t bytes = some_pages(page);
	probe->n_before = figures_read(gpu->device, probe->before);
	if (probe->n_before <= 0 || !reserve_briefly(p, cell, bytes))
		return 0;
	bool done = take_pages(probe, gpu, &place.prop, bytes);
	reserve_briefly_undo(p, cell, bytes);
	probe->n_after = done ? figures_read(gpu->device, probe->after) : -1;
	return done ? bytes : 0;
}

static bool has_moved(const struct probe *probe, const struct figure *entry, uint64_t bytes)
{
	const struct figure *before = find(probe->before, probe->n_before, entry);
	const struct figure *during = find(probe->during, probe->n_during, entry);
	const struct figure *after = find(probe->after, probe->n_after, entry);

	return bytes && before && during && after && during->bytes - before->bytes == bytes && after->bytes == before->bytes;
}

/* Keeps of the candidates those that have moved. first: all entries are candidates. */
static void keep_moved(struct residue_gpu *gpu, const struct probe *probe, uint64_t bytes, bool first)
{
	const struct figure *from = first ? probe->before : gpu->own;
	int count = first ? probe->n_before : gpu->names, kept = 0;

	for (int i = 0; i < count && kept < RESIDUE_NAMES; i++)
		if (has_moved(probe, &from[i], bytes))
			gpu->own[kept++] = from[i];
	gpu->names = kept;
}

static bool move_twice(struct process *p, int cell)
{
	struct residue_gpu *gpu = &p->residue.gpus[cell];
	struct probe probe;

	for (int i = 0; i < 2 && (i == 0 || gpu->names); i++) {
		uint64_t bytes = move(p, cell, &probe);

		keep_moved(gpu, &probe, bytes, i == 0);
	}
	return gpu->names > 0;
}

/* Each failed attempt doubles the number of steps until the next. */
static bool is_known(struct process *p, int cell)
{
	struct residue_gpu *gpu = &p->residue.gpus[cell];

	if (gpu->names)
		return true;
	if (gpu->wait) {
		gpu->wait--;
		return false;
	}
	if (move_twice(p, cell)) {
		gpu->pause = 0;
		return true;
	}
	gpu->wait = gpu->pause;
	gpu->pause = gpu->pause * 2 + 1 < MOST_PAUSE ? gpu->pause * 2 + 1 : MOST_PAUSE;
	return false;
}

/* What the driver counts for the process, which is not what may be in the host's memory. */
static uint64_t counted(struct process *p, int cell)
{
	struct vgpu_cell *own = &p->owner.slot->cells[cell];
	/* seq_cst, in this order: memory that is spilled meanwhile counts as on the GPU. */
	uint64_t spilled = atomic_load(&own->spilled), committed = atomic_load(&own->committed);

	committed -= least(committed, p->residue.gpus[cell].charged);
	return committed - least(committed, spilled);
}

/* The least figure of the candidates. One that is not listed any more is none, but for the last: then this
 * process has nothing on the GPU. */
static uint64_t figure_of(struct residue_gpu *gpu, const struct figure *list, int count)
{
	uint64_t bytes = UINT64_MAX;
	int kept = 0;

	for (int i = 0; i < gpu->names; i++) {
		const struct figure *entry = find(list, count, &gpu->own[i]);

		if (!entry)
			continue;
		bytes = least(bytes, entry->bytes);
		gpu->own[kept++] = gpu->own[i];
	}
	gpu->names = kept;
	return kept ? bytes : 0;
}

/* The driver counts an allocation after it is charged, and until it is given back: so a difference that
 * comes from calls under way is not too large. False: the driver does not report it. */
static bool look(struct process *p, int cell, uint64_t *beyond)
{
	struct residue_gpu *gpu = &p->residue.gpus[cell];
	struct figure list[FIGURES_MOST];
	uint64_t before = counted(p, cell);
	int count = figures_read(gpu->device, list);

	if (count < 0)
		return false;
	uint64_t figure = figure_of(gpu, list, count), charges = most(before, counted(p, cell));
	*beyond = figure > charges ? figure - charges : 0;
	return true;
}

/* Which of a container's processes the driver counts an import for is not documented. */
static bool has_imports(struct process *p)
{
	for (int i = 0; i < VGPU_MAX_IMPORTS; i++)
		if (atomic_load(&p->owner.slot->imports[i]))
			return true;
	return false;
}

static void settle(struct process *p, int cell, uint64_t bytes)
{
	struct residue_gpu *gpu = &p->residue.gpus[cell];
	_Atomic uint64_t *part = &p->owner.slot->cells[cell].context;

	/* Relaxed: the part is only displayed. */
	if (bytes > gpu->charged) {
		reserve_force(p, cell, bytes - gpu->charged);
		atomic_fetch_add_explicit(part, bytes - gpu->charged, memory_order_relaxed);
	} else if (bytes < gpu->charged) {
		atomic_fetch_sub_explicit(part, gpu->charged - bytes, memory_order_relaxed);
		reserve_undo(p, cell, gpu->charged - bytes);
	}
	gpu->charged = bytes;
}

/* What the host has measured reduces the limit already. It has never measured what is charged, and nothing yet of a
 * process that is new. */
static uint64_t without_host(int cell, uint64_t beyond, uint64_t charged)
{
	return beyond > charged ? beyond - least(beyond - charged, limits_residue_bytes(cell)) : beyond;
}

/* Memory that comes and goes between a charge and a look would be residue of one moment: all looks must
 * show more, or less, than is charged. */
static bool correct(struct process *p, int cell, bool is_new)
{
	uint64_t had = p->residue.gpus[cell].charged, low = UINT64_MAX, high = 0, beyond;

	for (int i = 0; i < LOOKS_OF_ONE_STEP; i++) {
		if (i > 0)
			clock_sleep_us(BETWEEN_US);
		if (!look(p, cell, &beyond))
			return false;
		if (!is_new)
			beyond = without_host(cell, beyond, had);
		low = least(low, beyond);
		high = most(high, beyond);
		if (low <= had && high >= had)
			return true;
	}
	if (high < had)
		settle(p, cell, high);
	else if (!has_imports(p))
		settle(p, cell, low);
	return true;
}

static void wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* A later context may have been measured meanwhile. Release: the allocation that waits for it sees what is charged. */
static bool raise_looked(struct residue_gpu *gpu, uint32_t contexts)
{
	uint32_t seen = atomic_load_explicit(&gpu->looked, memory_order_relaxed);

	while ((int32_t)(contexts - seen) > 0)
		if (atomic_compare_exchange_weak_explicit(&gpu->looked, &seen, contexts, memory_order_release, memory_order_relaxed))
			return true;
	return false;
}

static void step_on(struct process *p, int cell)
{
	struct residue_gpu *gpu = &p->residue.gpus[cell];
	/* Before the look: a context that is created meanwhile has its own. */
	uint32_t contexts = atomic_load(&gpu->contexts);
	bool done = true;

	if (!limits_measured_first(cell)) { /* the host's look has this process's share of it, and these bytes no more */
		settle(p, cell, 0);
		atomic_fetch_and_explicit(&p->residue.cells, ~((uint32_t)1 << cell), memory_order_relaxed);
	} else if (gpu->device || figures_device(limits_name(cell), &gpu->device)) {
		bool is_new = contexts == 1 && contexts != atomic_load_explicit(&gpu->looked, memory_order_relaxed);

		done = is_known(p, cell) && correct(p, cell, is_new);
		gpu->failed = done ? 0 : gpu->failed + 1;
		done |= gpu->failed >= ATTEMPTS;
	}
	if (done && raise_looked(gpu, contexts))
		wake(&gpu->looked);
}

/* The host sees what a context grows by later. But not what is charged here: so it is followed here, too. */
static bool is_due(struct process *p, int cell)
{
	struct residue_gpu *gpu = &p->residue.gpus[cell];

	return limits_unmeasured(cell) || gpu->charged ||
	       atomic_load(&gpu->contexts) != atomic_load_explicit(&gpu->looked, memory_order_relaxed);
}

static bool becomes(_Atomic uint32_t *word, uint32_t from, uint32_t to)
{
	/* Acquire and release: only the order of looks and exit matters. */
	return atomic_compare_exchange_strong_explicit(word, &from, to, memory_order_acq_rel, memory_order_relaxed);
}

/* NVML's and the driver's own data end after this. A child of fork has no thread to wait for. */
static void at_exit(void *process)
{
	struct process *p = process;
	uint64_t until = clock_us() + EXIT_US;

	if (p != process_peek())
		return;
	while (!becomes(&p->residue.looking, IDLE, ENDED) && clock_us() < until)
		clock_sleep_us(1000);
}

static void begin(struct process *p)
{
	int (*register_exit)(void (*)(void *), void *, void *) = loader_function("__cxa_atexit");
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* the pages are part of no capture, and end none */

	if (hook_exists(HOOK_cuThreadExchangeStreamCaptureMode))
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	if (register_exit)
		register_exit(at_exit, p, NULL);
}

static void ask(struct residue *r)
{
	atomic_fetch_add(&r->asked, 1);
	wake(&r->asked);
}

void residue_wait(struct process *p, int cell)
{
	struct residue_gpu *gpu = &p->residue.gpus[cell];
	uint32_t contexts = atomic_load(&gpu->contexts);
	const struct timespec again = { 0, ASK_NS };
	int saved = errno;

	for (uint64_t until = clock_us() + FIRST_US; clock_us() < until;) {
		/* Acquire: see raise_looked(). */
		uint32_t looked = atomic_load_explicit(&gpu->looked, memory_order_acquire);

		if ((int32_t)(looked - contexts) >= 0)
			return;
		ask(&p->residue);
		syscall(SYS_futex, &gpu->looked, FUTEX_WAIT_PRIVATE, looked, &again, NULL, 0);
		errno = saved;
	}
	raise_looked(gpu, contexts);
}

static void *watch(void *process)
{
	struct process *p = process;
	struct residue *r = &p->residue;
	uint32_t asked = 0;
	bool due = true;

	begin(p);
	for (;;) {
		const struct timespec period = { 0, PERIOD_NS };

		syscall(SYS_futex, &r->asked, FUTEX_WAIT_PRIVATE, asked, due ? &period : NULL, NULL, 0);
		asked = atomic_load(&r->asked);
		/* Acquire: the GPU's number was written before its bit. */
		uint32_t cells = atomic_load_explicit(&r->cells, memory_order_acquire);
		if (!becomes(&r->looking, IDLE, LOOKS))
			return NULL;
		due = false;
		for (int cell = 0; cell < VGPU_MAX_DEVICES; cell++) {
			if (!(cells & (uint32_t)1 << cell) || !is_due(p, cell))
				continue;
			step_on(p, cell);
			due |= is_due(p, cell);
		}
		becomes(&r->looking, LOOKS, IDLE);
	}
}

void residue_watch(struct process *p, int cell, CUdevice dev)
{
	struct residue *r = &p->residue;
	uint32_t bit = (uint32_t)1 << cell;

	if (!limits_measured_first(cell) || limits_mig())
		return;
	/* Relaxed: another thread that sets the bit does what follows. */
	if (atomic_load_explicit(&r->cells, memory_order_relaxed) & bit)
		return;
	atomic_store_explicit(&r->gpus[cell].dev, dev, memory_order_relaxed);
	atomic_fetch_or_explicit(&r->cells, bit, memory_order_release);
	if (!atomic_exchange_explicit(&r->started, 1, memory_order_relaxed))
		thread_start(watch, p, STACK_BYTES);
}

void residue_made(struct process *p, int cell)
{
	struct residue *r = &p->residue;

	if (!(atomic_load_explicit(&r->cells, memory_order_relaxed) & (uint32_t)1 << cell))
		return;
	atomic_fetch_add(&r->gpus[cell].contexts, 1);
	ask(r);
}
