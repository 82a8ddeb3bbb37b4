/* Clusters: blocks that run at the same time in one group of multiprocessors. */
#include "driver.h"

#define CLUSTER_DIMENSION 4    /* of launch attributes */
#define NON_PORTABLE 14	       /* CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED */
#define CLUSTER_LAUNCH 120     /* of a device */
#define MULTIPROCESSORS 16
#define GROUP 16	       /* multiprocessors of a group: our reading of 132 in 8 groups, of which some have 18 */
#define PORTABLE 8

struct attribute { /* CUlaunchAttribute */
	int id;
	char pad[4];
	union {
		char pad[64];
		unsigned cluster[3];
	} value;
};

static CUresult cluster_of(const CUlaunchConfig *c, int *blocks)
{
	const struct attribute *a = c->attrs;

	*blocks = 1;
	for (unsigned i = 0; i < c->numAttrs; i++) {
		if (a[i].id != CLUSTER_DIMENSION)
			continue;
		for (int d = 0; d < 3; d++) {
			if (!a[i].value.cluster[d] || a[i].value.cluster[d] > GROUP)
				return CUDA_ERROR_INVALID_CLUSTER_SIZE;
			*blocks *= (int)a[i].value.cluster[d];
		}
	}
	return CUDA_SUCCESS;
}

/* Blocks of the launch that a multiprocessor holds, and what the device has. */
static CUresult look(CUfunction f, const CUlaunchConfig *c, int *held, int *clusters, int *multiprocessors, int *largest)
{
	int wide = 0;
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!c || (c->numAttrs && !c->attrs) || !c->gridDimX || !c->gridDimY || !c->gridDimZ)
		return CUDA_ERROR_INVALID_VALUE;
	r = cuOccupancyMaxActiveBlocksPerMultiprocessor(held, f, (int)(c->blockDimX * c->blockDimY * c->blockDimZ), c->sharedMemBytes);
	if (!r)
		r = cuFuncGetAttribute(&wide, NON_PORTABLE, f);
	if (!r)
		r = cuDeviceGetAttribute(clusters, CLUSTER_LAUNCH, ctx->device);
	*largest = !*clusters ? 1 : wide ? GROUP : PORTABLE;
	return r ? r : cuDeviceGetAttribute(multiprocessors, MULTIPROCESSORS, ctx->device);
}

CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction f, const CUlaunchConfig *config)
{
	int held, clusters = 0, multiprocessors, largest, best = 1;
	CUresult r;

	ENTER();
	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	r = look(f, config, &held, &clusters, &multiprocessors, &largest);
	while (!r && best < largest && best * 2 <= held * (multiprocessors < GROUP ? multiprocessors : GROUP))
		best *= 2;
	if (!r)
		*size = best;
	return r;
}

CUresult cuOccupancyMaxActiveClusters(int *active, CUfunction f, const CUlaunchConfig *config)
{
	int held, clusters = 0, multiprocessors, largest, blocks;
	CUresult r;

	ENTER();
	if (!active)
		return CUDA_ERROR_INVALID_VALUE;
	r = look(f, config, &held, &clusters, &multiprocessors, &largest);
	if (!r)
		r = cluster_of(config, &blocks);
	if (!r && blocks > largest)
		r = CUDA_ERROR_INVALID_CLUSTER_SIZE;
	if (!r)
		*active = multiprocessors / GROUP * (GROUP * held / blocks) + multiprocessors % GROUP * held / blocks;
	return r;
}
