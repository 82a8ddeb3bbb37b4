#include "charge.h"

#include "cores.h"
#include "green.h"
#include "ipcheld.h"
#include "limits.h"
#include "reserve.h"
#include "log.h"
#include "turnends.h"
#include "usage.h"

/* If the bytes do not fit, trims pools and memory for graphs first, as a driver with a full GPU does;
 * then waits for what is being freed. */
static bool take(struct process *p, int cell, uint64_t bytes)
{
	if (__builtin_expect(reserve(p, cell, bytes), 1))
		return true;
	bool room = false;
	for (int i = 0; i < VGPU_MAX_DEVICES; i++)
		if (cell == i || (cell == LEDGER_EVERY_CELL && limits_granted(i)))
			room |= pools_make_room(p, i, bytes);
	if (room && reserve(p, cell, bytes))
		return true;
	while (freeing_wait(p))
		if (reserve(p, cell, bytes))
			return true;
	return false;
}

static bool take_spilling(struct process *p, int cell, uint64_t bytes)
{
	do {
		if (reserve_spilling(p, cell, bytes))
			return true;
	} while (freeing_wait(p));
	return false;
}

/* Where a GPU's share may spill, a refused allocation is tried again as spilled memory (memory.c),
 * and only the refusal of that is counted. */
static void count_refusal(struct process *p, int cell, bool last)
{
	if (last || cell == LEDGER_EVERY_CELL || !limits_physical_bytes(cell))
		reserve_refused(p, cell);
}

enum { SMALL_UNIT = 512 };

static uint64_t round_up(uint64_t value, uint64_t unit)
{
	return value > UINT64_MAX - unit ? UINT64_MAX : (value + unit - 1) / unit * unit;
}

static enum pages_result enter(struct charge *c, uint64_t page, bool reserved)
{
	return pages_enter(c->process, (uintptr_t)c->here.context, c->here.cell, page, c->bytes, reserved);
}

static bool take_piece(struct charge *c, uint64_t page)
{
	enum pages_result result = enter(c, page, false);

	if (result != PAGES_ENTERED && take(c->process, c->here.cell, page)) {
		if (enter(c, page, true) != PAGES_ENTERED) { /* no place: this piece has the page for itself */
			c->bytes = page;
			return true;
		}
	} else if (result != PAGES_ENTERED && enter(c, page, false) != PAGES_ENTERED)
		return false; /* and no other thread's page has room now */
	c->small = true;
	return true;
}

/* How the driver takes an allocation of that size: the bytes, and whether they are a piece of a page. */
static bool is_piece(const struct charge *c, uint64_t size, bool spilling, uint64_t *bytes, uint64_t *page)
{
	bool one = c->here.cell != LEDGER_EVERY_CELL;
	struct limits_pages law = limits_pages(one ? c->here.cell : 0);
	bool piece = law.page && size && size <= law.small && one && !spilling;

	*page = law.page;
	*bytes = law.page ? round_up(size, piece ? SMALL_UNIT : law.page) : size;
	return piece;
}

static bool take_sized(struct charge *c, uint64_t size, bool spilling)
{
	uint64_t page;

	c->small = false;
	if (is_piece(c, size, spilling, &c->bytes, &page))
		return take_piece(c, page);
	return spilling ? take_spilling(c->process, c->here.cell, c->bytes) : take(c->process, c->here.cell, c->bytes);
}

