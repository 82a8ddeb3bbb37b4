/* Functions that few programs call. */
#include "check.h"

#include <string.h>

static void planes(void)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {8, 4, 0, 0xb0, 3, 0};
	unsigned char in[8 * 6], out[8 * 2] = {0};
	CUarray picture, bright, colours;
	CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = in, .srcPitch = 8, .dstMemoryType = CU_MEMORYTYPE_ARRAY,
			   .WidthInBytes = 8, .Height = 6};

	for (unsigned i = 0; i < sizeof(in); i++)
		in[i] = (unsigned char)(i + 1);
	FINE(cuArray3DCreate_v2(&picture, &d));
	c.dstArray = picture;
	FINE(cuMemcpy2D_v2(&c));
	FINE(cuArrayGetPlane(&bright, picture, 0));
	FINE(cuArrayGetPlane(&colours, picture, 1));
	GIVES(cuArrayGetPlane(&colours, picture, 2), CUDA_ERROR_INVALID_VALUE);
	FINE(cuArray3DGetDescriptor_v2(&d, bright));
	CHECK(d.Width == 8 && d.Height == 4 && d.Format == 1 && d.NumChannels == 1);
	FINE(cuArray3DGetDescriptor_v2(&d, colours));
	CHECK(d.Width == 4 && d.Height == 2 && d.Format == 1 && d.NumChannels == 2);
	c = (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = colours, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = out,
			    .dstPitch = 8, .WidthInBytes = 8, .Height = 2};
	FINE(cuMemcpy2D_v2(&c));
	CHECK(!memcmp(out, in + 32, 16));
	GIVES(cuArrayDestroy(colours), CUDA_ERROR_INVALID_HANDLE);
	FINE(cuArrayDestroy(picture));
	GIVES(cuArray3DGetDescriptor_v2(&d, bright), CUDA_ERROR_INVALID_HANDLE);
}

static void sparse(void)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {1024, 1024, 0, 0x20, 1, 0};
	CUDA_ARRAY_SPARSE_PROPERTIES p;
	CUmipmappedArray m;
	CUarray a;

	FINE(cuArray3DCreate_v2(&a, &d));
	GIVES(cuArrayGetSparseProperties(&p, a), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuArrayGetPlane(&a, a, 0), CUDA_ERROR_INVALID_VALUE);
	FINE(cuArrayDestroy(a));
	d.Flags = CUDA_ARRAY3D_SPARSE;
	FINE(cuArray3DCreate_v2(&a, &d));
	FINE(cuArrayGetSparseProperties(&p, a));
	CHECK(p.tileExtent.width * p.tileExtent.height * p.tileExtent.depth * 4 == 65536);
	FINE(cuArrayDestroy(a));
	FINE(cuMipmappedArrayCreate(&m, &d, 6));
	FINE(cuMipmappedArrayGetSparseProperties(&p, m));
	CHECK(p.miptailFirstLevel == 4 && p.miptailSize); /* 64 by 64 is less than a tile */
	FINE(cuMipmappedArrayDestroy(m));
}

