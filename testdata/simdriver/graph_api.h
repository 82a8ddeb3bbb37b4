/* The rest of cuda_api.h: stream-ordered allocation, memory pools, graphs and stream capture. Included by it. */
#ifndef SIMDRIVER_GRAPH_API_H
#define SIMDRIVER_GRAPH_API_H

typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

#include "memop_api.h"

#pragma GCC visibility push(default)

enum { CU_MEM_HANDLE_POSIX_FD = 1 };

typedef struct {
	int allocType;	 /* 1: pinned */
	int handleTypes; /* what it may be exported as */
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;

typedef struct {
	unsigned char reserved[64];
} CUmemPoolPtrExportData;

enum {
	CU_MEMPOOL_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
	CU_MEMPOOL_REUSE_ALLOW_OPPORTUNISTIC,
	CU_MEMPOOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
	CU_MEMPOOL_RELEASE_THRESHOLD,
	CU_MEMPOOL_RESERVED_MEM_CURRENT,
	CU_MEMPOOL_RESERVED_MEM_HIGH,
	CU_MEMPOOL_USED_MEM_CURRENT,
	CU_MEMPOOL_USED_MEM_HIGH,
};

enum { CU_GRAPH_MEM_USED_CURRENT, CU_GRAPH_MEM_USED_HIGH, CU_GRAPH_MEM_RESERVED_CURRENT, CU_GRAPH_MEM_RESERVED_HIGH };

enum {
	CU_GRAPH_NODE_KERNEL = 0,
	CU_GRAPH_NODE_MEMCPY = 1,
	CU_GRAPH_NODE_MEMSET = 2,
	CU_GRAPH_NODE_HOST = 3,
	CU_GRAPH_NODE_GRAPH = 4,
	CU_GRAPH_NODE_EMPTY = 5,
	CU_GRAPH_NODE_WAIT_EVENT = 6,
	CU_GRAPH_NODE_EVENT_RECORD = 7,
	CU_GRAPH_NODE_MEM_ALLOC = 10,
	CU_GRAPH_NODE_MEM_FREE = 11,
	CU_GRAPH_NODE_BATCH_MEM_OP = 12,
};

typedef struct {
	CUfunction func;
	unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	void **kernelParams, **extra;
	void *kern; /* from here on in the second version only */
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
	CUmemPoolProps poolProps;
	const CUmemAccessDesc *accessDescs;
	size_t accessDescCount;
	size_t bytesize;
	CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
	CUhostFn fn;
	void *userData;
} CUDA_HOST_NODE_PARAMS;

typedef struct {
	int type;
	int reserved0[3];
	union {
		long long reserved1[29];
		CUDA_KERNEL_NODE_PARAMS kernel;
		CUDA_MEM_ALLOC_NODE_PARAMS alloc;
		CUdeviceptr free;
		CUgraph child;
		struct {
			int flags, reserved;
			CUcontext ctx;
			CUDA_MEMCPY3D params;
		} copy;
		CUDA_MEMSET_NODE_PARAMS fill;
		CUDA_HOST_NODE_PARAMS host;
		CUevent event;
		CUDA_BATCH_MEM_OP_NODE_PARAMS memops;
	};
	long long reserved2;
} CUgraphNodeParams;

#define CU_GRAPH_INSTANTIATE_AUTO_FREE_ON_LAUNCH 1u
#define CU_GRAPH_INSTANTIATE_UPLOAD 2u

enum { CU_GRAPH_INSTANTIATE_SUCCESS, CU_GRAPH_INSTANTIATE_ERROR, CU_GRAPH_INSTANTIATE_INVALID_STRUCTURE };

typedef struct {
	cuuint64_t flags;
	CUstream hUploadStream;
	CUgraphNode hErrNode_out;
	int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct {
	unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;

enum { CU_CAPTURE_NONE, CU_CAPTURE_ACTIVE, CU_CAPTURE_INVALIDATED };
enum { CU_CAPTURE_MODE_GLOBAL, CU_CAPTURE_MODE_THREAD_LOCAL, CU_CAPTURE_MODE_RELAXED };

/* Stream-ordered allocation and pools. */
STREAM_TWIN(cuMemAllocAsync, _ptsz, CUdeviceptr *ptr, size_t bytes, CUstream stream)
STREAM_TWIN(cuMemAllocFromPoolAsync, _ptsz, CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)
STREAM_TWIN(cuMemFreeAsync, _ptsz, CUdeviceptr ptr, CUstream stream)
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count);
CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location);
CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool, int type, unsigned long long flags);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type, unsigned long long flags);
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr ptr);
CUresult cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool pool, CUmemPoolPtrExportData *data);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev);
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev);
CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool);

/* Graphs. */
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count,
			      const CUDA_KERNEL_NODE_PARAMS *params);
CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count,
				 const CUDA_KERNEL_NODE_PARAMS *params);
CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count);
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count, CUgraph child);
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph);
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count,
				CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count, CUdeviceptr ptr);
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *ptr);
CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count, CUgraphNodeParams *params);
CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges,
			   size_t count, CUgraphNodeParams *params);
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count);
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				   const CUgraphEdgeData *edges, size_t count);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult cuGraphNodeGetType(CUgraphNode node, int *type);
CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size);
CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
STREAM_TWIN(cuGraphInstantiateWithParams, _ptsz, CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
STREAM_TWIN(cuGraphUpload, _ptsz, CUgraphExec exec, CUstream stream)
STREAM_TWIN(cuGraphLaunch, _ptsz, CUgraphExec exec, CUstream stream)
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuDeviceGraphMemTrim(CUdevice dev);
CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, int attribute, void *value);
CUresult cuDeviceSetGraphMemAttribute(CUdevice dev, int attribute, void *value);

/* Stream capture. */
STREAM_TWIN(cuStreamBeginCapture, _ptsz, CUstream stream)
STREAM_TWIN(cuStreamBeginCapture_v2, _ptsz, CUstream stream, int mode)
STREAM_TWIN(cuStreamEndCapture, _ptsz, CUstream stream, CUgraph *graph)
STREAM_TWIN(cuStreamIsCapturing, _ptsz, CUstream stream, int *status)
STREAM_TWIN(cuStreamGetCaptureInfo, _ptsz, CUstream stream, int *status, cuuint64_t *id)
STREAM_TWIN(cuStreamGetCaptureInfo_v2, _ptsz, CUstream stream, int *status, cuuint64_t *id, CUgraph *graph,
	    const CUgraphNode **deps, size_t *count)
STREAM_TWIN(cuStreamGetCaptureInfo_v3, _ptsz, CUstream stream, int *status, cuuint64_t *id, CUgraph *graph,
	    const CUgraphNode **deps, const CUgraphEdgeData **edges, size_t *count)
CUresult cuThreadExchangeStreamCaptureMode(int *mode);

#pragma GCC visibility pop
#endif
