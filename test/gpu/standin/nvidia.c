/* Stands for the CUDA runtime, cuBLAS and NCCL where `make gpu-test` is tried on the simulated GPU: the functions that
 * ../runtime.c calls, by calls of the driver. The real ones do not run on a simulated driver. */
#include <dlfcn.h>

#include "../../../testdata/simdriver/cuda_api.h"

#define CALLS(F) F(cuInit) F(cuDevicePrimaryCtxRetain) F(cuCtxSetCurrent) F(cuCtxSynchronize) F(cuMemGetInfo_v2) \
	F(cuMemAlloc_v2) F(cuMemFree_v2) F(cuMemFreeAsync) F(cuModuleLoadData) F(cuModuleGetFunction) F(cuLaunchKernel)

static struct {
#define FIELD(name) __typeof__(&name) name;
	CALLS(FIELD)
} cu;
static CUfunction work;

int cudaGetDeviceCount(int *count)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

#define LOAD(name) *(void **)&cu.name = dlsym(driver, #name);
	CALLS(LOAD)
	*count = 1;
	return (int)cu.cuInit(0);
}

int cudaSetDevice(int device)
{
	static const char ptx[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
				  "// sim-duration-us: 500\n.visible .entry work()\n{\n\tret;\n}\n";
	CUcontext context;
	CUmodule module;

	return (int)(cu.cuDevicePrimaryCtxRetain(&context, device) || cu.cuCtxSetCurrent(context) ||
		     cu.cuModuleLoadData(&module, ptx) || cu.cuModuleGetFunction(&work, module, "work"));
}

int cudaMalloc(void **p, size_t bytes)
{
	return (int)cu.cuMemAlloc_v2((CUdeviceptr *)p, bytes);
}

int cudaFree(void *p)
{
	return p ? (int)cu.cuMemFree_v2((CUdeviceptr)p) : 0;
}

int cudaFreeAsync(void *p, void *stream)
{
	return (int)cu.cuMemFreeAsync((CUdeviceptr)p, stream);
}

int cudaMemGetInfo(size_t *available, size_t *total)
{
	return (int)cu.cuMemGetInfo_v2(available, total);
}

int cudaDeviceSynchronize(void)
{
	return (int)cu.cuCtxSynchronize();
}

int cudaRuntimeGetVersion(int *version)
{
	*version = 12080;
	return 0;
}

static int launch(void)
{
	return (int)cu.cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

int cublasCreate_v2(void **handle)
{
	return cudaMalloc(handle, 8 << 20);
}

int cublasSgemm_v2(void *handle, int ta, int tb, int m, int n, int k, const float *alpha, const float *a, int lda, const float *b,
		   int ldb, const float *beta, float *c, int ldc)
{
	(void)handle, (void)ta, (void)tb, (void)m, (void)n, (void)k, (void)alpha, (void)a;
	(void)lda, (void)b, (void)ldb, (void)beta, (void)c, (void)ldc;
	return launch();
}

int ncclCommInitAll(void **communicator, int count, const int *devices)
{
	(void)count, (void)devices;
	return cudaMalloc(communicator, 16 << 20);
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *communicator, void *stream)
{
	(void)from, (void)to, (void)count, (void)type, (void)op, (void)communicator, (void)stream;
	return launch();
}