/* Source: docs.nvidia.com/cuda/cuda-driver-api, library management. */
static void managed(void)
{
	static const char ptx[] = ".version 7.0\n.target sm_75\n.visible .global .attribute(.managed) .align 4 .u32 shared = 5;\n"
				  ".visible .global .align 4 .u32 plain;\n.visible .entry nothing() { ret; }\n";
	unsigned value = 0;
	CUlibrary l;
	CUdeviceptr p;
	size_t bytes;
	void *function;

	FINE(cuLibraryLoadData(&l, ptx, NULL, NULL, 0, NULL, NULL, 0));
	FINE(cuLibraryGetManaged(&p, &bytes, l, "shared"));
	CHECK(bytes == 4);
	FINE(cuMemcpyDtoH_v2(&value, p, 4));
	CHECK(value == 5);
	GIVES(cuLibraryGetManaged(&p, &bytes, l, "plain"), CUDA_ERROR_NOT_FOUND);
	GIVES(cuLibraryGetManaged(&p, &bytes, l, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuLibraryGetUnifiedFunction(&function, l, "nothing"), CUDA_ERROR_NOT_FOUND);
	FINE(cuLibraryUnload(l));
	GIVES(cuLibraryGetManaged(&p, &bytes, l, "shared"), CUDA_ERROR_INVALID_HANDLE);
}

static void context_events(CUcontext ctx)
{
	CUmodule module;
	CUfunction slow, quick;
	CUstream a, b;
	CUevent all;
	CUgraph g;

	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&slow, module, "slow"));
	FINE(cuModuleGetFunction(&quick, module, "quick"));
	FINE(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	FINE(cuEventCreate(&all, 0));
	FINE(cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, a, NULL, NULL));
	FINE(cuCtxRecordEvent(ctx, all));
	GIVES(cuEventQuery(all), CUDA_ERROR_NOT_READY);
	FINE(cuCtxWaitEvent(ctx, all));
	FINE(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING)); /* also of streams that come later */
	FINE(cuLaunchKernel(quick, 1, 1, 1, 1, 1, 1, 0, b, NULL, NULL));
	FINE(cuStreamSynchronize(b));
	FINE(cuEventQuery(all));
	FINE(cuStreamBeginCapture_v2(a, CU_CAPTURE_MODE_RELAXED));
	GIVES(cuCtxRecordEvent(ctx, all), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	GIVES(cuStreamEndCapture(a, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	GIVES(cuCtxRecordEvent(NULL, all), CUDA_ERROR_INVALID_CONTEXT);
	GIVES(cuCtxWaitEvent(ctx, NULL), CUDA_ERROR_INVALID_HANDLE);
}

struct cluster_attribute {
	int id;
	char pad[4];
	unsigned size[3];
	char rest[52];
};

static void clusters(void)
{
	struct cluster_attribute four = {.id = 4, .size = {2, 2, 1}}, sixteen = {.id = 4, .size = {16, 1, 1}};
	CUlaunchConfig c = {.gridDimX = 64, .gridDimY = 2, .gridDimZ = 1, .blockDimX = 1024, .blockDimY = 1, .blockDimZ = 1, .attrs = &four,
			    .numAttrs = 1};
	CUmodule module;
	CUfunction f;
	int n, wide;

	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, "quick"));
	FINE(cuOccupancyMaxActiveClusters(&n, f, &c));
	CHECK(n == 132 * 2 / 4); /* two blocks to a multiprocessor */
	FINE(cuOccupancyMaxPotentialClusterSize(&n, f, &c));
	CHECK(n == 8);
	c.attrs = &sixteen;
	GIVES(cuOccupancyMaxActiveClusters(&n, f, &c), CUDA_ERROR_INVALID_CLUSTER_SIZE); /* more than 8 are not portable */
	FINE(cuFuncSetAttribute(f, 14, 1));
	FINE(cuFuncGetAttribute(&wide, 14, f));
	CHECK(wide == 1);
	FINE(cuOccupancyMaxActiveClusters(&n, f, &c));
	CHECK(n == 16);
	FINE(cuOccupancyMaxPotentialClusterSize(&n, f, &c));
	CHECK(n == 16);
	GIVES(cuOccupancyMaxActiveClusters(NULL, f, &c), CUDA_ERROR_INVALID_VALUE);
}

/* What a GPU has not is refused, and its attribute is 0. */
static void refused(void)
{
	char luid[8];
	unsigned mask;
	CUdeviceptr p;
	int fd, value;

	FINE(cuMemAlloc_v2(&p, 2 << 20));
	FINE(cuDeviceGetAttribute(&value, 124, 0)); /* DMA_BUF_SUPPORTED */
	CHECK(!value);
	GIVES(cuMemGetHandleForAddressRange(&fd, p, 2 << 20, 1, 0), CUDA_ERROR_NOT_SUPPORTED);
	GIVES(cuMemGetHandleForAddressRange(&fd, p, 2 << 20, 0, 0), CUDA_ERROR_INVALID_VALUE);
	FINE(cuDeviceGetAttribute(&value, 116, 0)); /* GPU_DIRECT_RDMA_SUPPORTED */
	CHECK(!value);
	GIVES(cuFlushGPUDirectRDMAWrites(0, 100), CUDA_ERROR_NOT_SUPPORTED);
	GIVES(cuDeviceGetLuid(luid, &mask, 0), CUDA_ERROR_NOT_SUPPORTED);
	GIVES(cuDeviceGetLuid(luid, &mask, 9), CUDA_ERROR_INVALID_DEVICE);
	FINE(cuMemFree_v2(p));
}

void check_breadth(void)
{
	CUcontext ctx = start();

	planes();
	sparse();
	managed();
	context_events(ctx);
	clusters();
	refused();
}
