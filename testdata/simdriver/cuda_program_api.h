/* As cuda_api.h: limits of contexts, the linker, libraries, occupancy, functions of the host, attributes of pointers. */
#ifndef SIMDRIVER_CUDA_PROGRAM_API_H
#define SIMDRIVER_CUDA_PROGRAM_API_H

#pragma GCC visibility push(default)

typedef struct CUlinkState_st *CUlinkState;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef void (*CUhostFn)(void *data);
typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *data);
typedef size_t (*CUoccupancyB2DSize)(int block);

enum { CU_LIMIT_STACK_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_MALLOC_HEAP_SIZE, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH,
	CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, CU_LIMIT_MAX_L2_FETCH_GRANULARITY, CU_LIMIT_PERSISTING_L2_CACHE_SIZE,
	CU_LIMITS };

typedef struct {
	int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], sharedMemPerBlock, totalConstantMemory, SIMDWidth, memPitch,
		regsPerBlock, clockRate, textureAlign;
} CUdevprop;

typedef struct {
	int type; /* 1: device, 2: host, 3: host NUMA, 4: host NUMA of the caller */
	int id;
} CUmemLocation_prefetch;

/* Contexts. */
CUresult cuCtxSetLimit(int limit, size_t value);
CUresult cuCtxGetLimit(size_t *value, int limit);
CUresult cuCtxGetCacheConfig(int *config);
CUresult cuCtxSetCacheConfig(int config);
CUresult cuCtxGetSharedMemConfig(int *config);
CUresult cuCtxSetSharedMemConfig(int config);
CUresult cuCtxResetPersistingL2Cache(void);
CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id);
CUresult cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice dev);
CUresult cuCtxGetExecAffinity(void *affinity, int type);
CUresult cuCtxSetFlags(unsigned int flags);
CUresult cuCtxAttach(CUcontext *ctx, unsigned int flags);
CUresult cuCtxDetach(CUcontext ctx);
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags);
CUresult cuCtxDisablePeerAccess(CUcontext peer);
CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice dev, CUdevice peer);
CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev);
CUresult cuProfilerInitialize(const char *config, const char *output, int mode);
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
CUresult cuFuncSetSharedMemConfig(CUfunction f, int config);

CUresult cuCtxRecordEvent(CUcontext ctx, CUevent event);
CUresult cuCtxWaitEvent(CUcontext ctx, CUevent event);
CUresult cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice dev);
CUresult cuFlushGPUDirectRDMAWrites(int target, int scope);

/* Modules. */
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image);
CUresult cuModuleGetLoadingMode(int *mode);
CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module);
CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule module);
CUresult cuFuncGetName(const char **name, CUfunction f);
CUresult cuFuncGetModule(CUmodule *module, CUfunction f);
CUresult cuFuncIsLoaded(int *state, CUfunction f);
CUresult cuFuncLoad(CUfunction f);
CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *bytes);

/* The linker. */
CUresult cuLinkCreate(unsigned int count, int *options, void **values, CUlinkState *state);
CUresult cuLinkCreate_v2(unsigned int count, int *options, void **values, CUlinkState *state);
CUresult cuLinkAddData(CUlinkState state, int type, void *data, size_t size, const char *name, unsigned int count,
		       int *options, void **values);
CUresult cuLinkAddData_v2(CUlinkState state, int type, void *data, size_t size, const char *name, unsigned int count,
			  int *options, void **values);
CUresult cuLinkAddFile(CUlinkState state, int type, const char *path, unsigned int count, int *options, void **values);
CUresult cuLinkAddFile_v2(CUlinkState state, int type, const char *path, unsigned int count, int *options, void **values);
CUresult cuLinkComplete(CUlinkState state, void **cubin, size_t *size);
CUresult cuLinkDestroy(CUlinkState state);

/* Libraries. */
CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values, unsigned int jit_count,
			   int *options, void **values, unsigned int count);
CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values, unsigned int jit_count,
			       int *options, void **values, unsigned int count);
CUresult cuLibraryUnload(CUlibrary library);
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);
CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library);
CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library);
CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library);
CUresult cuLibraryGetGlobal(CUdeviceptr *ptr, size_t *bytes, CUlibrary library, const char *name);
CUresult cuLibraryGetManaged(CUdeviceptr *ptr, size_t *bytes, CUlibrary library, const char *name);
CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *name);
CUresult cuKernelGetFunction(CUfunction *f, CUkernel kernel);
CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel);
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes);
CUresult cuKernelGetName(const char **name, CUkernel kernel);
CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice dev);
CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice dev);
CUresult cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice dev);

/* Occupancy. */
CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction f, const CUlaunchConfig *config);
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction f, const CUlaunchConfig *config);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int block, size_t shared);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f, int block, size_t shared,
							      unsigned int flags);
CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f, CUoccupancyB2DSize shared_of, size_t shared,
					  int limit);
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction f, CUoccupancyB2DSize shared_of,
						   size_t shared, int limit, unsigned int flags);
CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction f, int blocks, int block);

/* Functions of the host in a stream. */
STREAM_TWIN(cuLaunchHostFunc, _ptsz, CUstream stream, CUhostFn function, void *data)
STREAM_TWIN(cuStreamAddCallback, _ptsz, CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)

/* Pointers, and where managed memory should be. */
CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **data, CUdeviceptr ptr);
CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr ptr);
STREAM_TWIN(cuMemPrefetchAsync, _ptsz, CUdeviceptr ptr, size_t bytes, CUdevice dev, CUstream stream)
STREAM_TWIN(cuMemPrefetchAsync_v2, _ptsz, CUdeviceptr ptr, size_t bytes, CUmemLocation_prefetch to, unsigned int flags,
	    CUstream stream)
STREAM_TWIN(cuStreamAttachMemAsync, _ptsz, CUstream stream, CUdeviceptr ptr, size_t length, unsigned int flags)
CUresult cuMemRangeGetAttribute(void *data, size_t size, int attribute, CUdeviceptr ptr, size_t bytes);
CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, int *attributes, size_t count, CUdeviceptr ptr, size_t bytes);
CUresult cuMemAdvise_v2(CUdeviceptr ptr, size_t bytes, int advice, CUmemLocation_prefetch at);

#pragma GCC visibility pop

#endif
