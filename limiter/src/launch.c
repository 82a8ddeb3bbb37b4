/* Launches. Where compute time is not limited now they go straight to the driver:
 * two loads say so. Copies and fills are not charged; the driver's own share of what
 * a call takes is not either. */
#include "cores.h"
#include "graph.h"
#include "hooks.h"
#include "pace.h"

/* For a caller of the _ptsz variant the stream 0 is its thread's own. */
static CUstream per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

#define PACED(what, volume, stream, call)                               \
	do {                                                             \
		uint32_t limited_ = cores_limited();                     \
		struct pace pace_;                                       \
		if (__builtin_expect(!limited_, 1))                      \
			return call;                                     \
		pace_begin(&pace_, limited_, (what), (volume), (stream)); \
		return pace_end(&pace_, call);                           \
	} while (0)

static uint64_t volume_of(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz)
{
	return (uint64_t)gx * gy * gz * ((uint64_t)bx * by * bz); /* what overflows is refused by the driver */
}

CUresult cuLaunchKernel(LAUNCH_SHAPE, void **extra)
{
	PACED(f, volume_of(gx, gy, gz, bx, by, bz), stream,
	      REAL(cuLaunchKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));
}

CUresult cuLaunchKernel_ptsz(LAUNCH_SHAPE, void **extra)
{
	PACED(f, volume_of(gx, gy, gz, bx, by, bz), per_thread(stream),
	      REAL(cuLaunchKernel_ptsz)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));
}

CUresult cuLaunchCooperativeKernel(LAUNCH_SHAPE)
{
	PACED(f, volume_of(gx, gy, gz, bx, by, bz), stream,
	      REAL(cuLaunchCooperativeKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, params));
}

CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH_SHAPE)
{
	PACED(f, volume_of(gx, gy, gz, bx, by, bz), per_thread(stream),
	      REAL(cuLaunchCooperativeKernel_ptsz)(f, gx, gy, gz, bx, by, bz, shared, stream, params));
}

static uint64_t volume_in(const CUlaunchConfig *c)
{
	return volume_of(c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (!config)
		return REAL(cuLaunchKernelEx)(config, f, params, extra);
	PACED(f, volume_in(config), config->hStream, REAL(cuLaunchKernelEx)(config, f, params, extra));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (!config)
		return REAL(cuLaunchKernelEx_ptsz)(config, f, params, extra);
	PACED(f, volume_in(config), per_thread(config->hStream), REAL(cuLaunchKernelEx_ptsz)(config, f, params, extra));
}

/* The old calls have the block's shape in the function; a NULL stream is theirs. */
CUresult cuLaunch(CUfunction f)
{
	PACED(f, 1, NULL, REAL(cuLaunch)(f));
}

static uint64_t area(int width, int height)
{
	return (uint64_t)(unsigned)width * (unsigned)height;
}

CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
	PACED(f, area(width, height), NULL, REAL(cuLaunchGrid)(f, width, height));
}

CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
	PACED(f, area(width, height), stream, REAL(cuLaunchGridAsync)(f, width, height, stream));
}

/* A graph's execution is measured as a whole, the work of all its nodes. Its memory
 * is charged first: what is refused for want of it does not wait for its turn. */
static CUresult launch_graph(CUgraphExec exec, CUstream stream)
{
	PACED(exec, 0, stream, REAL(cuGraphLaunch)(exec, stream));
}

static CUresult launch_graph_ptsz(CUgraphExec exec, CUstream stream)
{
	PACED(exec, 0, per_thread(stream), REAL(cuGraphLaunch_ptsz)(exec, stream));
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	struct graph_call call;

	if (__builtin_expect(!graphs_take_memory(), 1))
		return launch_graph(exec, stream);
	CUresult result = graph_begin(&call, exec, stream);
	return result != CUDA_SUCCESS ? result : graph_end(&call, launch_graph(exec, stream));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	struct graph_call call;

	if (__builtin_expect(!graphs_take_memory(), 1))
		return launch_graph_ptsz(exec, stream);
	CUresult result = graph_begin(&call, exec, per_thread(stream));
	return result != CUDA_SUCCESS ? result : graph_end(&call, launch_graph_ptsz(exec, stream));
}

/* One kernel on several cards, each charged on its own. CUDA 13 has it no more; it
 * is not measured: an unknown one is charged as a typical launch. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags)
{
	uint32_t limited = cores_limited();

	for (unsigned i = 0; limited && list && i < count; i++) {
		const CUDA_LAUNCH_PARAMS *l = &list[i];
		struct pace pace;

		pace_begin_elsewhere(&pace, limited, l->function,
		                     volume_of(l->gridDimX, l->gridDimY, l->gridDimZ, l->blockDimX, l->blockDimY, l->blockDimZ),
		                     l->hStream);
	}
	return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
}
