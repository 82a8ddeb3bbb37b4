/* Occupancy: how many blocks of a function a multiprocessor holds at once, by its threads, registers and shared memory. */
#include "driver.h"

#define WARP 32
#define REGISTERS_OF_SM 65536
#define REGISTER_UNIT 256 /* registers are given to a warp in these */
#define SHARED_UNIT 128

enum { BLOCKS_PER_SM = 106, RESERVED_SHARED = 111, THREADS_PER_SM = 39, SHARED_PER_SM = 81, MULTIPROCESSORS = 16,
	REGISTERS = 4, MAX_THREADS = 0 };

static int device_value(int attribute)
{
	CUcontext ctx;
	int value = 0;

	if (!current_context(&ctx))
		cuDeviceGetAttribute(&value, attribute, ctx->device);
	return value;
}

static int least(int a, int b)
{
	return a < b ? a : b;
}

static int blocks_at_once(int block, size_t shared, int registers)
{
	int warps = (block + WARP - 1) / WARP;
	int of_warp = (registers * WARP + REGISTER_UNIT - 1) / REGISTER_UNIT * REGISTER_UNIT;
	size_t of_block = (shared + (size_t)device_value(RESERVED_SHARED) + SHARED_UNIT - 1) / SHARED_UNIT * SHARED_UNIT;
	size_t room = (size_t)device_value(SHARED_PER_SM);
	int blocks = least(device_value(BLOCKS_PER_SM), device_value(THREADS_PER_SM) / (warps * WARP));

	blocks = least(blocks, REGISTERS_OF_SM / (of_warp * warps));
	return of_block && room / of_block < (size_t)blocks ? (int)(room / of_block) : blocks;
}

/* The function's registers, and how many threads a block of it may have. */
static CUresult needs(CUfunction f, int *registers, int *threads)
{
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (!r)
		r = cuFuncGetAttribute(registers, REGISTERS, f);
	return r ? r : cuFuncGetAttribute(threads, MAX_THREADS, f);
}

static CUresult active_blocks(int *blocks, CUfunction f, int block, size_t shared, unsigned flags)
{
	int registers, threads;
	CUresult r;

	if (!blocks || block <= 0 || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	r = needs(f, &registers, &threads);
	if (!r)
		*blocks = block > threads ? 0 : blocks_at_once(block, shared, registers);
	return r;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int block, size_t shared)
{
	ENTER();
	return active_blocks(blocks, f, block, shared, 0);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f, int block, size_t shared,
							      unsigned int flags)
{
	ENTER();
	return active_blocks(blocks, f, block, shared, flags);
}

/* The largest block of those with which most threads run at once. */
static CUresult potential(int *grid, int *block, CUfunction f, CUoccupancyB2DSize shared_of, size_t shared, int limit, unsigned flags)
{
	int registers, threads, best = 0, best_block = 0, best_blocks = 0;
	CUresult r;

	if (!grid || !block || limit < 0 || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	r = needs(f, &registers, &threads);
	if (r)
		return r;
	if (limit && limit < threads)
		threads = limit;
	for (int size = (threads + WARP - 1) / WARP * WARP; size > 0; size -= WARP) {
		int of = least(size, threads);
		int blocks = blocks_at_once(of, shared_of ? shared_of(of) : shared, registers);

		if (blocks * of > best) {
			best = blocks * of;
			best_block = of;
			best_blocks = blocks;
		}
	}
	*grid = best_blocks * device_value(MULTIPROCESSORS);
	*block = best_block;
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f, CUoccupancyB2DSize shared_of, size_t shared,
					  int limit)
{
	ENTER();
	return potential(grid, block, f, shared_of, shared, limit, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction f, CUoccupancyB2DSize shared_of,
						   size_t shared, int limit, unsigned int flags)
{
	ENTER();
	return potential(grid, block, f, shared_of, shared, limit, flags);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction f, int blocks, int block)
{
	int registers, threads;
	size_t room;
	CUresult r;

	ENTER();
	if (!bytes || blocks <= 0 || block <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	r = needs(f, &registers, &threads);
	if (r)
		return r;
	if (blocks > blocks_at_once(block, 0, registers))
		return CUDA_ERROR_INVALID_VALUE;
	room = (size_t)device_value(SHARED_PER_SM) / (size_t)blocks / SHARED_UNIT * SHARED_UNIT;
	*bytes = room - (size_t)device_value(RESERVED_SHARED);
	return CUDA_SUCCESS;
}
