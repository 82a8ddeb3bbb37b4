/* What streams are set to, their numbers; what is advised about managed memory. */
#include "check.h"

#include <string.h>

#define PAGE 4096

void check_stream_attributes(void)
{
	CUstream a, b, other;
	CUstreamAttrValue v = {.accessPolicyWindow = {.base_ptr = (void *)0x1000, .num_bytes = 100, .hitRatio = 0.5f, .hitProp = 2}}, got;
	CUcontext ctx = start(), owner;
	CUgreenCtx green = (CUgreenCtx)&owner;
	unsigned long long one, two, legacy, own, again;

	FINE(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	FINE(cuStreamCreateWithPriority(&b, 0, -2));
	FINE(cuStreamGetId(a, &one));
	FINE(cuStreamGetId(b, &two));
	FINE(cuStreamGetId(NULL, &legacy));
	FINE(cuStreamGetId_ptsz(NULL, &own));
	CHECK(one != two && two != legacy && legacy != own && own != one);
	FINE(cuStreamGetId(CU_STREAM_PER_THREAD, &again));
	CHECK(again == own);
	FINE(cuStreamGetId(a, &again));
	CHECK(again == one);
	GIVES(cuStreamGetId(a, NULL), CUDA_ERROR_INVALID_VALUE);

	FINE(cuStreamSetAttribute(a, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &v));
	FINE(cuStreamGetAttribute(a, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &got));
	CHECK(!memcmp(&got, &v, sizeof(v)));
	v.accessPolicyWindow.missProp = 2; /* persisting is for hits only */
	GIVES(cuStreamSetAttribute(a, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &v), CUDA_ERROR_INVALID_VALUE);
	FINE(cuStreamGetAttribute(a, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &got));
	CHECK(got.syncPolicy == 1);
	got.syncPolicy = 4;
	FINE(cuStreamSetAttribute(a, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &got));
	got.syncPolicy = 0;
	GIVES(cuStreamSetAttribute(a, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &got), CUDA_ERROR_INVALID_VALUE);
	FINE(cuStreamGetAttribute(b, CU_STREAM_ATTRIBUTE_PRIORITY, &got));
	CHECK(got.priority == -2);
	FINE(cuStreamGetAttribute(b, CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &got));
	CHECK(got.memSyncDomainMap.default_ == 0 && got.memSyncDomainMap.remote == 1);
	GIVES(cuStreamGetAttribute(b, 2, &got), CUDA_ERROR_INVALID_VALUE); /* of launches only */

	FINE(cuStreamCopyAttributes(b, a));
	FINE(cuStreamGetAttribute(b, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &got));
	CHECK(got.syncPolicy == 4);
	FINE(cuStreamGetAttribute(b, CU_STREAM_ATTRIBUTE_PRIORITY, &got));
	CHECK(got.priority == 0);
	FINE(cuStreamGetId(b, &again));
	CHECK(again == two);
	FINE(cuStreamGetCtx_v2(a, &owner, &green));
	CHECK(owner == ctx && !green);
	FINE(cuStreamGetGreenCtx(a, &green));
	FINE(cuCtxCreate_v2(&owner, 0, 0));
	FINE(cuStreamCreate(&other, 0));
	GIVES(cuStreamCopyAttributes(other, a), CUDA_ERROR_INVALID_VALUE);
	FINE(cuStreamDestroy_v2(a));
	GIVES(cuStreamGetId(a, &one), CUDA_ERROR_INVALID_HANDLE);
	FINE(cuCtxDestroy_v2(owner));
}

static int range(int attribute, CUdeviceptr ptr, size_t bytes)
{
	int value;

	FINE(cuMemRangeGetAttribute(&value, sizeof(value), attribute, ptr, bytes));
	return value;
}

void check_managed(void)
{
	const CUmemLocation_prefetch node = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 1};
	int preferred, accessors[3], attributes[] = {2, 3};
	void *data[] = {&preferred, accessors};
	size_t sizes[] = {sizeof(preferred), sizeof(accessors)};
	CUdeviceptr p, plain;

	start();
	FINE(cuMemAllocManaged(&p, 8 * PAGE, CU_MEM_ATTACH_GLOBAL));
	FINE(cuMemAlloc_v2(&plain, PAGE));
	CHECK(range(1, p, PAGE) == 0 && range(2, p, PAGE) == -2 && range(4, p, PAGE) == -2);
	FINE(cuMemAdvise(p + 2 * PAGE, 4 * PAGE, 1, 0)); /* is read mostly */
	CHECK(range(1, p + 2 * PAGE, 4 * PAGE) == 1 && range(1, p + PAGE, 4 * PAGE) == 0 && range(1, p + 3 * PAGE, 4 * PAGE) == 0);
	FINE(cuMemAdvise(p + 3 * PAGE + 1, 1, 2, 0)); /* is not: of the whole page */
	CHECK(range(1, p + 2 * PAGE, PAGE) == 1 && range(1, p + 3 * PAGE, PAGE) == 0 && range(1, p + 4 * PAGE, 2 * PAGE) == 1);
	FINE(cuMemAdvise(p, 8 * PAGE, 3, 0)); /* prefers the device */
	CHECK(range(2, p, 8 * PAGE) == 0 && range(5, p, 8 * PAGE) == CU_MEM_LOCATION_TYPE_DEVICE && range(1, p + 2 * PAGE, PAGE) == 1);
	FINE(cuMemAdvise(p, 2 * PAGE, 3, -1)); /* the host */
	CHECK(range(2, p, 2 * PAGE) == -1 && range(2, p, 3 * PAGE) == -2);
	FINE(cuMemAdvise(p, 8 * PAGE, 5, 0)); /* is accessed by */
	FINE(cuMemAdvise(p, 8 * PAGE, 5, -1));
	FINE(cuMemRangeGetAttributes(data, sizes, attributes, 2, p, PAGE));
	CHECK(preferred == -1 && accessors[0] == -1 && accessors[1] == 0 && accessors[2] == -2);
	FINE(cuMemAdvise(p, PAGE, 6, -1));
	FINE(cuMemRangeGetAttributes(data, sizes, attributes, 2, p, 2 * PAGE));
	CHECK(accessors[0] == 0 && accessors[1] == -2);
	FINE(cuMemPrefetchAsync(p, 8 * PAGE, 0, NULL));
	CHECK(range(4, p, 8 * PAGE) == 0);
	FINE(cuMemPrefetchAsync_v2(p, PAGE, node, 0, NULL));
	CHECK(range(7, p, PAGE) == CU_MEM_LOCATION_TYPE_HOST_NUMA && range(8, p, PAGE) == 1);
	FINE(cuStreamAttachMemAsync(NULL, p, 0, CU_MEM_ATTACH_GLOBAL));
	FINE(cuStreamAttachMemAsync_ptsz(NULL, p, 8 * PAGE, CU_MEM_ATTACH_SINGLE));
	GIVES(cuStreamAttachMemAsync(NULL, p, 0, CU_MEM_ATTACH_SINGLE), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuStreamAttachMemAsync(NULL, p, PAGE, CU_MEM_ATTACH_HOST), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuStreamAttachMemAsync(NULL, plain, 0, CU_MEM_ATTACH_HOST), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemAdvise(p, PAGE, 7, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemAdvise(p, PAGE, 3, 5), CUDA_ERROR_INVALID_DEVICE);
	GIVES(cuMemRangeGetAttribute(&preferred, 8, 2, p, PAGE), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemRangeGetAttribute(accessors, 6, 3, p, PAGE), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemRangeGetAttribute(&preferred, 4, 2, p, 9 * PAGE), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemRangeGetAttribute(&preferred, 4, 2, plain, PAGE), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemRangeGetAttribute(&preferred, 4, 9, p, PAGE), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemFree_v2(p));
	GIVES(cuMemRangeGetAttribute(&preferred, 4, 2, p, PAGE), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemAllocManaged(&p, 8 * PAGE, CU_MEM_ATTACH_GLOBAL));
	CHECK(range(1, p + 2 * PAGE, PAGE) == 0 && range(2, p, PAGE) == -2);
	FINE(cuMemFree_v2(p));
	FINE(cuMemFree_v2(plain));
}
