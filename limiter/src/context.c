/* Contexts: refused on a GPU that is not granted. The memory of a context itself is charged before
 * the driver makes it (primary.c handles the primary one). When a context ends, the driver frees
 * all that was allocated in it, and the charges end here. */
#include "charge.h"
#include "hooks.h"
#include "pace.h"
#include "sample.h"

/* After the driver's call: keeps the charge, or gives it back if the call failed. If the charge can't
 * be recorded, destroys the context. */
static CUresult settle(struct charge *charge, CUresult result, CUcontext *ctx)
{
	if (result == CUDA_SUCCESS && charge_keep_context(charge, *ctx))
		return CUDA_SUCCESS;
	if (result == CUDA_SUCCESS) {
		REAL(cuCtxDestroy_v2)(*ctx);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	charge_cancel(charge);
	return result;
}

CUresult cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuCtxCreate)(ctx, flags, dev), ctx);
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuCtxCreate_v2)(ctx, flags, dev), ctx);
}

CUresult cuCtxCreate_v3(CUcontext *ctx, void *params, int count, unsigned int flags, CUdevice dev)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuCtxCreate_v3)(ctx, params, count, flags, dev), ctx);
}

CUresult cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned int flags, CUdevice dev)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuCtxCreate_v4)(ctx, params, flags, dev), ctx);
}

CUresult cuGLCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuGLCtxCreate)(ctx, flags, dev), ctx);
}

CUresult cuGLCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuGLCtxCreate_v2)(ctx, flags, dev), ctx);
}

CUresult cuVDPAUCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev, uint32_t vdp, void *get_proc_address)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuVDPAUCtxCreate)(ctx, flags, dev, vdp, get_proc_address), ctx);
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev, uint32_t vdp, void *get_proc_address)
{
	struct charge charge;
	CUresult result = charge_begin_context(&charge, dev);

	return result != CUDA_SUCCESS ? result : settle(&charge, REAL(cuVDPAUCtxCreate_v2)(ctx, flags, dev, vdp, get_proc_address), ctx);
}

/* The process; *stamp is the newest entry before the call that may end the context. */
static struct process *before_end(uint64_t *stamp)
{
	struct process *p = process_peek();

	sample_drop_all(); /* the limiter's events must not outlive their context */
	pace_forget_contexts();
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
	struct process *p;
	CUresult result = primary_begin(&p, dev);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuDevicePrimaryCtxRetain)(ctx, dev);
	if (result == CUDA_SUCCESS && ctx) /* Relaxed: a handle, the same for every thread. */
		atomic_store_explicit(&p->primary[device_cell(dev)].handle, *ctx, memory_order_relaxed);
	return primary_end(p, dev, result);
}

/* A green context is a share of the primary one, which the driver retains for it
 * and releases with it: it is charged with the primary one, and takes no more by itself. */
CUresult cuGreenCtxCreate(void **ctx, void *desc, CUdevice dev, unsigned int flags)
{
	struct process *p;
	CUresult result = primary_begin(&p, dev);

	return result != CUDA_SUCCESS ? result : primary_end(p, dev, REAL(cuGreenCtxCreate)(ctx, desc, dev, flags));
}

/* All that was allocated in the primary context ends with it. */
static void primary_gone(struct process *p, CUdevice dev, uint64_t stamp)
{
	CUcontext primary = atomic_load_explicit(&p->primary[device_cell(dev)].handle, memory_order_relaxed);

	discharge_context(p, primary, stamp);
	pools_refresh(p, -1);
	primary_may_have_ended(p, dev);
}

/* The context ends with its last release, which only the driver counts. */
static CUresult after_release(CUresult result, CUdevice dev, struct process *p, uint64_t stamp)
{
	if (result == CUDA_SUCCESS && p && device_cell(dev) >= 0 && !primary_active(dev))
		primary_gone(p, dev, stamp);
	return result;
}

/* The GPU of a green context is not known here: each GPU with a primary context is checked. */
CUresult cuGreenCtxDestroy(void *ctx)
{
	uint64_t stamp;
	struct process *p = before_end(&stamp);
	CUresult result = REAL(cuGreenCtxDestroy)(ctx);
	CUdevice dev;

	for (int cell = 0; result == CUDA_SUCCESS && p && cell < VGPU_MAX_DEVICES; cell++)
		if (primary_held(p, cell, &dev))
			after_release(CUDA_SUCCESS, dev, p, stamp);
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

/* A reset frees everything, even if other code has retained the context. */
static CUresult after_reset(CUresult result, CUdevice dev, struct process *p, uint64_t stamp)
{
	if (result == CUDA_SUCCESS && p && device_cell(dev) >= 0)
		primary_gone(p, dev, stamp);
	return result;
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
