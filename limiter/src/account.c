#include "account.h"

#include "hooks.h"
#include "process.h"
#include "reserve.h"

static CUresult ask(const struct account *a, uint64_t *reserved)
{
	if (a->kind == ACCOUNT_POOL)
		return REAL(cuMemPoolGetAttribute)((CUmemoryPool)a->whose, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserved);
	return REAL(cuDeviceGetGraphMemAttribute)((CUdevice)a->whose, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, reserved);
}

/* The split of the cell, for people: relaxed, no decision hangs on it. */
static _Atomic uint64_t *split(struct process *p, int cell, int kind)
{
	struct vgpu_cell *c = &p->owner.slot->cells[cell];

	return kind == ACCOUNT_POOL ? &c->pool : &c->graph;
}

static void give_back(struct process *p, int cell, int kind, uint64_t bytes)
{
	if (!bytes)
		return;
	atomic_fetch_sub_explicit(split(p, cell, kind), bytes, memory_order_relaxed);
	reserve_undo(p, cell, bytes);
}

/* Only with the lock held. */
static uint64_t settled(const struct account *a)
{
	return atomic_load_explicit(&a->settled, memory_order_relaxed);
}

static void settle(struct account *a, uint64_t bytes)
{
	atomic_store_explicit(&a->settled, bytes, memory_order_relaxed);
}

bool account_begin(struct process *p, struct account *a, uint64_t bytes)
{
	if (bytes && !reserve(p, a->cell, bytes))
		return false;
	if (bytes)
		atomic_fetch_add_explicit(split(p, a->cell, a->kind), bytes, memory_order_relaxed);
	lock_take(&a->lock);
	a->flying += bytes;
	lock_give(&a->lock);
	return true;
}

/* The driver has more than is charged though no call is under way: it grew by more
 * than could be expected. That much is taken already, so it is charged whether it
 * fits or not. */
static bool catch_up(struct process *p, struct account *a, uint64_t bytes)
{
	bool fits = reserve(p, a->cell, bytes);

	if (!fits)
		reserve_force(p, a->cell, bytes);
	atomic_fetch_add_explicit(split(p, a->cell, a->kind), bytes, memory_order_relaxed);
	return fits;
}

void account_open(struct account *a, enum account_kind kind, uintptr_t whose, int cell)
{
	lock_take(&a->lock);
	if (a->kind != (int)kind || a->whose != whose || a->cell != cell) {
		a->kind = kind;
		a->whose = whose;
		a->cell = cell;
	}
	a->closed = false;
	lock_give(&a->lock);
}

bool account_hold(struct account *a)
{
	lock_take(&a->lock);
	bool open = !a->closed;
	a->asking += open;
	lock_give(&a->lock);
	return open;
}

void account_release(struct account *a)
{
	lock_take(&a->lock);
	a->asking--;
	lock_give(&a->lock);
}

bool account_close(struct account *a)
{
	lock_take(&a->lock);
	bool idle = !a->closed && !a->asking && !a->flying && !settled(a);
	a->closed |= idle;
	lock_give(&a->lock);
	return idle;
}

/* Asks, and settles by the answer if no call has ended since it was asked. The
 * caller has said so under the lock (asking), and how many had ended then. Returns
 * by how much the driver has more than is charged. */
static uint64_t look(struct process *p, struct account *a, uint64_t ended)
{
	uint64_t reserved = 0, back = 0, more = 0;
	bool told = ask(a, &reserved) == CUDA_SUCCESS; /* if not, it stays charged: the safe side */

	lock_take(&a->lock);
	int cell = a->cell, kind = a->kind;
	a->asking--;
	if (told && a->ended == ended && !a->leaning) {
		uint64_t had = settled(a);

		if (reserved < had)
			back = had - reserved;
		else if (!a->flying)
			more = reserved - had;
		settle(a, had - back + more);
		if (!reserved && !a->flying)
			a->gone = 0;
	}
	lock_give(&a->lock);
	give_back(p, cell, kind, back);
	return more;
}

bool account_end(struct process *p, struct account *a, uint64_t bytes, uint64_t *more)
{
	lock_take(&a->lock);
	settle(a, settled(a) + bytes);
	a->flying -= bytes;
	if (a->kind == ACCOUNT_GRAPH)
		a->leaning--;
	uint64_t ended = ++a->ended;
	a->asking++;
	lock_give(&a->lock);
	uint64_t unexpected = look(p, a, ended);
	if (more)
		*more = unexpected;
	return !unexpected || catch_up(p, a, unexpected);
}

void account_look(struct process *p, struct account *a)
{
	lock_take(&a->lock);
	uint64_t ended = a->ended;
	bool open = !a->closed;
	a->asking += open;
	lock_give(&a->lock);
	uint64_t more = open ? look(p, a, ended) : 0;
	if (more)
		catch_up(p, a, more);
}
