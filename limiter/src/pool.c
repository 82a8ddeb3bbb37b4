#include "pool.h"

#include "capture.h"
#include "device.h"
#include "hooks.h"
#include "limits.h"
#include "process.h"

enum { GONE = 1, FIRST_CHUNK = 32 << 20 };

struct pool *pool_find(struct process *p, CUmemoryPool handle)
{
	/* Acquire, both: the fields of a pool were written before its handle. */
	uint32_t high = atomic_load_explicit(&p->pools.high, memory_order_acquire);

	for (uint32_t i = 0; i < high; i++)
		if (atomic_load_explicit(&p->pools.pool[i].handle, memory_order_acquire) == (uintptr_t)handle)
			return (uintptr_t)handle > GONE ? &p->pools.pool[i] : NULL;
	return NULL;
}

static struct pool *free_place(struct pools *all)
{
	uint32_t high = atomic_load_explicit(&all->high, memory_order_relaxed);

	for (uint32_t i = 0; i < high; i++)
		if (atomic_load_explicit(&all->pool[i].handle, memory_order_relaxed) == GONE)
			return &all->pool[i];
	if (high == POOLS)
		return NULL;
	/* Release: pairs with pool_find; the entry itself is not used yet. */
	atomic_store_explicit(&all->high, high + 1, memory_order_release);
	return &all->pool[high];
}

struct pool *pool_add(struct process *p, CUmemoryPool handle, enum pool_state state, int cell)
{
	lock_take(&p->pools.lock);
	struct pool *pool = pool_find(p, handle); /* another thread may have been faster */
	bool fresh = !pool && (pool = free_place(&p->pools));
	if (fresh) {
		account_open(&pool->account, ACCOUNT_POOL, (uintptr_t)handle, cell);
		/* Relaxed: the release below orders them. */
		atomic_store_explicit(&pool->chunk, FIRST_CHUNK, memory_order_relaxed);
		atomic_store_explicit(&pool->state, state, memory_order_relaxed);
		atomic_store_explicit(&pool->handle, (uintptr_t)handle, memory_order_release);
	}
	lock_give(&p->pools.lock);
	if (fresh && state == POOL_CHARGED)
		limits_warn_unmovable(cell);
	return pool;
}

struct pool *pool_known(struct process *p, CUmemoryPool handle, CUdevice dev)
{
	struct pool *pool = pool_find(p, handle);
	CUmemoryPool fixed = NULL;

	if (__builtin_expect(pool != NULL, 1))
		return pool;
	if (!handle || REAL(cuDeviceGetDefaultMemPool)(&fixed, dev) != CUDA_SUCCESS || fixed != handle || device_cell(dev) < 0)
		return NULL;
	return pool_add(p, handle, POOL_CHARGED, device_cell(dev));
}

struct account *graph_account(struct process *p, CUdevice dev)
{
	int cell = device_cell(dev);

	if (cell < 0)
		return NULL;
	account_open(&p->pools.graph[cell], ACCOUNT_GRAPH, (uintptr_t)dev, cell);
	return &p->pools.graph[cell];
}

void pool_destroy_if_empty(struct process *p, struct pool *pool)
{
	/* All under the lock, because the entry may have become another pool's since the caller
	 * read it. And before the driver is called, because it may then reuse the handle. */
	lock_take(&p->pools.lock);
	uintptr_t handle = atomic_load_explicit(&pool->handle, memory_order_relaxed);
	bool ends = handle > GONE && atomic_load_explicit(&pool->state, memory_order_relaxed) == POOL_ENDED &&
	            account_close(&pool->account);
	if (ends)
		atomic_store_explicit(&pool->handle, GONE, memory_order_release);
	lock_give(&p->pools.lock);
	if (ends)
		REAL(cuMemPoolDestroy)((CUmemoryPool)handle);
}

static bool needs_refresh(struct pool *pool)
{
	uint32_t state = atomic_load_explicit(&pool->state, memory_order_relaxed);

	return atomic_load_explicit(&pool->handle, memory_order_acquire) > GONE &&
	       (state == POOL_ENDED || (state == POOL_CHARGED && !account_empty(&pool->account)));
}

static void refresh(struct process *p, struct pool *pool)
{
	account_refresh(p, &pool->account);
	pool_destroy_if_empty(p, pool);
}

void pools_refresh(struct process *p, int cell)
{
	freeing_collect(p);
	uint32_t high = atomic_load_explicit(&p->pools.high, memory_order_acquire);

	for (uint32_t i = 0; i < high; i++) {
		struct pool *pool = &p->pools.pool[i];

		if (needs_refresh(pool) && (cell < 0 || pool->account.cell == cell))
			refresh(p, pool);
	}
}

void pools_may_have_shrunk(void)
{
	struct process *p = process_peek();

	if (p)
		pools_refresh(p, -1);
}

static void trim(struct process *p, struct pool *pool, uint64_t bytes)
{
	uint64_t has = atomic_load_explicit(&pool->account.confirmed, memory_order_relaxed);

	if (account_hold(&pool->account)) {
		REAL(cuMemPoolTrimTo)((CUmemoryPool)pool->account.object, has > bytes ? has - bytes : 0);
		account_release(&pool->account);
	}
	refresh(p, pool);
}

bool pools_make_room(struct process *p, int cell, uint64_t bytes)
{
	uint32_t high = atomic_load_explicit(&p->pools.high, memory_order_acquire);
	struct account *graph = &p->pools.graph[cell];
	bool any = freeing_collect(p);

	if (!high && account_empty(graph))
		return any;
	int mode = capture_relax(CU_STREAM_CAPTURE_MODE_RELAXED);
	for (uint32_t i = 0; i < high; i++) {
		struct pool *pool = &p->pools.pool[i];

		if (!needs_refresh(pool) || pool->account.cell != cell)
			continue;
		trim(p, pool, bytes);
		any = true;
	}
	if (!account_empty(graph)) {
		REAL(cuDeviceGraphMemTrim)((CUdevice)graph->object);
		account_refresh(p, graph);
		any = true;
	}
	capture_relax(mode);
	return any;
}
