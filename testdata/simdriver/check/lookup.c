#include "check.h"

#include <dlfcn.h>
#include <string.h>

#define LEGACY CU_GET_PROC_ADDRESS_LEGACY_STREAM
#define PER_THREAD_FLAG CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

/* What asking for a name, a version and a kind of default stream must give; NULL: nothing. */
static const struct {
	const char *base;
	int version;
	unsigned flags;
	const char *wanted;
	CUdriverProcAddressQueryResult status;
} matrix[] = {
	{"cuMemAlloc", 2000, 0, "cuMemAlloc", 0},
	{"cuMemAlloc", 3010, 0, "cuMemAlloc", 0},
	{"cuMemAlloc", 3020, 0, "cuMemAlloc_v2", 0},
	{"cuMemAlloc", 12000, 0, "cuMemAlloc_v2", 0},
	{"cuMemAlloc", 12000, PER_THREAD_FLAG, "cuMemAlloc_v2", 0},
	{"cuMemAlloc", 1000, 0, NULL, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT},
	{"cuMemAllocManaged", 5050, 0, NULL, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT},
	{"cuMemAllocManaged", 6000, 0, "cuMemAllocManaged", 0},
	{"cuDeviceGetUuid", 11030, 0, "cuDeviceGetUuid", 0},
	{"cuDeviceGetUuid", 11040, 0, "cuDeviceGetUuid_v2", 0},
	{"cuCtxCreate", 2000, 0, "cuCtxCreate", 0},
	{"cuCtxCreate", 11030, 0, "cuCtxCreate_v2", 0},
	{"cuCtxCreate", 11040, 0, "cuCtxCreate_v3", 0},
	{"cuCtxCreate", 12050, 0, "cuCtxCreate_v4", 0},
	{"cuGetProcAddress", 11030, 0, "cuGetProcAddress", 0},
	{"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2", 0},
	{"cuLaunchKernel", 12000, 0, "cuLaunchKernel", 0},
	{"cuLaunchKernel", 12000, LEGACY, "cuLaunchKernel", 0},
	{"cuLaunchKernel", 12000, PER_THREAD_FLAG, "cuLaunchKernel_ptsz", 0},
	{"cuLaunchKernel", 6050, PER_THREAD_FLAG, "cuLaunchKernel", 0},
	{"cuMemcpyHtoD", 12000, PER_THREAD_FLAG, "cuMemcpyHtoD_v2_ptds", 0},
	{"cuMemcpyHtoD", 12000, 0, "cuMemcpyHtoD_v2", 0},
	{"cuMemcpyHtoD", 2000, 0, "cuMemcpyHtoD", 0},
	{"cuStreamSynchronize", 11030, PER_THREAD_FLAG, "cuStreamSynchronize_ptsz", 0},
	{"cuLaunchKernelEx", 11050, 0, NULL, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT},
	{"cuLaunchKernelEx", 11060, PER_THREAD_FLAG, "cuLaunchKernelEx_ptsz", 0},
	{"cuMemAlloc_v2", 12000, 0, NULL, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND},
	{"cuNothing", 12000, 0, NULL, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND},
	{"", 12000, 0, NULL, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND},
};

static void check_row(size_t i, void *library)
{
	void *wanted = matrix[i].wanted ? dlsym(library, matrix[i].wanted) : NULL;
	CUdriverProcAddressQueryResult status = 77;
	void *got = (void *)1;
	CUresult r;

	CHECK(!matrix[i].wanted || wanted);
	FINE(cuGetProcAddress_v2(matrix[i].base, &got, matrix[i].version, matrix[i].flags, &status));
	if (got != wanted || status != matrix[i].status) {
		fprintf(stderr, "%s at %d with flags %u: not %s, status %d\n", matrix[i].base, matrix[i].version,
			matrix[i].flags, matrix[i].wanted ? matrix[i].wanted : "NULL", (int)status);
		exit(1);
	}
	got = (void *)1;
	r = cuGetProcAddress(matrix[i].base, &got, matrix[i].version, matrix[i].flags);
	CHECK(r == (wanted ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND) && got == wanted);
}

