/* Memory of cuMemAlloc that processes share by legacy IPC. What of it a process of the container has open stays charged, see
 * ipcrecord.h. Memory without a record of this container is charged to each process that opens it. */
#include <string.h>

#include "charge.h"
#include "green.h"
#include "hooks.h"
#include "ipcheld.h"
#include "ipcrecord.h"
#include "limits.h"
#include "log.h"
#include "slot.h"

/* The driver gives the same handle for each address of an allocation, and another one for each allocation. */
static uint64_t key_of(const CUipcMemHandle *handle)
{
	uint64_t words[sizeof(*handle) / 8], key = 0;

	memcpy(words, handle, sizeof(words));
	for (size_t i = 0; i < sizeof(words) / 8; i++) {
		key = (key ^ words[i]) * 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio */
		key ^= key >> 29;
	}
	return key;
}

static uint64_t record_bits(int record)
{
	return (uint64_t)(record + 1) << LEDGER_RECORD_BIT;
}

/* Whole pages: the GPU keeps the page of a small piece too. */
static uint64_t in_pages(int cell, uint64_t bytes)
{
	uint64_t page = limits_pages(cell).page;

	return page ? (bytes + page - 1) / page * page : bytes;
}

static int claim_record(struct process *p, int fd, const struct ledger_entry *entry, uint64_t key)
{
	return ipcrecord_make(p->usage, fd, (uint32_t)(p->owner.slot - p->usage->slots), entry->cell,
	                      in_pages(entry->cell, entry->size & LEDGER_BYTES), key);
}

static int make_record(struct process *p, const struct ledger_entry *entry, uint64_t key)
{
	static _Atomic unsigned once;
	struct borrowed file = owner_borrow(&p->owner);
	int record = claim_record(p, file.fd, entry, key);

	/* Those of dead makers are taken until their slots are cleared. */
	if (record < 0 && file.fd >= 0 && slot_reap(p->usage, file.fd))
		record = claim_record(p, file.fd, entry, key);
	owner_return(&p->owner, file);
	if (record < 0)
		log_line(&once, "cuIpcGetMemHandle: no record is left for shared memory (512 at a time): each process that opens more is charged for it as well");
	return record;
}

static void share(struct process *p, CUdeviceptr base, const CUipcMemHandle *handle)
{
	struct ledger_entry entry;

	if (!lock_unless_mine(&p->ipcheld.noting))
		return; /* without a record each process that opens it is charged */
	if (ledger_find(&p->ledger, LEDGER_LINEAR, base, &entry) && !(entry.size & LEDGER_RECORD)) {
		int record = make_record(p, &entry, key_of(handle));

		if (record >= 0 && ledger_take(&p->ledger, LEDGER_LINEAR, base, &entry)) {
			entry.size |= record_bits(record);
			ledger_put(&p->ledger, entry); /* without memory for it the bytes stay charged */
		} else if (record >= 0)
			ipcrecord_leave(p->usage, record);
	}
	lock_give(&p->ipcheld.noting);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	CUresult result = REAL(cuIpcGetMemHandle)(handle, ptr);
	struct process *p = process_peek();
	CUipcMemHandle of_base;
	CUdeviceptr base;

	if (result != CUDA_SUCCESS || !p || REAL(cuMemGetAddressRange_v2)(&base, NULL, ptr) != CUDA_SUCCESS)
		return result;
	if (base == ptr)
		share(p, base, handle);
	else if (REAL(cuIpcGetMemHandle)(&of_base, base) == CUDA_SUCCESS)
		share(p, base, &of_base);
	return result;
}

static CUresult close_again(CUdeviceptr ptr, CUresult why)
{
	REAL(cuIpcCloseMemHandle)(ptr);
	return why;
}

static bool note(struct process *p, CUdeviceptr ptr, uint64_t size, int cell)
{
	CUcontext context = NULL;

	REAL(cuCtxGetCurrent)(&context);
	return ledger_put(&p->ledger, (struct ledger_entry){ .key = ptr,
	                                                     .size = size,
	                                                     .context = (uintptr_t)green_owner(p, context),
	                                                     .kind = LEDGER_IPC,
	                                                     .cell = (uint64_t)cell });
}

/* Whether this process has it open already, and so is charged for it. */
static bool note_again(struct process *p, CUdeviceptr ptr)
{
	struct ledger_entry entry;

	if (!lock_unless_mine(&p->ipcheld.noting))
		return false; /* charged once more */
	bool again = ledger_find(&p->ledger, LEDGER_IPC, ptr, &entry) && note(p, ptr, 0, entry.cell);
	lock_give(&p->ipcheld.noting);
	return again;
}

