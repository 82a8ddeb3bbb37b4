/* Part of cuda_api.h: what is known of a stream, and what it is set to. Included by it. */
#ifndef SIMDRIVER_STREAM_API_H
#define SIMDRIVER_STREAM_API_H

#pragma GCC visibility push(default)

typedef struct CUgreenCtx_st *CUgreenCtx;

enum {
	CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW = 1,
	CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY = 3,
	CU_STREAM_ATTRIBUTE_PRIORITY = 8,
	CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP = 9,
	CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN = 10,
};

typedef union {
	char pad[64];
	struct {
		void *base_ptr;
		size_t num_bytes;
		float hitRatio;
		int hitProp, missProp; /* 0 normal, 1 streaming, 2 persisting */
	} accessPolicyWindow;
	int syncPolicy; /* 1 auto, 2 spin, 3 yield, 4 block */
	int priority;
	struct {
		unsigned char default_, remote;
	} memSyncDomainMap;
	int memSyncDomain;
} CUstreamAttrValue;

STREAM_TWIN(cuStreamGetId, _ptsz, CUstream stream, unsigned long long *id)
STREAM_TWIN(cuStreamGetAttribute, _ptsz, CUstream stream, int attribute, CUstreamAttrValue *value)
STREAM_TWIN(cuStreamSetAttribute, _ptsz, CUstream stream, int attribute, const CUstreamAttrValue *value)
STREAM_TWIN(cuStreamCopyAttributes, _ptsz, CUstream dst, CUstream src)
STREAM_TWIN(cuStreamGetCtx_v2, _ptsz, CUstream stream, CUcontext *ctx, CUgreenCtx *green)
CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *green);

#pragma GCC visibility pop
#endif