/* Works without cuInit, as in the real driver. */
void check_lookup(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	const void *table;
	CUuuid id = {{0}};
	void *p;

	CHECK(library);
	for (size_t i = 0; i < sizeof(matrix) / sizeof(matrix[0]); i++)
		check_row(i, library);
	GIVES(cuGetProcAddress(NULL, &p, 12000, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuGetProcAddress("cuInit", NULL, 12000, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuGetProcAddress("cuInit", &p, 12000, 3), CUDA_ERROR_INVALID_VALUE);
	FINE(cuGetProcAddress_v2("cuInit", &p, 12000, 0, NULL));
	GIVES(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_SUPPORTED);
}

void check_modules(void)
{
	CUmodule module;
	CUfunction f;
	int value;

	FINE(cuInit(0));
	GIVES(cuModuleLoadData(&module, spin_ptx), CUDA_ERROR_INVALID_CONTEXT);
	start();
	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, "spin"));
	FINE(cuModuleGetFunction(&f, module, "quick"));
	FINE(cuModuleGetFunction(&f, module, "slow"));
	GIVES(cuModuleGetFunction(&f, module, "not_this"), CUDA_ERROR_NOT_FOUND);
	GIVES(cuModuleGetFunction(&f, module, "spi"), CUDA_ERROR_NOT_FOUND);
	GIVES(cuModuleGetFunction(&f, module, NULL), CUDA_ERROR_INVALID_VALUE);
	FINE(cuModuleGetFunction(&f, module, "spin"));
	FINE(cuFuncGetAttribute(&value, 0, f));
	CHECK(value == 1024);
	GIVES(cuFuncGetAttribute(&value, 99, f), CUDA_ERROR_INVALID_VALUE);
	FINE(cuModuleUnload(module));
	GIVES(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
	GIVES(cuModuleGetFunction(&f, module, "spin"), CUDA_ERROR_INVALID_HANDLE);
	GIVES(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
	GIVES(cuModuleLoadData(&module, "this is no PTX"), CUDA_ERROR_INVALID_PTX);
	GIVES(cuModuleLoadData(&module, ""), CUDA_ERROR_INVALID_IMAGE);
	GIVES(cuModuleLoadData(&module, "\x7f" "ELF"), CUDA_ERROR_NO_BINARY_FOR_GPU);
	GIVES(cuModuleLoadData(&module, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuModuleLoad(&module, "/nowhere/at/all"), CUDA_ERROR_FILE_NOT_FOUND);
	FINE(cuModuleLoadDataEx(&module, spin_ptx, 0, NULL, NULL));
}

void check_attributes(void)
{
	int value;

	FINE(cuInit(0));
	for (int i = 1; i < 150; i++) {
		FINE(cuDeviceGetAttribute(&value, i, 0));
		printf("attribute.%d=%d\n", i, value);
	}
	GIVES(cuDeviceGetAttribute(&value, 150, 0), CUDA_ERROR_INVALID_VALUE);
}

/* Every number has a name and a text, or neither. */
void check_errors(void)
{
	static const struct {
		int number;
		const char *name, *text;
	} some[] = {
		{217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
		{208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
		{210, "CUDA_ERROR_ALREADY_ACQUIRED", "resource already acquired"},
		{713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
	};
	const char *name, *text;
	int known = 0;

	for (int i = 0; i < 1000; i++) {
		CUresult r = cuGetErrorName((CUresult)i, &name);

		CHECK(r == cuGetErrorString((CUresult)i, &text));
		CHECK(r == (name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE) && !name == !text);
		known += name != NULL;
	}
	CHECK(known == 100);
	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		FINE(cuGetErrorName((CUresult)some[i].number, &name));
		FINE(cuGetErrorString((CUresult)some[i].number, &text));
		CHECK(!strcmp(name, some[i].name) && !strcmp(text, some[i].text));
	}
}
