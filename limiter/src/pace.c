#include "pace.h"

#include "capture.h"
#include "cores.h"
#include "device.h"
#include "duration.h"
#include "hooks.h"
#include "turn.h"
#include "turnstate.h"

/* Contexts and their cells, for a container with several GPUs: the handle in the
 * high 56 bits, the cell + 1 in the low 8, in one word that is read at once. */
enum { CONTEXTS = 16 };
static _Atomic uint64_t contexts[CONTEXTS];

static _Atomic uint64_t *place_of(CUcontext context)
{
	return &contexts[((uintptr_t)context >> 4 ^ (uintptr_t)context >> 12) % CONTEXTS];
}

/* The cell of a context; -1: it is not recorded, or its GPU is not granted. */
static int remembered(CUcontext context)
{
	/* Relaxed: no other data depends on the word. */
	uint64_t word = atomic_load_explicit(place_of(context), memory_order_relaxed);

	return word >> 8 == ((uint64_t)(uintptr_t)context & UINT64_MAX >> 8) ? (int)(word & 0xff) - 1 : -1;
}

static int cell_current(void)
{
	struct here here = { NULL, -1 };
	CUcontext context = NULL;

	if (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context)
		return -1;
	int cell = remembered(context);
	if (__builtin_expect(cell >= 0, 1))
		return cell;
	if (device_here(&here) != CUDA_SUCCESS || here.cell < 0)
		return -1;
	atomic_store_explicit(place_of(here.context), (uint64_t)(uintptr_t)here.context << 8 | (uint64_t)(here.cell + 1),
	                      memory_order_relaxed);
	return here.cell;
}

/* The cell of the launch. With one granted GPU the driver need not be queried. */
int pace_cell(void)
{
	return __builtin_expect(atomic_load_explicit(&cores.cells, memory_order_relaxed) == 1, 1) ? 0 : cell_current();
}

static int cell_of_stream(CUstream stream)
{
	CUcontext context = NULL;

	if (atomic_load_explicit(&cores.cells, memory_order_relaxed) == 1)
		return 0;
	if (REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || !context)
		return -1;
	int cell = remembered(context);
	if (cell >= 0 || REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
		return cell;
	cell = cell_current();
	REAL(cuCtxPopCurrent_v2)(&context);
	return cell;
}

void pace_forget_contexts(void)
{
	for (int i = 0; i < CONTEXTS; i++)
		atomic_store_explicit(&contexts[i], 0, memory_order_relaxed);
}

static inline bool takes_part(struct pace *p, uint32_t limited, CUstream stream, int cell)
{
	p->cell = -1;
	if (cell < 0 || !(limited >> cell & 1) || (capture_any() && capture_of(stream)))
		return false;
	p->cell = cell;
	p->stream = flight_name(stream);
	return true;
}

/* A launch that is short, and expected, only takes its time off the quota. */
static inline void take(struct pace *p)
{
	_Atomic int64_t *quota = &turn_flights[p->cell].quota;
	int64_t ns = (int64_t)duration_of(p->key);

	ns = ns < FLIGHT_LEAST_NS ? ns ? FLIGHT_LEAST_NS : FLIGHT_QUOTA_NS + 1 : ns;
	/* Relaxed: what is launched without a look is bounded by the number itself. */
	p->looked = __builtin_expect(atomic_load_explicit(quota, memory_order_relaxed) < ns ||
	                             atomic_fetch_sub_explicit(quota, ns, memory_order_relaxed) < ns, 0);
	if (__builtin_expect(p->looked, 0))
		turn_take(p->cell, p->key, p->stream);
}

void pace_begin(struct pace *p, uint32_t limited, const void *what, uint64_t volume, CUstream stream)
{
	if (!takes_part(p, limited, stream, pace_cell()))
		return;
	p->key = duration_key(what, volume, p->cell);
	take(p);
}

void pace_begin_elsewhere(struct pace *p, uint32_t limited, const void *what, uint64_t volume, CUstream stream)
{
	if (!takes_part(p, limited, stream, cell_of_stream(stream)))
		return;
	p->key = duration_key(what, volume, p->cell);
	take(p);
}

CUresult pace_end(struct pace *p, CUresult result)
{
	if (__builtin_expect(p->cell < 0, 0))
		return result;
	if (result == CUDA_SUCCESS)
		flight_launched(&turn_flights[p->cell], p->key, p->stream);
	if (__builtin_expect(p->looked, 0))
		turn_launched(p->cell);
	return result;
}
