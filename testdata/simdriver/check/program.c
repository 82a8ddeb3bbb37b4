/* Images, the linker, libraries, occupancy, limits, functions of the host, attributes of pointers. */
#define _GNU_SOURCE
#include "check.h"

#include <elf.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* A cubin as NVIDIA's tools make it, reduced to what names things: one kernel, one device function, one variable. */
struct cubin {
	Elf64_Ehdr elf;
	Elf64_Shdr sections[5];
	Elf64_Sym symbols[4];
	char names[64], section_names[64];
};

static struct cubin make_cubin(unsigned architecture)
{
	struct cubin c = {.names = "\0kernel\0inner\0table", .section_names = "\0.text.kernel\0.nv.global\0.symtab\0.strtab"};

	memcpy(c.elf.e_ident, ELFMAG, SELFMAG);
	c.elf.e_ident[EI_CLASS] = ELFCLASS64;
	c.elf.e_ident[EI_ABIVERSION] = 7;
	c.elf.e_machine = 190;
	c.elf.e_flags = architecture;
	c.elf.e_shoff = offsetof(struct cubin, sections);
	c.elf.e_shentsize = sizeof(Elf64_Shdr);
	c.elf.e_shnum = 5;
	c.elf.e_shstrndx = 4;
	c.sections[1].sh_name = 1;
	c.sections[2].sh_name = 14;
	c.sections[3] = (Elf64_Shdr){.sh_name = 25, .sh_type = SHT_SYMTAB, .sh_offset = offsetof(struct cubin, symbols),
				     .sh_size = sizeof(c.symbols), .sh_link = 0};
	c.sections[0].sh_offset = offsetof(struct cubin, names);
	c.sections[4].sh_offset = offsetof(struct cubin, section_names);
	c.symbols[1] = (Elf64_Sym){.st_name = 1, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), .st_other = 0x10, .st_shndx = 1};
	c.symbols[2] = (Elf64_Sym){.st_name = 8, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), .st_shndx = 1};
	c.symbols[3] = (Elf64_Sym){.st_name = 14, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT), .st_shndx = 2, .st_size = 1000};
	return c;
}

static void check_cubin(const void *image)
{
	CUdeviceptr ptr;
	CUmodule module;
	CUfunction f;
	size_t bytes;

	FINE(cuModuleLoadData(&module, image));
	FINE(cuModuleGetFunction(&f, module, "kernel"));
	GIVES(cuModuleGetFunction(&f, module, "inner"), CUDA_ERROR_NOT_FOUND);
	FINE(cuModuleGetGlobal_v2(&ptr, &bytes, module, "table"));
	CHECK(bytes == 1000);
	FINE(cuModuleUnload(module));
}

/* A fat binary with a cubin that is too new, PTX, and PTX that is compressed (by LZ4: all of it as literals). */
static size_t make_fat(unsigned char *out, unsigned cubin_for, const struct cubin *cubin, const char *ptx)
{
	static const uint32_t magic = 0xba55ed50;
	const uint16_t version = 1, header = 16, part_header = 64;
	size_t at = header, length = strlen(ptx);
	uint64_t total;

	for (int part = 0; part < 2; part++) {
		uint16_t kind = part ? 1 : 2;
		uint32_t header_bytes = part_header, architecture = part ? 50 : cubin_for, packed = 0;
		uint64_t bytes = part ? 1024 : sizeof(*cubin), flags = part ? 0x2000 : 0, unpacked = part ? length : 0;
		unsigned char *data = out + at + part_header;

		memset(out + at, 0, part_header + bytes);
		if (part) {
			data[packed++] = 0xf0;
			for (size_t left = length - 15; ; left -= 255) {
				data[packed++] = left >= 255 ? 255 : (unsigned char)left;
				if (left < 255)
					break;
			}
			memcpy(data + packed, ptx, length);
			packed += (uint32_t)length;
		} else {
			memcpy(data, cubin, sizeof(*cubin));
		}
		memcpy(out + at, &kind, 2);
		memcpy(out + at + 4, &header_bytes, 4);
		memcpy(out + at + 8, &bytes, 8);
		memcpy(out + at + 16, &packed, 4);
		memcpy(out + at + 28, &architecture, 4);
		memcpy(out + at + 40, &flags, 8);
		memcpy(out + at + 56, &unpacked, 8);
		at += part_header + bytes;
	}
	total = at - header;
	memcpy(out, &magic, 4);
	memcpy(out + 4, &version, 2);
	memcpy(out + 6, &header, 2);
	memcpy(out + 8, &total, 8);
	return at;
}

