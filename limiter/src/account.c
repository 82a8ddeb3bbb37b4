#include "account.h"

#include "capture.h"
#include "hooks.h"
#include "process.h"
#include "reserve.h"

static CUresult ask_driver(const struct account *a, uint64_t *reserved)
{
	if (a->kind == ACCOUNT_POOL)
		return REAL(cuMemPoolGetAttribute)((CUmemoryPool)a->whose, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserved);
	return REAL(cuDeviceGetGraphMemAttribute)((CUdevice)a->whose, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, reserved);
}

/* No manual says that asking is safe while something is captured. */
static CUresult ask(const struct account *a, uint64_t *reserved)
{
	if (!capture_any())
		return ask_driver(a, reserved);
	int mode = capture_relax(CU_STREAM_CAPTURE_MODE_RELAXED);
	CUresult result = ask_driver(a, reserved);
	capture_relax(mode);
	return result;
}

/* The split of the cell is for people: relaxed, no decision hangs on it, and it has
 * what is settled and not what is flying. */
static void tell(struct process *p, int cell, int kind, uint64_t more, uint64_t less)
{
	struct vgpu_cell *c = &p->owner.slot->cells[cell];

	if (more != less)
		atomic_fetch_add_explicit(kind == ACCOUNT_POOL ? &c->pool : &c->graph, more - less, memory_order_relaxed);
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
	if (!reserve(p, a->cell, bytes))
		return false;
	/* Relaxed: who finds the driver's memory grown by this call has it from the
	 * driver, which was asked after this. */
	atomic_fetch_add_explicit(&a->flying, bytes, memory_order_relaxed);
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
	tell(p, a->cell, a->kind, bytes, 0);
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
 * caller has said so under the lock (asking), and how many had ended then, and has
 * settled so much just now. Returns by how much the driver has more than is charged. */
static uint64_t look(struct process *p, struct account *a, uint64_t ended, uint64_t settled_now)
{
	uint64_t reserved = 0, back = 0, more = 0;
	int cell = a->cell, kind = a->kind; /* as long as it is held it is this one */

	for (bool sure = false;; sure = true) {
		bool told = ask(a, &reserved) == CUDA_SUCCESS; /* if not, it stays charged: the safe side */

		lock_take(&a->lock);
		uint64_t had = settled(a), flying = atomic_load_explicit(&a->flying, memory_order_relaxed);
		bool counts = told && a->ended == ended && !a->leaning;
		if (counts && reserved > had && !flying && !sure) {
			lock_give(&a->lock); /* or it was let go since by another thread: once more */
			continue;
		}
		if (counts && reserved < had)
			back = had - reserved;
		if (counts && reserved > had && !flying)
			more = reserved - had;
		if (counts && !reserved && !flying)
			a->gone = 0;
		settle(a, had - back + more);
		a->asking--;
		lock_give(&a->lock);
		break;
	}
	if (back)
		reserve_undo(p, cell, back);
	tell(p, cell, kind, settled_now, back);
	return more;
}

bool account_end(struct process *p, struct account *a, uint64_t bytes, uint64_t *more)
{
	lock_take(&a->lock);
	settle(a, settled(a) + bytes);
	atomic_fetch_sub_explicit(&a->flying, bytes, memory_order_relaxed);
	if (a->kind == ACCOUNT_GRAPH)
		a->leaning--;
	uint64_t ended = ++a->ended;
	a->asking++;
	lock_give(&a->lock);
	uint64_t unexpected = look(p, a, ended, bytes);
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
	uint64_t more = open ? look(p, a, ended, 0) : 0;
	if (more)
		catch_up(p, a, more);
}
