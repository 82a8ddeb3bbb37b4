/* Launches as before CUDA 4, where block and parameters are set on the function; and cooperative launches on several devices. */
#include "launch.h"

#define MAX_PARAMETER_BYTES 4096u
#define MAX_DEVICES 32u

static CUresult set_shape(CUfunction f, int x, int y, int z)
{
	struct launch l = {.grid = {1, 1, 1}, .block = {(unsigned)x, (unsigned)y, (unsigned)z}};
	CUresult r = CUDA_SUCCESS;

	if (x < 1 || y < 1 || z < 1 || bad_shape(&l))
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	if (object_is(OBJECT_FUNCTION, f)) {
		for (int i = 0; i < 3; i++)
			f->shape[i] = l.block[i];
	} else {
		r = CUDA_ERROR_INVALID_HANDLE;
	}
	process_unlock();
	return r;
}

CUresult cuFuncSetBlockShape(CUfunction f, int x, int y, int z)
{
	ENTER();
	return set_shape(f, x, y, z);
}

static CUresult known(CUfunction f)
{
	bool is;

	process_lock();
	is = object_is(OBJECT_FUNCTION, f);
	process_unlock();
	return is ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncSetSharedSize(CUfunction f, unsigned int bytes)
{
	(void)bytes;
	ENTER();
	return known(f);
}

/* Parameters are not kept: no code runs that would read them. */
static CUresult parameter(CUfunction f, int offset, unsigned bytes)
{
	if (offset < 0 || bytes > MAX_PARAMETER_BYTES || (unsigned)offset > MAX_PARAMETER_BYTES - bytes)
		return CUDA_ERROR_INVALID_VALUE;
	return known(f);
}

CUresult cuParamSetSize(CUfunction f, unsigned int bytes)
{
	ENTER();
	return parameter(f, 0, bytes);
}

CUresult cuParamSeti(CUfunction f, int offset, unsigned int value)
{
	(void)value;
	ENTER();
	return parameter(f, offset, sizeof(value));
}

CUresult cuParamSetf(CUfunction f, int offset, float value)
{
	(void)value;
	ENTER();
	return parameter(f, offset, sizeof(value));
}

CUresult cuParamSetv(CUfunction f, int offset, void *data, unsigned int bytes)
{
	ENTER();
	if (!data && bytes)
		return CUDA_ERROR_INVALID_VALUE;
	return parameter(f, offset, bytes);
}

static CUresult launch_grid(CUfunction f, int width, int height, CUstream stream)
{
	struct launch l = {.f = f, .grid = {(unsigned)width, (unsigned)height, 1}, .stream = stream};
	CUresult r;

	if (width < 1 || height < 1)
		return CUDA_ERROR_INVALID_VALUE;
	r = known(f);
	if (r)
		return r;
	process_lock();
	for (int i = 0; i < 3; i++)
		l.block[i] = f->shape[i];
	process_unlock();
	return launch(&l);
}

CUresult cuLaunch(CUfunction f)
{
	ENTER();
	return launch_grid(f, 1, 1, NULL);
}

CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
	ENTER();
	return launch_grid(f, width, height, NULL);
}

CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
	ENTER();
	return launch_grid(f, width, height, stream);
}

/* Each in a stream of its own device, as documented. Process lock held. */
static CUresult check_list(const CUDA_LAUNCH_PARAMS *list, unsigned count)
{
	bool used[MAX_DEVICES] = {false};

	for (unsigned i = 0; i < count; i++) {
		CUstream s = list[i].hStream;
		unsigned gpu;

		if (!object_is(OBJECT_STREAM, s) || !object_is(OBJECT_FUNCTION, list[i].function))
			return CUDA_ERROR_INVALID_HANDLE;
		gpu = s->ctx->gpu % MAX_DEVICES;
		if (used[gpu])
			return CUDA_ERROR_INVALID_DEVICE;
		used[gpu] = true;
	}
	return CUDA_SUCCESS;
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags)
{
	CUresult r;

	ENTER();
	if (!list || !count || count > process.device_count || flags > 3)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = check_list(list, count);
	process_unlock();
	for (unsigned i = 0; !r && i < count; i++) {
		struct launch l = {.f = list[i].function,
				   .grid = {list[i].gridDimX, list[i].gridDimY, list[i].gridDimZ},
				   .block = {list[i].blockDimX, list[i].blockDimY, list[i].blockDimZ},
				   .stream = list[i].hStream,
				   .params = list[i].kernelParams};

		r = launch(&l);
	}
	return r;
}