/* On an H200, which has compute capability 9.0. */
void check_images(void)
{
	struct cubin fits = make_cubin(90), older = make_cubin(80), newer = make_cubin(100);
	_Alignas(8) static unsigned char fat[8192];
	struct {
		int magic, version;
		const void *data;
		void *unused;
	} wrapper = {0x466243b1, 1, fat, NULL};
	CUmodule module;
	CUfunction f;

	start();
	check_cubin(&fits);
	GIVES(cuModuleLoadData(&module, &older), CUDA_ERROR_NO_BINARY_FOR_GPU);
	GIVES(cuModuleLoadData(&module, &newer), CUDA_ERROR_NO_BINARY_FOR_GPU);
	make_fat(fat, 90, &fits, spin_ptx);
	check_cubin(fat);
	make_fat(fat, 100, &newer, spin_ptx);
	FINE(cuModuleLoadFatBinary(&module, fat));
	FINE(cuModuleGetFunction(&f, module, "second"));
	FINE(cuModuleLoadFatBinary(&module, &wrapper));
	FINE(cuModuleGetFunction(&f, module, "quick"));
}

void check_linker(void)
{
	static const char other[] = ".version 6.0\n.target sm_50\n.extern .global .u32 far;\n.visible .entry other(.param .u64 .ptr .global .align 4 p) { ret; }\n.global .u32 count[10];\n";
	int options[] = {3, 4, 5, 6};
	char log[16] = "", error_log[16] = "";
	void *values[] = {log, (void *)sizeof(log), error_log, (void *)sizeof(error_log)};
	struct cubin cubin = make_cubin(90);
	CUlinkState state;
	CUdeviceptr ptr;
	CUmodule module;
	CUfunction f;
	void *image;
	size_t bytes;

	FINE(cuInit(0));
	GIVES(cuLinkCreate_v2(0, NULL, NULL, &state), CUDA_ERROR_INVALID_CONTEXT);
	start();
	FINE(cuLinkCreate_v2(4, options, values, &state));
	CHECK(!values[1] && !values[3]);
	GIVES(cuLinkAddData_v2(state, 1, (void *)"nonsense", 8, "n", 0, NULL, NULL), CUDA_ERROR_INVALID_PTX);
	FINE(cuLinkAddData_v2(state, 1, (void *)spin_ptx, strlen(spin_ptx), "spin", 0, NULL, NULL));
	FINE(cuLinkAddData_v2(state, 1, (void *)other, sizeof(other), "other", 0, NULL, NULL));
	FINE(cuLinkAddData_v2(state, 0, &cubin, sizeof(cubin), "cubin", 0, NULL, NULL));
	GIVES(cuLinkAddFile_v2(state, 1, "/nowhere/at/all", 0, NULL, NULL), CUDA_ERROR_FILE_NOT_FOUND);
	FINE(cuLinkComplete(state, &image, &bytes));
	CHECK(!memcmp(image, ELFMAG, SELFMAG) && bytes > strlen(spin_ptx));
	FINE(cuModuleLoadData(&module, image));
	FINE(cuLinkDestroy(state));
	GIVES(cuLinkDestroy(state), CUDA_ERROR_INVALID_HANDLE);
	GIVES(cuLinkComplete(state, &image, &bytes), CUDA_ERROR_INVALID_HANDLE);
	FINE(cuModuleGetFunction(&f, module, "other"));
	FINE(cuModuleGetFunction(&f, module, "kernel"));
	FINE(cuModuleGetGlobal_v2(&ptr, &bytes, module, "count"));
	CHECK(bytes == 40);
	GIVES(cuModuleGetGlobal_v2(&ptr, &bytes, module, "p"), CUDA_ERROR_NOT_FOUND);
	GIVES(cuModuleGetGlobal_v2(&ptr, &bytes, module, "far"), CUDA_ERROR_NOT_FOUND);
	FINE(cuModuleGetFunction(&f, module, "spin"));
	FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	FINE(cuCtxSynchronize());
}

