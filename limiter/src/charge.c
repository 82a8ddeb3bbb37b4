#include "charge.h"

#include "reserve.h"

CUresult charge_begin(struct charge *c, uint64_t bytes)
{
	CUresult result = device_here(&c->here);

	if (result != CUDA_SUCCESS)
		return result; /* the driver has no context here, so it would refuse too */
	c->process = process_get();
	if (!c->process || c->here.cell < 0 || !owner_wait(&c->process->owner))
		return CUDA_ERROR_NOT_INITIALIZED;
	c->bytes = bytes;
	return reserve(c->process, c->here.cell, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool charge_resize(struct charge *c, uint64_t bytes)
{
	if (bytes > c->bytes && !reserve(c->process, c->here.cell, bytes - c->bytes))
		return false;
	if (bytes < c->bytes)
		reserve_undo(c->process, c->here.cell, c->bytes - bytes);
	c->bytes = bytes;
	return true;
}

/* The split of a kind within committed; NULL: linear memory has none. */
static _Atomic uint64_t *split(struct process *p, int cell, enum ledger_kind kind)
{
	return kind == LEDGER_LINEAR ? NULL : &p->slot->cells[cell].array;
}

bool charge_keep(struct charge *c, enum ledger_kind kind, uint64_t key)
{
	_Atomic uint64_t *part = split(c->process, c->here.cell, kind);

	if (!ledger_put(&c->process->ledger, (struct ledger_entry){ .key = key,
	                                                            .size = c->bytes,
	                                                            .context = (uintptr_t)c->here.context,
	                                                            .kind = kind,
	                                                            .cell = (uint64_t)c->here.cell }))
		return false;
	if (part) /* Relaxed: for people to read; no decision hangs on it. */
		atomic_fetch_add_explicit(part, c->bytes, memory_order_relaxed);
	return true;
}

void charge_cancel(struct charge *c)
{
	reserve_undo(c->process, c->here.cell, c->bytes);
}

static void give_back(struct process *p, const struct ledger_entry *entry)
{
	_Atomic uint64_t *part = split(p, entry->cell, entry->kind);

	if (part)
		atomic_fetch_sub_explicit(part, entry->size, memory_order_relaxed);
	reserve_undo(p, entry->cell, entry->size);
}

void discharge_begin(struct discharge *d, enum ledger_kind kind, uint64_t key)
{
	d->process = process_peek();
	if (d->process && !ledger_take(&d->process->ledger, kind, key, &d->entry))
		d->process = NULL;
}

CUresult discharge_end(struct discharge *d, CUresult result)
{
	if (!d->process)
		return result;
	if (result == CUDA_SUCCESS)
		give_back(d->process, &d->entry);
	else /* without memory for the entry the bytes stay charged: the safe side */
		ledger_put(&d->process->ledger, d->entry);
	return result;
}

static void give_back_each(const struct ledger_entry *entry, void *process)
{
	give_back(process, entry);
}

void discharge_context(struct process *p, CUcontext context, uint64_t stamp)
{
	ledger_drop(&p->ledger, (uintptr_t)context, stamp, give_back_each, p);
}
