/*
 * A program with the driver linked in: no library is loaded into it, so nothing can be put in front of the driver. With a
 * first argument it waits for a line on standard input before it starts. It allocates MiB by MiB until it is refused, and
 * prints how many it got; then it holds them until its input ends.
 */
#include "cuda_api.h"

#include <stdio.h>

CUresult cuInit(unsigned int flags);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes);

int main(int argc, char **argv)
{
	CUdeviceptr p;
	CUdevice device;
	CUcontext ctx;
	unsigned got = 0;
	CUresult r;

	(void)argv;
	if (argc > 1 && getchar() == EOF)
		return 1;
	r = cuInit(0);
	if (!r)
		r = cuDeviceGet(&device, 0);
	if (!r)
		r = cuDevicePrimaryCtxRetain(&ctx, device);
	if (!r)
		r = cuCtxSetCurrent(ctx);
	while (!r) {
		r = cuMemAlloc_v2(&p, (size_t)1 << 20);
		got += !r;
	}
	printf("result=%d\nallocated_mib=%u\nready=1\n", (int)r, got);
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