void check_libraries(void)
{
	CUlibrary library, same;
	CUkernel kernel, kernels[8];
	CUcontext first = start(), second;
	CUmodule module, other_module;
	CUfunction f, functions[8];
	unsigned count;
	const char *name;
	int value;

	FINE(cuCtxSetCurrent(NULL));
	FINE(cuLibraryLoadData(&library, spin_ptx, NULL, NULL, 0, NULL, NULL, 0)); /* needs no context */
	FINE(cuCtxSetCurrent(first));
	FINE(cuLibraryGetKernel(&kernel, library, "spin"));
	GIVES(cuLibraryGetKernel(&kernel, library, "none"), CUDA_ERROR_NOT_FOUND);
	FINE(cuKernelGetName(&name, kernel));
	CHECK(!strcmp(name, "spin"));
	FINE(cuKernelGetLibrary(&same, kernel));
	CHECK(same == library);
	FINE(cuKernelGetAttribute(&value, 0, kernel, 0));
	CHECK(value == 1024);
	FINE(cuLibraryGetKernelCount(&count, library));
	CHECK(count == 5);
	FINE(cuLibraryEnumerateKernels(kernels, 8, library));
	FINE(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	FINE(cuCtxSynchronize());
	FINE(cuLibraryGetModule(&module, library));
	FINE(cuModuleGetFunctionCount(&count, module));
	FINE(cuModuleEnumerateFunctions(functions, 8, module));
	CHECK(count == 5);
	FINE(cuKernelGetFunction(&f, kernel));
	FINE(cuFuncGetName(&name, f));
	CHECK(!strcmp(name, "spin"));
	FINE(cuFuncGetModule(&other_module, f));
	CHECK(other_module == module);
	FINE(cuCtxCreate_v2(&second, 0, 0));
	FINE(cuLibraryGetModule(&other_module, library));
	CHECK(other_module != module);
	FINE(cuCtxDestroy_v2(second));
	FINE(cuCtxSetCurrent(first));
	FINE(cuLibraryUnload(library));
	GIVES(cuLibraryUnload(library), CUDA_ERROR_INVALID_HANDLE);
	GIVES(cuKernelGetFunction(&f, kernel), CUDA_ERROR_INVALID_HANDLE);
	GIVES(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
}

static size_t kib_of_block(int block)
{
	return (size_t)block * 1024 / 32;
}

/* On an H200: 2048 threads, 32 blocks, 228 KiB of shared memory, of which each block takes 1 KiB more than it asks for. */
void check_occupancy(void)
{
	int blocks, grid, block;
	CUmodule module;
	CUfunction f;
	size_t bytes;

	start();
	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, "spin"));
	FINE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 1024, 0));
	CHECK(blocks == 2);
	FINE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 33, 0));
	CHECK(blocks == 32);
	FINE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, 56 * 1024));
	CHECK(blocks == 4);
	FINE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, 57 * 1024));
	CHECK(blocks == 3);
	FINE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 2048, 0));
	CHECK(blocks == 0);
	GIVES(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 0, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, NULL, 32, 0), CUDA_ERROR_INVALID_HANDLE);
	FINE(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, NULL, 0, 0));
	CHECK(block == 1024 && grid == 2 * 132);
	FINE(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, NULL, 0, 100));
	CHECK(block == 64 && grid == 32 * 132); /* 96 would be 2016 threads */
	FINE(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, kib_of_block, 0, 0));
	CHECK(block * (grid / 132) == 2048);
	FINE(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, f, 2, 1024));
	CHECK(bytes == 113 * 1024);
}

