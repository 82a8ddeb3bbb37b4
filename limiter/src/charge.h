/* One allocation's way: begin before the driver is asked; then keep or cancel. */
#ifndef GPUSLICE_CHARGE_H
#define GPUSLICE_CHARGE_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"
#include "ledger.h"
#include "process.h"

struct charge {
	struct process *process;
	struct here here;
	uint64_t bytes;
};

/* Charges bytes to the current context's GPU. On an error the driver must not
 * be asked. */
CUresult charge_begin(struct charge *charge, uint64_t bytes);
/* The same on every GPU that is granted: the memory may move between them. */
CUresult charge_begin_everywhere(struct charge *charge, uint64_t bytes);
/* The same, of one GPU or of all, for memory that may lie in the host's: kept as
 * LEDGER_SPILLED. */
CUresult charge_begin_spilling(struct charge *charge, uint64_t bytes, bool everywhere);
/* The same on this GPU, for a context that is to be made there: what the limits
 * file says that one takes. A refusal for lack of room is said on stderr. */
CUresult charge_begin_context(struct charge *charge, CUdevice dev);
/* The same on this GPU, whatever is current. */
CUresult charge_begin_on(struct charge *charge, CUdevice dev, uint64_t bytes);
/* Makes it so many bytes instead. False: that many don't fit. */
bool charge_resize(struct charge *charge, uint64_t bytes);
/* Writes it down under the driver's address or handle. False: no memory to. */
bool charge_keep(struct charge *charge, enum ledger_kind kind, uint64_t key);
/* The same for a context, whose own charge it is that ends with it. */
bool charge_keep_context(struct charge *charge, CUcontext context);
/* The same where the caller remembers it itself, and gives it back with the next. */
void charge_hold_context(struct charge *charge);
void charge_give_context(struct process *process, int cell, uint64_t bytes);
/* Virtual memory, which backing.h remembers. */
void charge_hold_vmm(struct charge *charge);
void charge_cancel(struct charge *charge);

/* For a free: takes what is known of the key out of the ledger before the driver
 * is asked, for right after it the driver may hand the same address out again. */
struct discharge {
	struct process *process; /* NULL: not ours, nothing is charged for it */
	struct ledger_entry entry;
	uint32_t held; /* of an array: what was mapped into it */
};

void discharge_begin(struct discharge *discharge, enum ledger_kind kind, uint64_t key);
/* Gives the bytes back, or puts the entry back where the driver has refused. */
CUresult discharge_end(struct discharge *discharge, CUresult result);

/* The context is gone, and with it all that was allocated in it up to stamp. */
void discharge_context(struct process *process, CUcontext context, uint64_t stamp);

#endif
