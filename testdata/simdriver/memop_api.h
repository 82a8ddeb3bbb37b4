/* Part of cuda_api.h: streams that wait for values in memory and write them. Included by it. */
#ifndef SIMDRIVER_MEMOP_API_H
#define SIMDRIVER_MEMOP_API_H

#pragma GCC visibility push(default)

enum {
	CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1,
	CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2,
	CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES = 3,
	CU_STREAM_MEM_OP_WAIT_VALUE_64 = 4,
	CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5,
	CU_STREAM_MEM_OP_BARRIER = 6,
};

#define CU_STREAM_WAIT_VALUE_GEQ 0u
#define CU_STREAM_WAIT_VALUE_EQ 1u
#define CU_STREAM_WAIT_VALUE_AND 2u
#define CU_STREAM_WAIT_VALUE_NOR 3u
#define CU_STREAM_WAIT_VALUE_FLUSH (1u << 30)
#define CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER 1u

typedef union {
	int operation;
	struct { /* of waits and of writes */
		int operation;
		CUdeviceptr address;
		union {
			uint32_t value;
			cuuint64_t value64;
		};
		unsigned int flags;
		CUdeviceptr alias;
	} value;
	struct { /* of the other two */
		int operation;
		unsigned int flags;
	} other;
	cuuint64_t pad[6];
} CUstreamBatchMemOpParams;

typedef struct {
	CUcontext ctx;
	unsigned int count;
	CUstreamBatchMemOpParams *paramArray;
	unsigned int flags;
} CUDA_BATCH_MEM_OP_NODE_PARAMS;

STREAM_TWIN(cuStreamWaitValue32, _ptsz, CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
STREAM_TWIN(cuStreamWaitValue32_v2, _ptsz, CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
STREAM_TWIN(cuStreamWaitValue64, _ptsz, CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
STREAM_TWIN(cuStreamWaitValue64_v2, _ptsz, CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
STREAM_TWIN(cuStreamWriteValue32, _ptsz, CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
STREAM_TWIN(cuStreamWriteValue32_v2, _ptsz, CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
STREAM_TWIN(cuStreamWriteValue64, _ptsz, CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
STREAM_TWIN(cuStreamWriteValue64_v2, _ptsz, CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
STREAM_TWIN(cuStreamBatchMemOp, _ptsz, CUstream stream, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags)
STREAM_TWIN(cuStreamBatchMemOp_v2, _ptsz, CUstream stream, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags)
CUresult cuGraphAddBatchMemOpNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count,
				  const CUDA_BATCH_MEM_OP_NODE_PARAMS *params);
CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS *params);
CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params);
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params);

#pragma GCC visibility pop
#endif
