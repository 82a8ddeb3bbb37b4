/* The charge of one allocation: begin before the driver is called; then keep or cancel. */
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
	uint64_t bytes; /* that are charged; of a piece in a shared page its size */
	bool small;     /* it is such a piece, see pages.h */
};

/* Charges what the driver takes for an allocation of that many bytes, in pages, to the current
 * context's GPU. Returns the driver's error if there is no context,
 * CUDA_ERROR_NOT_INITIALIZED if the GPU is not granted or the process is denied, and
 * CUDA_ERROR_OUT_OF_MEMORY if they do not fit. On an error nothing is charged and the driver must
 * not be called. The other charge_begin functions return the same errors; those with a dev need
 * no context. */
CUresult charge_begin(struct charge *charge, uint64_t bytes);
/* Charges bytes on every granted GPU, because the memory may move between them. */
CUresult charge_begin_everywhere(struct charge *charge, uint64_t bytes);
/* Charges bytes that may lie in the host's memory, to the current context's GPU or (everywhere)
 * on every granted GPU. The caller keeps the charge as LEDGER_SPILLED. */
CUresult charge_begin_spilling(struct charge *charge, uint64_t bytes, bool everywhere);
/* Charges what the limits file expects for one context, to dev, whatever context is current. Logs
 * one line if it does not fit. */
CUresult charge_begin_context(struct charge *charge, CUdevice dev);
/* Charges bytes to dev, whatever context is current. */
CUresult charge_begin_on(struct charge *charge, CUdevice dev, uint64_t bytes);
/* Changes the charge to that of an allocation of this number of bytes. False: they don't fit, and the charge is unchanged. */
bool charge_resize(struct charge *charge, uint64_t bytes);
/* Records the charge in the ledger under the driver's address or handle. False: there is no memory
 * for the entry; the caller undoes the call and cancels the charge. */
bool charge_keep(struct charge *charge, enum ledger_kind kind, uint64_t key);
/* Records the charge of a context under its handle; it ends with the context. False: as for
 * charge_keep. */
bool charge_keep_context(struct charge *charge, CUcontext context);
/* Keeps the charge of a context without an entry in the ledger. The caller stores the bytes, and
 * passes them to charge_give_context when the context has ended. */
void charge_hold_context(struct charge *charge);
void charge_give_context(struct process *process, int cell, uint64_t bytes);
/* Keeps the charge of virtual memory without an entry in the ledger; backing.h records it. */
void charge_hold_vmm(struct charge *charge);
/* Gives the charge back. */
void charge_cancel(struct charge *charge);

/* For a free: the entry of the key leaves the ledger before the driver is called, because the
 * driver may reuse the address right after that call. */
struct discharge {
	struct process *process; /* NULL: the key is not in the ledger, nothing is charged for it */
	struct ledger_entry entry;
	uint32_t held; /* of an array: what was mapped into it */
	bool waits;    /* see discharge_wait_begin() */
};

/* Takes the key's entry out of the ledger. */
void discharge_begin(struct discharge *discharge, enum ledger_kind kind, uint64_t key);
/* Gives the bytes back if the driver's result is success, else restores the entry. Returns the
 * result. */
CUresult discharge_end(struct discharge *discharge, CUresult result);

/* Around a call of a driver that may wait for all work of the GPU before it frees: what the container has under way
 * counts until then. The second one does what discharge_end() does. */
void discharge_wait_begin(struct discharge *discharge);
CUresult discharge_wait_end(struct discharge *discharge, CUresult result);

/* Gives back the bytes of an entry that has left the ledger. */
void discharge(struct process *process, const struct ledger_entry *entry);

/* Gives back all that was allocated in a context up to stamp, after the context has ended. */
void discharge_context(struct process *process, CUcontext context, uint64_t stamp);

#endif
