/* cuGetProcAddress: calls the driver with the caller's version and flags, and replaces the
 * returned address by the wrapper's. So versions, per-thread-stream variants and unknown names
 * are right by construction. */
#include "hooks.h"
#include "log.h"
#include "turnends.h"

/* A newer driver may return a variant of a function that this library does not know. If the
 * function takes memory, that variant would bypass the limit. If it launches, it may record events. */
static bool unknown_variant(const char *symbol, void *swapped)
{
	static _Atomic unsigned once;

	if (!symbol || hook_is_wrapper(swapped))
		return false;
	if (hook_takes_time(symbol))
		events_unknown();
	if (!hook_takes_memory(symbol))
		return false;
	log_line(&once, "%s: the driver has a variant that this limiter does not know; refused", symbol);
	return true;
}

static CUresult swap(CUresult result, const char *symbol, void **pfn)
{
	if (result != CUDA_SUCCESS || !pfn || !*pfn)
		return result;
	*pfn = hook_swap(*pfn);
	if (!unknown_variant(symbol, *pfn))
		return CUDA_SUCCESS;
	*pfn = NULL;
	return CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	return swap(REAL(cuGetProcAddress)(symbol, pfn, version, flags), symbol, pfn);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status)
{
	CUresult result = REAL(cuGetProcAddress_v2)(symbol, pfn, version, flags, status);
	CUresult swapped = swap(result, symbol, pfn);

	if (swapped != result && status)
		*status = 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
	return swapped;
}
