/* What a context grows by when the program sets its limits: the device heap, printf's buffer, and
 * the stacks of all threads that the GPU can run at a time. It is charged before the driver takes it, and ends
 * with the context. A driver takes the heap at the first launch of a kernel that calls malloc, which no call shows: so it was
 * charged earlier. What stacks and the buffer take by default is in the size of a new context. */
#include "charge.h"
#include "green.h"
#include "hooks.h"
#include "limits.h"
#include "reserve.h"

struct growth {
	struct process *process;
	struct ledger_entry entry; /* with what is charged during the call */
	CUdevice dev;
	int limit;
	uint64_t had, base;
};

static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t product;

	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t threads_of(CUdevice dev)
{
	int multiprocessors = 0, each = 0;

	if (REAL(cuDeviceGetAttribute)(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev) != CUDA_SUCCESS ||
	    REAL(cuDeviceGetAttribute)(&each, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, dev) != CUDA_SUCCESS)
		return 0; /* what it takes is residue then */
	return (uint64_t)multiprocessors * (uint64_t)each;
}

static uint64_t whole(const struct growth *g, uint64_t value)
{
	uint64_t page = limits_pages(g->entry.cell).page;
	uint64_t bytes = g->limit == CU_LIMIT_STACK_SIZE ? times(value, threads_of(g->dev)) : value;

	return !page || bytes > UINT64_MAX - page ? bytes : (bytes + page - 1) / page * page;
}

/* A heap of the default size is not in a new context, and is residue. Any other is charged with all it takes: a page
 * more than its size (measured). */
static uint64_t beyond_base(const struct growth *g, uint64_t value)
{
	if (value <= g->base)
		return 0;
	return g->limit == CU_LIMIT_MALLOC_HEAP_SIZE ? whole(g, value) + limits_pages(g->entry.cell).page : whole(g, value) - whole(g, g->base);
}

/* The value of a new context, which is the same for all contexts on a GPU: the first that is read.
 * It is read before any call of this process that changes it. */
static CUresult read_base(struct growth *g)
{
	static _Atomic uint64_t first[VGPU_MAX_DEVICES][CU_LIMITS_THAT_TAKE]; /* plus 1; 0: not read yet */
	_Atomic uint64_t *known = &first[g->entry.cell][g->limit];
	uint64_t none = 0;
	size_t value;

	CUresult result = REAL(cuCtxGetLimit)(&value, g->limit);
	if (result != CUDA_SUCCESS)
		return result;
	/* cppcheck-suppress uninitvar ; cuCtxGetLimit has set it */
	atomic_compare_exchange_strong(known, &none, (uint64_t)value + 1);
	g->base = atomic_load(known) - 1;
	return CUDA_SUCCESS;
}

static CUresult look(struct growth *g, int limit)
{
	struct here here;
	CUresult result = device_here(&here);

	if (result == CUDA_SUCCESS)
		result = REAL(cuCtxGetDevice)(&g->dev);
	if (result != CUDA_SUCCESS)
		return result;
	g->process = here.cell < 0 ? NULL : process_get();
	if (!g->process)
		return CUDA_ERROR_NOT_INITIALIZED;
	g->limit = limit;
	here.context = green_owner(g->process, here.context);
	g->entry = (struct ledger_entry){ .key = (uint64_t)(uintptr_t)here.context ^ (uint64_t)(limit + 1) << 52,
		                          .context = (uintptr_t)here.context,
		                          .kind = LEDGER_GROWTH,
		                          .cell = (uint64_t)here.cell };
	return read_base(g);
}

/* Charges what the value takes beyond what is charged already. */
static CUresult begin(struct growth *g, uint64_t value)
{
	struct ledger *ledger = &g->process->ledger;
	uint64_t bytes = beyond_base(g, value);
	struct ledger_entry found = { .size = 0 };
	struct charge charge;

	g->had = ledger_find(ledger, LEDGER_GROWTH, g->entry.key, &found) ? found.size : 0;
	g->entry.size = bytes > g->had ? bytes : g->had;
	if (bytes <= g->had)
		return CUDA_SUCCESS;
	CUresult result = charge_begin_on(&charge, g->dev, bytes - g->had);
	if (result != CUDA_SUCCESS)
		return result;
	if (g->had && !ledger_take(ledger, LEDGER_GROWTH, g->entry.key, &found)) {
		charge_cancel(&charge);
		return CUDA_ERROR_INVALID_CONTEXT; /* it has ended meanwhile */
	}
	if (ledger_put(ledger, g->entry)) { /* if there was an entry, it was just removed, so there is room */
		charge_hold_context(&charge);
		return CUDA_SUCCESS;
	}
	charge_cancel(&charge);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Documented: the driver may round the value or keep it within bounds. What it takes then is taken
 * already, and charged whether it fits or not. */
static uint64_t taken(const struct growth *g, CUresult result)
{
	size_t value;

	if (result != CUDA_SUCCESS)
		return g->had;
	return REAL(cuCtxGetLimit)(&value, g->limit) == CUDA_SUCCESS ? beyond_base(g, value) : g->entry.size;
}

static void charge_more(struct growth *g, uint64_t bytes)
{
	struct charge charge = { .process = g->process, .here = { NULL, g->entry.cell }, .bytes = bytes };

	if (!reserve(g->process, g->entry.cell, bytes))
		reserve_force(g->process, g->entry.cell, bytes);
	charge_hold_context(&charge);
}

static CUresult end(struct growth *g, CUresult result)
{
	struct ledger_entry entry;
	uint64_t bytes = taken(g, result);

	if (bytes == g->entry.size)
		return result;
	if (g->entry.size && !ledger_take(&g->process->ledger, LEDGER_GROWTH, g->entry.key, &entry))
		return result; /* the context has ended meanwhile */
	if (bytes > g->entry.size)
		charge_more(g, bytes - g->entry.size);
	else
		charge_give_context(g->process, g->entry.cell, g->entry.size - bytes);
	g->entry.size = bytes;
	if (bytes)
		ledger_put(&g->process->ledger, g->entry);
	return result;
}

/* The lock is held across the driver's call: what is charged last must be what the driver has done
 * last. The driver calls no function of this library from this one. */
CUresult cuCtxSetLimit(int limit, size_t value)
{
	struct growth g;

	if (limit < 0 || limit >= CU_LIMITS_THAT_TAKE)
		return REAL(cuCtxSetLimit)(limit, value);
	CUresult result = look(&g, limit);
	if (result != CUDA_SUCCESS)
		return result;
	lock_take(&g.process->growing);
	result = begin(&g, value);
	if (result == CUDA_SUCCESS)
		result = end(&g, REAL(cuCtxSetLimit)(limit, value));
	lock_give(&g.process->growing);
	return result;
}
