/* Part of cuda_api.h: green contexts, which have some of the multiprocessors. Included by it. */
#ifndef SIMDRIVER_GREEN_API_H
#define SIMDRIVER_GREEN_API_H

#pragma GCC visibility push(default)

typedef struct CUdevResourceDesc_st *CUdevResourceDesc;

enum { CU_DEV_RESOURCE_TYPE_INVALID, CU_DEV_RESOURCE_TYPE_SM };

#define CU_GREEN_CTX_DEFAULT_STREAM 1u
#define CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING 1u
#define CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE 2u

typedef struct {
	int type;
	unsigned char internal[92]; /* the driver's */
	union {
		struct {
			unsigned int smCount;
			unsigned int minSmPartitionSize, smCoscheduledAlignment; /* since CUDA 13 */
		} sm;
		unsigned char size[48];
	};
} CUdevResource;

CUresult cuDeviceGetDevResource(CUdevice dev, CUdevResource *resource, int type);
CUresult cuCtxGetDevResource(CUcontext ctx, CUdevResource *resource, int type);
CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *resource, int type);
CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned int *count, const CUdevResource *input, CUdevResource *remaining,
				     unsigned int flags, unsigned int least);
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *desc, CUdevResource *resources, unsigned int count);
CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice dev, unsigned int flags);
CUresult cuGreenCtxDestroy(CUgreenCtx green);
CUresult cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green);
CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags, int priority);
CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event);
CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event);

#pragma GCC visibility pop
#endif
