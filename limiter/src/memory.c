/* Linear memory: cuMemAlloc, Managed, Pitch and cuMemFree, in both forms, and cuMemFreeAsync. An
 * address that is not in the ledger is passed to the driver unchanged. */
#include "capture.h"
#include "charge.h"
#include "freeing.h"
#include "hooks.h"
#include "limits.h"

/* Whether this process ever had managed memory: else a free does not look for it. */
static _Atomic bool managed_ever;

/* After the driver's call: keeps the charge, or gives it back if the call failed. If the charge can't
 * be recorded, frees the memory. */
static CUresult settle_as(struct charge *charge, CUresult result, CUdeviceptr ptr, enum ledger_kind kind)
{
	if (kind != LEDGER_LINEAR) /* Relaxed: a thread that frees the memory got its address from this one. */
		atomic_store_explicit(&managed_ever, true, memory_order_relaxed);
	if (result == CUDA_SUCCESS && charge_keep(charge, kind, ptr))
		return CUDA_SUCCESS;
	if (result == CUDA_SUCCESS) {
		REAL(cuMemFree_v2)(ptr);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	charge_cancel(charge);
	return result;
}

static CUresult settle(struct charge *charge, CUresult result, CUdeviceptr ptr)
{
	return settle_as(charge, result, ptr, LEDGER_LINEAR);
}

/* Where the node grants more memory than its GPUs have: an allocation that does not fit on the GPU
 * is made as managed memory, which the driver moves between GPU and host as it is used. The
 * driver gets the advice that the GPU is the preferred location. */
static CUresult spill(CUdeviceptr *ptr, size_t size, CUresult refusal)
{
	struct charge charge;
	CUdevice device;

	if (refusal != CUDA_ERROR_OUT_OF_MEMORY || !ptr || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		return refusal;
	/* cppcheck-suppress uninitvar ; cuCtxGetDevice has set it */
	if (!limits_physical_bytes(device_cell(device)))
		return refusal;
	CUresult result = charge_begin_spilling(&charge, size, false);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocManaged)(ptr, size, CU_MEM_ATTACH_GLOBAL);
	if (result == CUDA_SUCCESS && hook_exists(HOOK_cuMemAdvise)) /* only advice: errors are ignored */
		REAL(cuMemAdvise)(*ptr, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device);
	return settle_as(&charge, result, *ptr, LEDGER_SPILLED);
}

static CUresult allocate(CUdeviceptr *ptr, size_t size)
{
	struct charge charge;
	CUresult result = ptr ? charge_begin(&charge, size) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAlloc_v2)(ptr, size);
	return settle(&charge, result, *ptr);
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
	CUresult result = allocate(ptr, size);

	return __builtin_expect(result == CUDA_SUCCESS, 1) ? result : spill(ptr, size, result);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *ptr, unsigned int size)
{
	struct charge charge;
	CUresult result = ptr ? charge_begin(&charge, size) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAlloc)(ptr, size);
	return settle(&charge, result, *ptr);
}

/* Whether part of the limit of any granted GPU may lie in the host's memory. */
static bool oversubscribed(void)
{
	for (int cell = 0; cell < limits_count(); cell++)
		if (limits_physical_bytes(cell))
			return true;
	return false;
}

/* Managed memory is charged in full on every granted GPU, because all of it can move to any of them
 * without a call that is seen here. That is the upper bound; with one GPU it is the most that the
 * GPU must hold. It can always lie in the host's memory, and is marked so: NVML reports it for no process, which the agent needs to know when it
 * compares. */
CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags)
{
	struct charge charge;
	bool spills = oversubscribed();
	CUresult result = !ptr   ? CUDA_ERROR_INVALID_VALUE :
			  spills ? charge_begin_spilling(&charge, size, true) :
				   charge_begin_everywhere(&charge, size);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocManaged)(ptr, size, flags);
	return settle_as(&charge, result, *ptr, LEDGER_MANAGED);
}

static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t product;

	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* The bytes that a pitched allocation is expected to take; only the driver knows its pitch. Drivers
 * align rows to 512 bytes; if one takes more, the rest is charged after the call, or the memory is
 * freed. */
static uint64_t pitched(uint64_t width, uint64_t height)
{
	return width > UINT64_MAX - 511 ? UINT64_MAX : times((width + 511) & ~(uint64_t)511, height);
}

static CUresult settle_pitch(struct charge *charge, CUresult result, CUdeviceptr ptr, uint64_t bytes)
{
	if (result == CUDA_SUCCESS && !charge_resize(charge, bytes)) {
		REAL(cuMemFree_v2)(ptr);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return settle(charge, result, ptr);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	struct charge charge;
	CUresult result = ptr && pitch ? charge_begin(&charge, pitched(width, height)) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocPitch_v2)(ptr, pitch, width, height, element);
	return settle_pitch(&charge, result, *ptr, times(*pitch, height));
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *ptr, unsigned int *pitch, unsigned int width, unsigned int height,
                         unsigned int element)
{
	struct charge charge;
	CUresult result = ptr && pitch ? charge_begin(&charge, pitched(width, height)) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocPitch)(ptr, pitch, width, height, element);
	return settle_pitch(&charge, result, *ptr, times(*pitch, height));
}

static void begin_free(struct discharge *d, CUdeviceptr ptr)
{
	discharge_begin(d, LEDGER_LINEAR, ptr);
	if (d->process || !atomic_load_explicit(&managed_ever, memory_order_relaxed))
		return;
	discharge_begin(d, LEDGER_SPILLED, ptr);
	if (!d->process)
		discharge_begin(d, LEDGER_MANAGED, ptr);
}

CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	struct discharge discharge;

	begin_free(&discharge, ptr);
	discharge_wait_begin(&discharge);
	return discharge_wait_end(&discharge, REAL(cuMemFree_v2)(ptr));
}

CUresult cuMemFree(CUdeviceptr_v1 ptr)
{
	struct discharge discharge;

	begin_free(&discharge, ptr);
	discharge_wait_begin(&discharge);
	return discharge_wait_end(&discharge, REAL(cuMemFree)(ptr));
}

/* The program asked for memory that it may free in a stream, and got managed memory, which the
 * driver may not free so. */
static CUresult free_spilled(CUdeviceptr ptr, CUstream stream)
{
	CUresult result = capture_wait(stream);

	return result == CUDA_SUCCESS ? REAL(cuMemFree_v2)(ptr) : result;
}

/* In a stream that is captured the driver refuses linear memory. */
static bool captured(CUstream stream)
{
	return capture_any() && capture_of(stream);
}

static CUresult end_free_async(struct discharge *d, CUresult result, CUdeviceptr ptr, CUstream stream)
{
	if (!d->process)
		return result;
	if (result == CUDA_ERROR_INVALID_VALUE && d->entry.kind == LEDGER_SPILLED)
		return discharge_end(d, free_spilled(ptr, stream));
	if (result != CUDA_SUCCESS)
		return discharge_end(d, result);
	freeing_add(d->process, &d->entry, stream);
	return result;
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
	struct discharge discharge = { 0 };

	if (!captured(stream))
		begin_free(&discharge, ptr);
	return end_free_async(&discharge, REAL(cuMemFreeAsync)(ptr, stream), ptr, stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream given)
{
	struct discharge discharge = { 0 };
	CUstream stream = given ? given : CU_STREAM_PER_THREAD;

	if (!captured(stream))
		begin_free(&discharge, ptr);
	return end_free_async(&discharge, REAL(cuMemFreeAsync_ptsz)(ptr, given), ptr, stream);
}
