/* cuInit: the process may use CUDA only if its limits are known. */
#include "hooks.h"
#include "limits.h"
#include "process.h"
#include "usage.h"

CUresult cuInit(unsigned int flags)
{
	if (!hook_exists(HOOK_cuInit))
		return CUDA_ERROR_NO_DEVICE; /* there is no driver in this process */
	if (!limits_ready() || !usage_map())
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult result = REAL(cuInit)(flags);
	if (result == CUDA_SUCCESS && !process_get())
		return CUDA_ERROR_NOT_INITIALIZED;
	return result;
}
