/* Launches. Where compute time is not limited now they go straight to the driver:
 * the check takes four loads. Copies and fills are not charged. */
#include "cores.h"
#include "graph.h"
#include "hooks.h"
#include "pace.h"
#include "turnends.h"

/* For a caller of the _ptsz variant the stream 0 is its thread's own. */
static CUstream per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

/* Two functions, so that the unlimited one needs no frame of its own. */
#define PACED(name, parameters, arguments, what, volume, stream)                    \
	static __attribute__((noinline)) CUresult limited_##name parameters          \
	{                                                                            \
		struct pace pace;                                                    \
		pace_begin(&pace, cores_limited(), (what), (volume), (stream));      \
		return pace_end(&pace, REAL(name) arguments);                        \
	}                                                                            \
	static inline CUresult paced_##name parameters                               \
	{                                                                            \
		if (__builtin_expect(cores_limited() != 0, 0))                       \
			return limited_##name arguments;                             \
		return REAL(name) arguments;                                         \
	}
#define LAUNCH(name, parameters, arguments, what, volume, stream)                   \
	PACED(name, parameters, arguments, what, volume, stream)                     \
	CUresult name parameters                                                     \
	{                                                                            \
		return paced_##name arguments;                                       \
	}

static uint64_t volume_of(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz)
{
	return (uint64_t)gx * gy * gz * ((uint64_t)bx * by * bz); /* the driver refuses sizes that overflow */
}

#define VOLUME volume_of(gx, gy, gz, bx, by, bz)
LAUNCH(cuLaunchKernel, (LAUNCH_SHAPE, void **extra),
       (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra), f, VOLUME, stream)
LAUNCH(cuLaunchKernel_ptsz, (LAUNCH_SHAPE, void **extra),
       (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra), f, VOLUME, per_thread(stream))
LAUNCH(cuLaunchCooperativeKernel, (LAUNCH_SHAPE),
       (f, gx, gy, gz, bx, by, bz, shared, stream, params), f, VOLUME, stream)
LAUNCH(cuLaunchCooperativeKernel_ptsz, (LAUNCH_SHAPE),
       (f, gx, gy, gz, bx, by, bz, shared, stream, params), f, VOLUME, per_thread(stream))

/* NULL: the driver returns the error. */
static uint64_t volume_in(const CUlaunchConfig *c)
{
	return c ? volume_of(c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ) : 0;
}

static CUstream stream_in(const CUlaunchConfig *c)
{
	return c ? c->hStream : NULL;
}

PACED(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction f, void **params, void **extra),
      (config, f, params, extra), f, volume_in(config), stream_in(config))
PACED(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *config, CUfunction f, void **params, void **extra),
      (config, f, params, extra), f, volume_in(config), per_thread(stream_in(config)))

/* A launch can record an event. */
static void see_attributes(const CUlaunchConfig *c)
{
	for (unsigned i = 0; c && c->attrs && i < c->numAttrs; i++)
		if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT || c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
			events_unknown();
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	see_attributes(config);
	return paced_cuLaunchKernelEx(config, f, params, extra);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	see_attributes(config);
	return paced_cuLaunchKernelEx_ptsz(config, f, params, extra);
}

static uint64_t area(int width, int height)
{
	return (uint64_t)(unsigned)width * (unsigned)height;
}

/* The old calls have the block's shape in the function; the first two are in stream 0. */
LAUNCH(cuLaunch, (CUfunction f), (f), f, 1, NULL)
LAUNCH(cuLaunchGrid, (CUfunction f, int width, int height), (f, width, height), f, area(width, height), NULL)
LAUNCH(cuLaunchGridAsync, (CUfunction f, int width, int height, CUstream stream), (f, width, height, stream), f,
       area(width, height), stream)

/* A graph's execution is measured as a whole, the work of all its nodes. Its memory
 * is charged first: a launch that is refused for lack of memory does not wait for its turn. */
PACED(cuGraphLaunch, (CUgraphExec exec, CUstream stream), (exec, stream), exec, 0, stream)
PACED(cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream), (exec, stream), exec, 0, per_thread(stream))

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	struct graph_call call;

	if (__builtin_expect(!graphs_take_memory(), 1))
		return paced_cuGraphLaunch(exec, stream);
	CUresult result = graph_begin(&call, exec, stream);
	return result != CUDA_SUCCESS ? result : graph_end(&call, paced_cuGraphLaunch(exec, stream));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	struct graph_call call;

	if (__builtin_expect(!graphs_take_memory(), 1))
		return paced_cuGraphLaunch_ptsz(exec, stream);
	CUresult result = graph_begin(&call, exec, per_thread(stream));
	return result != CUDA_SUCCESS ? result : graph_end(&call, paced_cuGraphLaunch_ptsz(exec, stream));
}

/* One kernel on several GPUs, a launch on each. The driver refuses two on one GPU. CUDA 13 has it no more. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags)
{
	uint32_t limited = cores_limited();
	struct pace paces[VGPU_MAX_DEVICES];
	unsigned paced = limited && list ? count < VGPU_MAX_DEVICES ? count : VGPU_MAX_DEVICES : 0;

	for (unsigned i = 0; i < paced; i++) {
		const CUDA_LAUNCH_PARAMS *l = &list[i];

		pace_begin_elsewhere(&paces[i], limited, l->function,
		                     volume_of(l->gridDimX, l->gridDimY, l->gridDimZ, l->blockDimX, l->blockDimY, l->blockDimZ),
		                     l->hStream);
	}
	CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
	for (unsigned i = 0; i < paced; i++)
		pace_end(&paces[i], result);
	return result;
}
