#include "account.h"

#include "capture.h"
#include "hooks.h"
#include "process.h"
#include "reserve.h"

static CUresult query_driver(const struct account *a, uint64_t *reserved)
{
	if (a->kind == ACCOUNT_POOL)
		return REAL(cuMemPoolGetAttribute)((CUmemoryPool)a->object, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserved);
	return REAL(cuDeviceGetGraphMemAttribute)((CUdevice)a->object, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, reserved);
}

/* No manual states that this query is safe while a stream is captured. */
static CUresult query(const struct account *a, uint64_t *reserved)
{
	if (!capture_any())
		return query_driver(a, reserved);
	int mode = capture_relax(CU_STREAM_CAPTURE_MODE_RELAXED);
	CUresult result = query_driver(a, reserved);
	capture_relax(mode);
	return result;
}

/* Updates the cell's split, which is only displayed: relaxed, because no decision depends on
 * it. It contains the confirmed bytes, not those in flight. */
static void add_to_split(struct process *p, int cell, int kind, uint64_t more, uint64_t less)
{
	struct vgpu_cell *c = &p->owner.slot->cells[cell];

	if (more != less)
		atomic_fetch_add_explicit(kind == ACCOUNT_POOL ? &c->pool : &c->graph, more - less, memory_order_relaxed);
}

/* Only with the lock held. */
static uint64_t confirmed(const struct account *a)
{
	return atomic_load_explicit(&a->confirmed, memory_order_relaxed);
}

static void set_confirmed(struct account *a, uint64_t bytes)
{
	atomic_store_explicit(&a->confirmed, bytes, memory_order_relaxed);
}

bool account_begin(struct process *p, struct account *a, uint64_t bytes)
{
	if (!reserve(p, a->cell, bytes))
		return false;
	/* Relaxed: a thread that sees the memory of this call sees it in the driver's answer,
	 * and the driver is called after this. */
	atomic_fetch_add_explicit(&a->in_flight, bytes, memory_order_relaxed);
	return true;
}

/* The driver has more than is charged although no call is under way: a call added more than
 * its estimate. The memory is taken already, so it is charged whether it fits or not. */
static bool charge_excess(struct process *p, struct account *a, uint64_t bytes)
{
	bool fits = reserve(p, a->cell, bytes);

	if (!fits)
		reserve_force(p, a->cell, bytes);
	add_to_split(p, a->cell, a->kind, bytes, 0);
	return fits;
}

void account_open(struct account *a, enum account_kind kind, uintptr_t object, int cell)
{
	lock_take(&a->lock);
	if (a->kind != (int)kind || a->object != object || a->cell != cell) {
		a->kind = kind;
		a->object = object;
		a->cell = cell;
	}
	a->closed = false;
	lock_give(&a->lock);
}

bool account_hold(struct account *a)
{
	lock_take(&a->lock);
	bool open = !a->closed;
	a->queries += open;
	lock_give(&a->lock);
	return open;
}

void account_release(struct account *a)
{
	lock_take(&a->lock);
	a->queries--;
	lock_give(&a->lock);
}

bool account_close(struct account *a)
{
	lock_take(&a->lock);
	bool idle = !a->closed && !a->queries && !a->in_flight && !confirmed(a);
	a->closed |= idle;
	lock_give(&a->lock);
	return idle;
}

/* Queries the driver, and sets `confirmed` to the answer if no call has ended since. Under the
 * lock, the caller has incremented `queries`, read `ended`, and added confirmed_now to
 * `confirmed`. Returns how many bytes more than the charge the driver has. */
static uint64_t refresh(struct process *p, struct account *a, uint64_t ended, uint64_t confirmed_now)
{
	uint64_t reserved = 0, back = 0, more = 0;
	int cell = a->cell, kind = a->kind; /* they do not change while `queries` is not 0 */

	for (bool sure = false;; sure = true) {
		bool answered = query(a, &reserved) == CUDA_SUCCESS; /* if not, it stays charged, which is safe */

		lock_take(&a->lock);
		uint64_t had = confirmed(a), in_flight = atomic_load_explicit(&a->in_flight, memory_order_relaxed);
		bool counts = answered && a->ended == ended && !a->pinned;
		if (counts && reserved > had && !in_flight && !sure) {
			lock_give(&a->lock); /* another thread may have given it back since: query again */
			continue;
		}
		if (counts && reserved < had)
			back = had - reserved;
		if (counts && reserved > had && !in_flight)
			more = reserved - had;
		if (counts && !reserved && !in_flight)
			a->destroyed = 0;
		set_confirmed(a, had - back + more);
		a->queries--;
		lock_give(&a->lock);
		break;
	}
	if (back)
		reserve_undo(p, cell, back);
	add_to_split(p, cell, kind, confirmed_now, back);
	return more;
}

bool account_end(struct process *p, struct account *a, uint64_t bytes, uint64_t *more)
{
	lock_take(&a->lock);
	set_confirmed(a, confirmed(a) + bytes);
	atomic_fetch_sub_explicit(&a->in_flight, bytes, memory_order_relaxed);
	if (a->kind == ACCOUNT_GRAPH)
		a->pinned--;
	uint64_t ended = ++a->ended;
	a->queries++;
	lock_give(&a->lock);
	uint64_t unexpected = refresh(p, a, ended, bytes);
	if (more)
		*more = unexpected;
	return !unexpected || charge_excess(p, a, unexpected);
}

void account_refresh(struct process *p, struct account *a)
{
	lock_take(&a->lock);
	uint64_t ended = a->ended;
	bool open = !a->closed;
	a->queries += open;
	lock_give(&a->lock);
	uint64_t more = open ? refresh(p, a, ended, 0) : 0;
	if (more)
		charge_excess(p, a, more);
}