static CUresult unknown_size(CUdeviceptr ptr)
{
	static _Atomic unsigned once;

	log_line(&once, "cuIpcOpenMemHandle: the size of the memory can't be found out; refused");
	return close_again(ptr, CUDA_ERROR_NOT_SUPPORTED);
}

/* Memory of another container, or without a record. To open it takes nothing of the GPU, and only the driver has its size,
 * so it is charged after the call. */
static CUresult charge_opened(struct process *p, CUdeviceptr ptr)
{
	struct charge charge;
	size_t bytes;
	CUdevice dev;

	if (note_again(p, ptr))
		return CUDA_SUCCESS;
	if ((REAL(cuPointerGetAttribute)(&dev, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr) != CUDA_SUCCESS &&
	     REAL(cuCtxGetDevice)(&dev) != CUDA_SUCCESS) || REAL(cuMemGetAddressRange_v2)(NULL, &bytes, ptr) != CUDA_SUCCESS)
		return unknown_size(ptr);
	/* cppcheck-suppress uninitvar ; one of the two has set it */
	int cell = device_cell(dev);
	if (cell < 0) /* by peer access: of a GPU that is visible, but not granted */
		return close_again(ptr, CUDA_ERROR_NOT_INITIALIZED);
	CUresult result = charge_begin_on(&charge, dev, in_pages(cell, bytes));
	if (result != CUDA_SUCCESS)
		return close_again(ptr, result);
	if (note(p, ptr, charge.bytes, charge.here.cell))
		return CUDA_SUCCESS;
	close_again(ptr, result);
	charge_cancel(&charge);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult keep_opened(struct process *p, CUdeviceptr ptr, int record)
{
	if (note(p, ptr, record_bits(record), 0))
		return CUDA_SUCCESS;
	close_again(ptr, CUDA_ERROR_OUT_OF_MEMORY);
	ipcheld_end(p, record);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult open_by(__typeof__(&cuIpcOpenMemHandle) real, CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	struct process *p = process_peek();

	if (!p || !owner_wait(&p->owner))
		return real(ptr, handle, flags); /* without a context the driver refuses it */
	int record = ipcheld_begin(p, key_of(&handle));
	CUresult result = real(ptr, handle, flags);
	if (result == CUDA_SUCCESS)
		return record < 0 ? charge_opened(p, *ptr) : keep_opened(p, *ptr, record);
	if (record >= 0)
		ipcheld_end(p, record);
	return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	return open_by(REAL(cuIpcOpenMemHandle), ptr, handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	return open_by(REAL(cuIpcOpenMemHandle_v2), ptr, handle, flags);
}

/* What an entry keeps charged: its own bytes, those of its record, or nothing. */
static int weight(const struct ledger_entry *entry)
{
	if (entry->size & LEDGER_RECORD)
		return 1;
	return entry->size ? 2 : 0;
}

/* It has an entry for each time that it was opened. What keeps the most charged leaves last. */
static void leave_charge(struct discharge *d)
{
	struct ledger_entry other;

	if (!d->process || !ledger_take(&d->process->ledger, LEDGER_IPC, d->entry.key, &other))
		return;
	if (weight(&d->entry) > weight(&other)) {
		struct ledger_entry leaves = d->entry;

		d->entry.size = other.size;
		d->entry.cell = other.cell;
		other.size = leaves.size;
		other.cell = leaves.cell;
	}
	ledger_put(&d->process->ledger, other);
}

/* In a signal handler that interrupts its thread here: the bytes stay charged, at no address that is opened later. */
static CUresult close_charged(struct discharge *d, CUdeviceptr ptr)
{
	CUresult result = REAL(cuIpcCloseMemHandle)(ptr);

	if (result == CUDA_SUCCESS)
		d->entry.key |= 1;
	discharge_end(d, CUDA_ERROR_NOT_FOUND);
	return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	struct process *p = process_peek();
	struct discharge discharge;
	bool locked = p && lock_unless_mine(&p->ipcheld.noting);

	discharge_begin(&discharge, LEDGER_IPC, ptr);
	if (p && !locked)
		return close_charged(&discharge, ptr);
	leave_charge(&discharge);
	if (locked)
		lock_give(&p->ipcheld.noting);
	return discharge_end(&discharge, REAL(cuIpcCloseMemHandle)(ptr));
}
