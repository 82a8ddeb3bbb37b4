/* Contexts: refused on a card that is not granted; and the end of one frees, in
 * the driver, all that was allocated in it, so it does here. What a context
 * takes by itself is not charged yet (the cell's `context` is reserved for it). */
#include "charge.h"
#include "hooks.h"

static bool granted(CUdevice dev)
{
	return device_cell(dev) >= 0 && process_get();
}

CUresult cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	return granted(dev) ? REAL(cuCtxCreate)(ctx, flags, dev) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	return granted(dev) ? REAL(cuCtxCreate_v2)(ctx, flags, dev) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuCtxCreate_v3(CUcontext *ctx, void *params, int count, unsigned int flags, CUdevice dev)
{
	return granted(dev) ? REAL(cuCtxCreate_v3)(ctx, params, count, flags, dev) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned int flags, CUdevice dev)
{
	return granted(dev) ? REAL(cuCtxCreate_v4)(ctx, params, flags, dev) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuGreenCtxCreate(void **ctx, void *desc, CUdevice dev, unsigned int flags)
{
	return granted(dev) ? REAL(cuGreenCtxCreate)(ctx, desc, dev, flags) : CUDA_ERROR_NOT_INITIALIZED;
}

/* The process, and in *stamp the age up to which entries belong to the past. */
static struct process *before_end(uint64_t *stamp)
{
	struct process *p = process_peek();

	*stamp = p ? ledger_stamp(&p->ledger) : 0;
	return p;
}

static CUresult after_end(CUresult result, struct process *p, CUcontext ctx, uint64_t stamp)
{
	if (result == CUDA_SUCCESS && p)
		discharge_context(p, ctx, stamp);
	return result;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
	uint64_t stamp;
	struct process *p = before_end(&stamp);

	return after_end(REAL(cuCtxDestroy)(ctx), p, ctx, stamp);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	uint64_t stamp;
	struct process *p = before_end(&stamp);

	return after_end(REAL(cuCtxDestroy_v2)(ctx), p, ctx, stamp);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	struct process *p = granted(dev) ? process_get() : NULL;

	if (!p)
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult result = REAL(cuDevicePrimaryCtxRetain)(ctx, dev);
	if (result == CUDA_SUCCESS && ctx) /* Relaxed: a handle, the same for every thread. */
		atomic_store_explicit(&p->primary[device_cell(dev)], *ctx, memory_order_relaxed);
	return result;
}

/* The primary context ends with its last release, which only the driver counts. */
static CUresult after_release(CUresult result, CUdevice dev, struct process *p, uint64_t stamp)
{
	unsigned int flags;
	int active = 1, cell = device_cell(dev);

	if (result != CUDA_SUCCESS || !p || cell < 0)
		return result;
	if (REAL(cuDevicePrimaryCtxGetState)(dev, &flags, &active) == CUDA_SUCCESS && !active)
		discharge_context(p, atomic_load_explicit(&p->primary[cell], memory_order_relaxed), stamp);
	return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	uint64_t stamp;
	struct process *p = before_end(&stamp);

	return after_release(REAL(cuDevicePrimaryCtxRelease)(dev), dev, p, stamp);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	uint64_t stamp;
	struct process *p = before_end(&stamp);

	return after_release(REAL(cuDevicePrimaryCtxRelease_v2)(dev), dev, p, stamp);
}

/* A reset frees everything, whoever else has retained the context. */
static CUresult after_reset(CUresult result, CUdevice dev, struct process *p, uint64_t stamp)
{
	int cell = device_cell(dev);

	if (cell < 0 || !p)
		return result;
	return after_end(result, p, atomic_load_explicit(&p->primary[cell], memory_order_relaxed), stamp);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	uint64_t stamp;
	struct process *p = before_end(&stamp);

	return after_reset(REAL(cuDevicePrimaryCtxReset)(dev), dev, p, stamp);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	uint64_t stamp;
	struct process *p = before_end(&stamp);

	return after_reset(REAL(cuDevicePrimaryCtxReset_v2)(dev), dev, p, stamp);
}
