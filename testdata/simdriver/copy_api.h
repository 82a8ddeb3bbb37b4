/* Part of cuda_api.h: copies and fills. Included by it. */
#ifndef SIMDRIVER_COPY_API_H
#define SIMDRIVER_COPY_API_H

#pragma GCC visibility push(default)

STREAM_TWIN(cuMemcpy, _ptds, CUdeviceptr dst, CUdeviceptr src, size_t bytes)
STREAM_TWIN(cuMemcpyHtoD_v2, _ptds, CUdeviceptr dst, const void *src, size_t bytes)
STREAM_TWIN(cuMemcpyDtoH_v2, _ptds, void *dst, CUdeviceptr src, size_t bytes)
STREAM_TWIN(cuMemcpyDtoD_v2, _ptds, CUdeviceptr dst, CUdeviceptr src, size_t bytes)
STREAM_TWIN(cuMemcpyAsync, _ptsz, CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
STREAM_TWIN(cuMemcpyHtoDAsync_v2, _ptsz, CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
STREAM_TWIN(cuMemcpyDtoHAsync_v2, _ptsz, void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
STREAM_TWIN(cuMemcpyDtoDAsync_v2, _ptsz, CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
STREAM_TWIN(cuMemsetD8_v2, _ptds, CUdeviceptr dst, unsigned char value, size_t count)
STREAM_TWIN(cuMemsetD16_v2, _ptds, CUdeviceptr dst, unsigned short value, size_t count)
STREAM_TWIN(cuMemsetD32_v2, _ptds, CUdeviceptr dst, unsigned int value, size_t count)
STREAM_TWIN(cuMemsetD8Async, _ptsz, CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
STREAM_TWIN(cuMemsetD16Async, _ptsz, CUdeviceptr dst, unsigned short value, size_t count, CUstream stream)
STREAM_TWIN(cuMemsetD32Async, _ptsz, CUdeviceptr dst, unsigned int value, size_t count, CUstream stream)

/* Rows and planes. Those that are unaligned are so for other pitches than cuMemAllocPitch gives. */
STREAM_TWIN(cuMemcpy2D_v2, _ptds, const CUDA_MEMCPY2D *copy)
STREAM_TWIN(cuMemcpy2DUnaligned_v2, _ptds, const CUDA_MEMCPY2D *copy)
STREAM_TWIN(cuMemcpy2DAsync_v2, _ptsz, const CUDA_MEMCPY2D *copy, CUstream stream)
STREAM_TWIN(cuMemcpy3D_v2, _ptds, const CUDA_MEMCPY3D *copy)
STREAM_TWIN(cuMemcpy3DAsync_v2, _ptsz, const CUDA_MEMCPY3D *copy, CUstream stream)
STREAM_TWIN(cuMemcpy3DPeer, _ptds, const CUDA_MEMCPY3D *copy)
STREAM_TWIN(cuMemcpy3DPeerAsync, _ptsz, const CUDA_MEMCPY3D *copy, CUstream stream)
STREAM_TWIN(cuMemcpyPeer, _ptds, CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes)
STREAM_TWIN(cuMemcpyPeerAsync, _ptsz, CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes,
	    CUstream stream)
STREAM_TWIN(cuMemsetD2D8_v2, _ptds, CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height)
STREAM_TWIN(cuMemsetD2D16_v2, _ptds, CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height)
STREAM_TWIN(cuMemsetD2D32_v2, _ptds, CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height)
STREAM_TWIN(cuMemsetD2D8Async, _ptsz, CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream)
STREAM_TWIN(cuMemsetD2D16Async, _ptsz, CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream)
STREAM_TWIN(cuMemsetD2D32Async, _ptsz, CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height, CUstream stream)

/* Arrays, from an offset in bytes on. */
STREAM_TWIN(cuMemcpyHtoA_v2, _ptds, CUarray dst, size_t offset, const void *src, size_t bytes)
STREAM_TWIN(cuMemcpyAtoH_v2, _ptds, void *dst, CUarray src, size_t offset, size_t bytes)
STREAM_TWIN(cuMemcpyDtoA_v2, _ptds, CUarray dst, size_t offset, CUdeviceptr src, size_t bytes)
STREAM_TWIN(cuMemcpyAtoD_v2, _ptds, CUdeviceptr dst, CUarray src, size_t offset, size_t bytes)
STREAM_TWIN(cuMemcpyAtoA_v2, _ptds, CUarray dst, size_t dst_offset, CUarray src, size_t src_offset, size_t bytes)
STREAM_TWIN(cuMemcpyHtoAAsync_v2, _ptsz, CUarray dst, size_t offset, const void *src, size_t bytes, CUstream stream)
STREAM_TWIN(cuMemcpyAtoHAsync_v2, _ptsz, void *dst, CUarray src, size_t offset, size_t bytes, CUstream stream)

/* Nodes of graphs. */
CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count, const CUDA_MEMCPY3D *copy,
			      CUcontext ctx);
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *copy);
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *copy);
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *copy, CUcontext ctx);
CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count,
			      const CUDA_MEMSET_NODE_PARAMS *params, CUcontext ctx);
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params);
CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params);
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext ctx);

#pragma GCC visibility pop
#endif