static CUresult begin_here(struct charge *c, uint64_t bytes, bool everywhere, bool spilling)
{
	CUresult result = device_here(&c->here);

	if (result != CUDA_SUCCESS)
		return result; /* there is no context, so the driver would refuse too */
	c->process = process_get();
	if (!c->process || c->here.cell < 0 || !owner_wait(&c->process->owner))
		return CUDA_ERROR_NOT_INITIALIZED;
	residue_catch_up(c->process, &c->process->residue, c->here.cell);
	c->here.context = green_owner(c->process, c->here.context);
	if (everywhere)
		c->here.cell = LEDGER_EVERY_CELL;
	if (take_sized(c, bytes, spilling))
		return CUDA_SUCCESS;
	count_refusal(c->process, c->here.cell, spilling);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_begin(struct charge *c, uint64_t bytes)
{
	return begin_here(c, bytes, false, false);
}

CUresult charge_begin_everywhere(struct charge *c, uint64_t bytes)
{
	return begin_here(c, bytes, true, false);
}

CUresult charge_begin_spilling(struct charge *c, uint64_t bytes, bool everywhere)
{
	return begin_here(c, bytes, everywhere, true);
}

static CUresult no_room(struct charge *c)
{
	static _Atomic unsigned once;
	unsigned long long mib = 1 << 20, limit = limits_bytes(c->here.cell);
	unsigned long long used = usage_sum(c->process->usage, &c->process->ipcleft, c->here.cell).committed + limits_residue_bytes(c->here.cell);

	count_refusal(c->process, c->here.cell, true);
	log_line(&once, "the memory limit leaves no room for a context, which takes %llu MiB: %llu of %llu MiB are in use",
	    (c->bytes + mib - 1) / mib, (used + mib - 1) / mib, limit / mib);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_begin_context(struct charge *c, CUdevice dev)
{
	c->here = (struct here){ NULL, device_cell(dev) };
	c->process = c->here.cell < 0 ? NULL : process_get();
	if (!c->process || !owner_wait(&c->process->owner))
		return CUDA_ERROR_NOT_INITIALIZED;
	c->bytes = limits_context_bytes(c->here.cell);
	c->small = false;
	if (c->bytes && !reserve(c->process, c->here.cell, c->bytes))
		return no_room(c);
	residue_watch(c->process, c->here.cell, dev);
	return CUDA_SUCCESS;
}

CUresult charge_begin_on(struct charge *c, CUdevice dev, uint64_t bytes)
{
	c->here = (struct here){ NULL, device_cell(dev) };
	c->process = c->here.cell < 0 ? NULL : process_get();
	if (!c->process || !owner_wait(&c->process->owner))
		return CUDA_ERROR_NOT_INITIALIZED;
	residue_catch_up(c->process, &c->process->residue, c->here.cell);
	c->bytes = bytes;
	c->small = false;
	if (take(c->process, c->here.cell, bytes))
		return CUDA_SUCCESS;
	count_refusal(c->process, c->here.cell, true);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* What the driver has taken already stays charged meanwhile. */
static bool take_other(struct charge *c, uint64_t size)
{
	struct charge other = *c;

	if (!take_sized(&other, size, false))
		return false;
	charge_cancel(c);
	*c = other;
	return true;
}

bool charge_resize(struct charge *c, uint64_t size)
{
	uint64_t bytes, page;
	bool fits = true, piece = is_piece(c, size, false, &bytes, &page);

	if (__builtin_expect(bytes == c->bytes && piece == c->small, 1))
		return true;
	if (piece || c->small)
		fits = take_other(c, size);
	else if (bytes > c->bytes)
		fits = take(c->process, c->here.cell, bytes - c->bytes);
	else if (bytes < c->bytes)
		reserve_undo(c->process, c->here.cell, c->bytes - bytes);
	if (fits && !c->small)
		c->bytes = bytes;
	if (!fits)
		count_refusal(c->process, c->here.cell, true);
	return fits;
}

static bool may_lie_on_the_host(enum ledger_kind kind)
{
	return kind == LEDGER_SPILLED || kind == LEDGER_MANAGED;
}

/* The split of a kind within committed; NULL: linear memory has none. */
static _Atomic uint64_t *split(struct process *p, int cell, enum ledger_kind kind)
{
	switch (kind) {
	case LEDGER_LINEAR:
	case LEDGER_IPC:
	case LEDGER_SPILLED:
	case LEDGER_MANAGED:
		return NULL;
	case LEDGER_CONTEXT:
	case LEDGER_GROWTH:
		return &p->owner.slot->cells[cell].context;
	case LEDGER_VMM:
		return &p->owner.slot->cells[cell].vmm;
	default:
		return &p->owner.slot->cells[cell].array;
	}
}

bool charge_keep(struct charge *c, enum ledger_kind kind, uint64_t key)
{
	_Atomic uint64_t *part = split(c->process, c->here.cell, kind);

	if (!ledger_put(&c->process->ledger, (struct ledger_entry){ .key = key,
	                                                            .size = c->bytes | (c->small ? LEDGER_SMALL : 0),
	                                                            .context = (uintptr_t)c->here.context,
	                                                            .kind = kind,
	                                                            .cell = (uint64_t)c->here.cell }))
		return false;
	if (may_lie_on_the_host(kind))
		reserve_spilled(c->process, c->here.cell, c->bytes);
	if (part) /* Relaxed: only displayed. */
		atomic_fetch_add_explicit(part, c->bytes, memory_order_relaxed);
	return true;
}

bool charge_keep_context(struct charge *c, CUcontext context)
{
	c->here.context = context;
	return !c->bytes || charge_keep(c, LEDGER_CONTEXT, (uintptr_t)context);
}

void charge_hold_context(struct charge *c)
{
	/* Relaxed: as in charge_keep. */
	atomic_fetch_add_explicit(split(c->process, c->here.cell, LEDGER_CONTEXT), c->bytes, memory_order_relaxed);
}

static void give_back(struct process *p, int cell, uint64_t context, uint64_t bytes, bool small)
{
	if (small)
		pages_leave(p, context, cell, bytes);
	else
		reserve_undo(p, cell, bytes);
}

void charge_cancel(struct charge *c)
{
	give_back(c->process, c->here.cell, (uintptr_t)c->here.context, c->bytes, c->small);
}

void discharge(struct process *p, const struct ledger_entry *entry)
{
	_Atomic uint64_t *part = split(p, entry->cell, entry->kind);
	uint64_t bytes = entry->size & LEDGER_BYTES;

	if (__builtin_expect(entry->size & LEDGER_RECORD, 0))
		ipcheld_ended(p, entry);
	if (part)
		atomic_fetch_sub_explicit(part, bytes, memory_order_relaxed);
	if (may_lie_on_the_host(entry->kind))
		reserve_spilled_undo(p, entry->cell, bytes);
	give_back(p, entry->cell, entry->context, bytes, entry->size & LEDGER_SMALL);
}

void charge_give_context(struct process *p, int cell, uint64_t bytes)
{
	discharge(p, &(struct ledger_entry){ .size = bytes, .kind = LEDGER_CONTEXT, .cell = (uint64_t)cell });
}

void charge_hold_vmm(struct charge *c)
{
	/* Relaxed: as in charge_keep. */
	atomic_fetch_add_explicit(split(c->process, c->here.cell, LEDGER_VMM), c->bytes, memory_order_relaxed);
}

static bool is_array(enum ledger_kind kind)
{
	return kind == LEDGER_ARRAY || kind == LEDGER_MIPMAP;
}

static uint32_t held_in(struct process *p, enum ledger_kind kind, uint64_t key)
{
	return is_array(kind) ? backing_unmap_begin(p, BACKING_ARRAY, key, 1) : 0;
}

void discharge_begin(struct discharge *d, enum ledger_kind kind, uint64_t key)
{
	d->process = process_peek();
	if (d->process && !ledger_take(&d->process->ledger, kind, key, &d->entry))
		d->process = NULL;
	d->held = d->process ? held_in(d->process, kind, key) : 0;
}

CUresult discharge_end(struct discharge *d, CUresult result)
{
	if (!d->process)
		return result;
	backing_unmap_end(d->process, d->held, result == CUDA_SUCCESS);
	if (result == CUDA_SUCCESS)
		discharge(d->process, &d->entry);
	else /* without memory for the entry the bytes stay charged, which is safe */
		ledger_put(&d->process->ledger, d->entry);
	return result;
}

void discharge_wait_begin(struct discharge *d)
{
	d->waits = __builtin_expect(cores_limited() != 0, 0) && turn_any_work();
	if (d->waits)
		turn_wait_begin();
}

CUresult discharge_wait_end(struct discharge *d, CUresult result)
{
	if (d->waits && result == CUDA_SUCCESS)
		turn_saw_end(true);
	if (d->waits)
		turn_wait_end();
	return discharge_end(d, result);
}

static void give_back_each(const struct ledger_entry *entry, void *process)
{
	discharge(process, entry);
	backing_unmap_end(process, held_in(process, entry->kind, entry->key), true);
}

void discharge_context(struct process *p, CUcontext context, uint64_t stamp)
{
	ledger_drop(&p->ledger, (uintptr_t)context, stamp, give_back_each, p);
	freeing_context_ended(p, context, stamp);
}