void check_limits(void)
{
	CUcontext ctx, peer;
	size_t value, before, after, total;
	unsigned long long id, other;
	int config, part;

	FINE(cuInit(0));
	GIVES(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE), CUDA_ERROR_INVALID_CONTEXT);
	ctx = start();
	FINE(cuDeviceGetExecAffinitySupport(&part, 0, 0));
	CHECK(!part);
	GIVES(cuDeviceGetExecAffinitySupport(&part, 1, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuCtxGetExecAffinity(&part, 0), CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
	FINE(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
	CHECK(value == 1024);
	FINE(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
	FINE(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
	CHECK(value == 4096);
	FINE(cuMemGetInfo_v2(&before, &total));
	FINE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 108 << 20));
	FINE(cuMemGetInfo_v2(&after, &total));
	CHECK(before == after);
	GIVES(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 1ull << 40), CUDA_ERROR_OUT_OF_MEMORY);
	FINE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20));
	GIVES(cuCtxSetLimit(99, 1), CUDA_ERROR_UNSUPPORTED_LIMIT);
	GIVES(cuCtxGetLimit(&value, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH), CUDA_ERROR_UNSUPPORTED_LIMIT);
	FINE(cuCtxGetCacheConfig(&config));
	CHECK(config == 0);
	FINE(cuCtxSetCacheConfig(2));
	FINE(cuCtxGetCacheConfig(&config));
	CHECK(config == 2);
	GIVES(cuCtxSetCacheConfig(4), CUDA_ERROR_INVALID_VALUE);
	FINE(cuCtxGetSharedMemConfig(&config));
	CHECK(config == 1);
	FINE(cuCtxGetId(NULL, &id));
	FINE(cuCtxCreate_v2(&peer, 0, 0));
	FINE(cuCtxGetId(NULL, &other));
	CHECK(id != other);
	GIVES(cuCtxEnablePeerAccess(ctx, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
	GIVES(cuCtxDisablePeerAccess(ctx), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
	FINE(cuCtxAttach(&ctx, 0));
	FINE(cuCtxDetach(ctx));
	FINE(cuCtxDetach(peer));
	GIVES(cuCtxGetId(peer, &id), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

static atomic_int steps;
static CUevent after_spin;

static void first_step(void *data)
{
	int expected = 0;

	CHECK(atomic_compare_exchange_strong(&steps, &expected, 1));
	CHECK(data == &steps);
	GIVES(cuEventQuery(after_spin), CUDA_ERROR_NOT_PERMITTED);
}

static void second_step(CUstream stream, CUresult status, void *data)
{
	int expected = 1;

	CHECK(stream && status == CUDA_SUCCESS && data == NULL);
	usleep(20000);
	CHECK(atomic_compare_exchange_strong(&steps, &expected, 2));
}

/* In order, after what came before, and before what comes after. */
void check_host_functions(void)
{
	CUmodule module;
	CUfunction f;
	CUstream stream, other;

	start();
	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, "slow"));
	FINE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	FINE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	FINE(cuEventCreate(&after_spin, 0));
	FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
	FINE(cuLaunchHostFunc(stream, first_step, &steps));
	CHECK(atomic_load(&steps) == 0);
	FINE(cuStreamAddCallback(stream, second_step, NULL, 0));
	GIVES(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	FINE(cuStreamSynchronize(stream));
	CHECK(atomic_load(&steps) == 2);
	FINE(cuStreamQuery(stream));
	GIVES(cuLaunchHostFunc(stream, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuStreamAddCallback(stream, second_step, NULL, 1), CUDA_ERROR_INVALID_VALUE);
	atomic_store(&steps, 0);
	FINE(cuLaunchHostFunc(other, first_step, &steps));
	FINE(cuStreamAddCallback(other, second_step, NULL, 0));
	FINE(cuEventRecord(after_spin, other));
	FINE(cuEventSynchronize(after_spin));
	CHECK(atomic_load(&steps) == 2);
	atomic_store(&steps, 1);
	FINE(cuStreamAddCallback(stream, second_step, NULL, 0));
	FINE(cuCtxSynchronize());
	CHECK(atomic_load(&steps) == 2);
}

static unsigned long long pointer_is(CUdeviceptr ptr, int attribute)
{
	unsigned long long value = 0;

	FINE(cuPointerGetAttribute(&value, attribute, ptr));
	return value;
}

/* Of cuMemAlloc, of a pool and of a mapping: what NCCL and UCX ask for. */
void check_pointer_kinds(void)
{
	enum { CONTEXT = 1, TYPE, BUFFER = 7, MANAGED, ORDINAL, IPC, START, SIZE, HANDLES = 14, POOL = 17 };
	CUmemAllocationProp on_gpu = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
	};
	CUcontext ctx = start();
	CUmemGenericAllocationHandle h;
	CUdeviceptr p[3], base;
	CUmemoryPool pool;
	size_t bytes;

	FINE(cuDeviceGetDefaultMemPool(&pool, 0));
	FINE(cuMemAlloc_v2(&p[0], 2 << 20));
	FINE(cuMemAllocAsync(&p[1], 2 << 20, NULL));
	FINE(cuMemAddressReserve(&p[2], 8 << 20, 0, 0, 0));
	FINE(cuMemCreate(&h, 2 << 20, &on_gpu, 0));
	FINE(cuMemMap(p[2] + (2 << 20), 2 << 20, 0, h, 0));
	GIVES(cuMemGetAddressRange_v2(&base, &bytes, p[2]), CUDA_ERROR_NOT_FOUND);
	p[2] += 2 << 20;
	for (int i = 0; i < 3; i++) {
		FINE(cuMemGetAddressRange_v2(&base, &bytes, p[i] + 5));
		CHECK(base == p[i] && bytes == 2 << 20);
		CHECK(pointer_is(p[i] + 5, START) == p[i] && pointer_is(p[i], SIZE) == 2 << 20);
		CHECK(pointer_is(p[i], TYPE) == 2 && pointer_is(p[i], ORDINAL) == 0 && pointer_is(p[i], MANAGED) == 0);
		CHECK(pointer_is(p[i], CONTEXT) == (i ? 0 : (uintptr_t)ctx));
		CHECK(pointer_is(p[i], IPC) == (i == 0));
		CHECK(pointer_is(p[i], POOL) == (i == 1 ? (uintptr_t)pool : 0));
		CHECK(pointer_is(p[i], HANDLES) == (i == 2 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0));
		CHECK(pointer_is(p[i], BUFFER) && pointer_is(p[i], BUFFER) != pointer_is(p[(i + 1) % 3], BUFFER));
	}
	base = pointer_is(p[0], BUFFER);
	FINE(cuMemFree_v2(p[0]));
	FINE(cuMemAlloc_v2(&p[0], 2 << 20));
	CHECK(pointer_is(p[0], BUFFER) != base); /* though it can be at the same address */
	FINE(cuMemFree_v2(p[0]));
	FINE(cuMemFreeAsync(p[1], NULL));
	FINE(cuMemUnmap(p[2], 2 << 20));
	FINE(cuMemRelease(h));
	FINE(cuCtxSynchronize());
}

void check_pointers(void)
{
	int attributes[] = {2, 3, 9, 12};
	unsigned type;
	CUdeviceptr ptr, same, managed;
	size_t bytes;
	int ordinal;
	void *data[] = {&type, &same, &ordinal, &bytes};
	CUmemLocation_prefetch to = {1, 0};

	start();
	FINE(cuMemAlloc_v2(&ptr, 1 << 20));
	FINE(cuPointerGetAttributes(4, attributes, data, ptr + 5));
	CHECK(type == 2 && same == ptr + 5 && ordinal == 0 && bytes == 1 << 20);
	FINE(cuPointerGetAttributes(4, attributes, data, (CUdeviceptr)(uintptr_t)&type));
	CHECK(type == 0 && same == 0 && ordinal == -2 && bytes == 0);
	GIVES(cuPointerGetAttributes(0, attributes, data, ptr), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
	FINE(cuMemPrefetchAsync(managed, 1 << 20, 0, NULL));
	FINE(cuMemPrefetchAsync(managed, 1 << 20, -1, NULL));
	FINE(cuMemPrefetchAsync_v2(managed, 1 << 20, to, 0, NULL));
	GIVES(cuMemPrefetchAsync(ptr, 1 << 20, 0, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemPrefetchAsync(managed, 2 << 20, 0, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemPrefetchAsync(managed, 1 << 20, 7, NULL), CUDA_ERROR_INVALID_DEVICE);
	FINE(cuMemAdvise_v2(managed, 1 << 20, 3, to));
	FINE(cuMemFree_v2(ptr));
	FINE(cuMemFree_v2(managed));
}
