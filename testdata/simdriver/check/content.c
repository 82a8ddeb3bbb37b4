/* What was written is read back. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true /* has the whole address space mapped, and keeps what was freed */
#else
#define SANITIZED false
#endif

static void pattern(unsigned char *at, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i++)
		at[i] = (unsigned char)((i * 31 + i / 251 + seed) | 1);
}

static void expect(const unsigned char *at, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i++)
		CHECK(at[i] == (unsigned char)((i * 31 + i / 251 + seed) | 1));
}

static void expect_all(CUdeviceptr p, size_t bytes, unsigned char value)
{
	unsigned char *host = malloc(bytes);

	FINE(cuMemcpyDtoH_v2(host, p, bytes));
	for (size_t i = 0; i < bytes; i++)
		CHECK(host[i] == value);
	free(host);
}

static bool faults(CUdeviceptr p)
{
	int ends[2];
	bool yes;

	if (SANITIZED)
		return true;
	CHECK(!pipe(ends));
	yes = write(ends[1], (void *)(uintptr_t)p, 1) < 0 && errno == EFAULT;
	close(ends[0]);
	close(ends[1]);
	return yes;
}

static void linear(void)
{
	const size_t bytes = 3 * MIB + 17;
	unsigned char *out = malloc(bytes), *in = calloc(1, bytes);
	CUdeviceptr p, q;

	FINE(cuMemAlloc_v2(&p, bytes));
	FINE(cuMemAlloc_v2(&q, bytes));
	pattern(out, bytes, 1);
	FINE(cuMemcpyHtoD_v2(p, out, bytes));
	FINE(cuMemcpyDtoD_v2(q, p, bytes));
	FINE(cuMemcpyDtoH_v2(in, q, bytes));
	expect(in, bytes, 1);
	FINE(cuMemcpyHtoDAsync_v2(q + 5, out, 1000, NULL));
	FINE(cuMemcpyDtoHAsync_v2(in, q + 5, 1000, CU_STREAM_PER_THREAD));
	CHECK(!memcmp(in, out, 1000));
	FINE(cuMemsetD32_v2(p + 4, 0x04030201, MIB / 2));
	FINE(cuMemcpyDtoH_v2(in, p, bytes));
	CHECK(in[3] == out[3] && in[4] == 1 && in[2 * MIB + 3] == 4 && in[2 * MIB + 4] == out[2 * MIB + 4]);
	FINE(cuMemsetD8_v2(p, 0, bytes));
	expect_all(p, bytes, 0);
	CHECK(faults(p) && faults(q + bytes / 2));
	FINE(cuMemFree_v2(p));
	FINE(cuMemFree_v2(q));
	FINE(cuMemAlloc_v2(&p, 100)); /* a small one */
	FINE(cuMemcpyPeer(p, start(), p + 50, start(), 50));
	FINE(cuMemsetD16_v2(p, 0x0101, 50));
	expect_all(p, 100, 1);
	FINE(cuMemFree_v2(p));
	free(in);
	free(out);
}

static size_t resident(void)
{
	unsigned long size, pages;
	FILE *f = fopen("/proc/self/statm", "re");

	CHECK(f && fscanf(f, "%lu %lu", &size, &pages) == 2);
	fclose(f);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* The host has memory for what is written only. */
static void sparse(void)
{
	unsigned char host[64];
	size_t before;
	CUdeviceptr p;

	FINE(cuMemAlloc_v2(&p, 64 * GIB));
	before = resident();
	FINE(cuMemsetD8_v2(p, 0, 64 * GIB));
	pattern(host, sizeof(host), 7);
	FINE(cuMemcpyHtoD_v2(p + 40 * GIB, host, sizeof(host)));
	memset(host, 0, sizeof(host));
	FINE(cuMemcpyDtoH_v2(host, p + 40 * GIB, sizeof(host)));
	expect(host, sizeof(host), 7);
	FINE(cuMemsetD8_v2(p + 1, 0, 40 * GIB));
	CHECK(SANITIZED || resident() < before + MIB);
	FINE(cuMemsetD8_v2(p + 1, 9, 16 * MIB));
	CHECK(resident() >= before + 15 * MIB);
	FINE(cuMemsetD8_v2(p, 0, 64 * GIB));
	CHECK(SANITIZED || resident() < before + MIB);
	FINE(cuMemFree_v2(p));
}

static void rows(void)
{
	unsigned char host[40 * 64], back[40 * 64] = {0};
	size_t pitch;
	CUdeviceptr p;
	CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .srcPitch = 64, .srcXInBytes = 4, .srcY = 2,
			   .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstXInBytes = 8, .dstY = 1, .WidthInBytes = 50, .Height = 38};
	CUDA_MEMCPY3D d = {0};

	FINE(cuMemAllocPitch_v2(&p, &pitch, 64, 40, 4));
	pattern(host, sizeof(host), 3);
	c.dstDevice = p;
	c.dstPitch = pitch;
	FINE(cuMemcpy2D_v2(&c));
	FINE(cuMemcpyDtoH_v2(back, p + 5 * pitch + 8, 50));
	CHECK(!memcmp(back, host + 6 * 64 + 4, 50));
	expect_all(p, pitch + 8, 0);
	c.Height = 40; /* one row too many */
	GIVES(cuMemcpy2D_v2(&c), CUDA_ERROR_INVALID_VALUE);
	c.Height = 38;
	c.dstPitch = 50;
	GIVES(cuMemcpy2DAsync_v2(&c, NULL), CUDA_ERROR_INVALID_VALUE);
	c.dstMemoryType = 9;
	GIVES(cuMemcpy2DUnaligned_v2(&c), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemsetD2D16_v2(p + 2, pitch, 0x0505, 10, 40));
	GIVES(cuMemsetD2D16_v2(p + 2, pitch, 0x0505, pitch / 2, 40), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemcpyDtoH_v2(back, p + 39 * pitch, 30));
	CHECK(back[1] != 5 && back[2] == 5 && back[21] == 5 && back[22] != 5);

	d.srcMemoryType = CU_MEMORYTYPE_UNIFIED; /* planes of 5 rows */
	d.srcDevice = (CUdeviceptr)(uintptr_t)host;
	d.srcPitch = 16;
	d.srcHeight = 5;
	d.srcZ = 1;
	d.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	d.dstDevice = p;
	d.dstPitch = 32;
	d.dstHeight = 6;
	d.WidthInBytes = 16;
	d.Height = 5;
	d.Depth = 4;
	FINE(cuMemcpy3D_v2(&d));
	FINE(cuMemcpyDtoH_v2(back, p + 32 * (6 * 3 + 4), 16));
	CHECK(!memcmp(back, host + 16 * (5 * 4 + 4), 16));
	d.dstHeight = 4;
	GIVES(cuMemcpy3DAsync_v2(&d, NULL), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemFree_v2(p));
}

static void arrays(void)
{
	CUDA_ARRAY_DESCRIPTOR flat = {100, 20, 0x20, 2};
	CUDA_ARRAY3D_DESCRIPTOR deep = {16, 8, 4, 0x01, 1, 0};
	unsigned char host[800 * 20], back[800 * 20] = {0};
	CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .srcPitch = 800, .dstMemoryType = CU_MEMORYTYPE_ARRAY,
			   .WidthInBytes = 800, .Height = 20};
	CUDA_MEMCPY3D d = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .srcPitch = 16, .srcHeight = 8,
			   .dstMemoryType = CU_MEMORYTYPE_ARRAY, .WidthInBytes = 16, .Height = 8, .Depth = 4};
	CUmipmappedArray mipmap;
	CUarray a, b, level;
	CUdeviceptr p;

	pattern(host, sizeof(host), 4);
	FINE(cuArrayCreate_v2(&a, &flat));
	FINE(cuArrayCreate_v2(&b, &flat));
	c.dstArray = a;
	FINE(cuMemcpy2D_v2(&c));
	c = (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = a, .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = b,
			    .srcY = 1, .dstXInBytes = 80, .WidthInBytes = 720, .Height = 19};
	FINE(cuMemcpy2D_v2(&c));
	FINE(cuMemcpyAtoH_v2(back, b, 0, 800));
	CHECK(back[79] == 0 && !memcmp(back + 80, host + 800, 720));
	c.WidthInBytes = 721;
	GIVES(cuMemcpy2D_v2(&c), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemAlloc_v2(&p, 800));
	FINE(cuMemcpyAtoD_v2(p, a, 8, 700));
	FINE(cuMemcpyDtoA_v2(b, 0, p, 700));
	FINE(cuMemcpyAtoA_v2(b, 700, b, 0, 100));
	FINE(cuMemcpyAtoHAsync_v2(back, b, 700, 100, NULL));
	CHECK(!memcmp(back, host + 8, 100));
	FINE(cuMemcpyHtoA_v2(a, 0, back, 100));
	GIVES(cuMemcpyHtoA_v2(a, 701, back, 100), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemFree_v2(p));
	FINE(cuArrayDestroy(a));
	GIVES(cuMemcpyHtoA_v2(a, 0, back, 100), CUDA_ERROR_INVALID_HANDLE);
	FINE(cuArrayDestroy(b));
	FINE(cuMipmappedArrayCreate(&mipmap, &deep, 3));
	FINE(cuMipmappedArrayGetLevel(&level, mipmap, 0));
	d.dstArray = level;
	FINE(cuMemcpy3D_v2(&d));
	d = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = level, .srcXInBytes = 3, .srcY = 7, .srcZ = 3,
			    .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = back, .WidthInBytes = 13, .Height = 1, .Depth = 1};
	FINE(cuMemcpy3D_v2(&d));
	CHECK(!memcmp(back, host + 16 * (8 * 3 + 7) + 3, 13));
	FINE(cuMipmappedArrayGetLevel(&level, mipmap, 1)); /* 8 by 4 by 2 */
	d.srcArray = level;
	GIVES(cuMemcpy3D_v2(&d), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMipmappedArrayDestroy(mipmap));
}

static void pools_and_mappings(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	unsigned char host[1000], back[1000];
	CUmemGenericAllocationHandle h[2];
	CUdeviceptr p, at;

	pattern(host, sizeof(host), 5);
	FINE(cuMemAllocAsync(&p, 100000, NULL));
	FINE(cuMemcpyHtoDAsync_v2(p + 99000, host, 1000, NULL));
	FINE(cuMemcpyDtoHAsync_v2(back, p + 99000, 1000, NULL));
	expect(back, 1000, 5);
	FINE(cuMemFreeAsync(p, NULL));
	GIVES(cuMemcpyDtoH_v2(back, p, 1), CUDA_ERROR_INVALID_VALUE);

	FINE(cuMemAddressReserve(&at, 16 * MIB, 0, 0, 0));
	for (int i = 0; i < 2; i++) {
		FINE(cuMemCreate(&h[i], 2 * MIB, &prop, 0));
		FINE(cuMemMap(at + (size_t)i * 2 * MIB, 2 * MIB, 0, h[i], 0));
		FINE(cuMemMap(at + (size_t)(9 - 2 * i) * MIB + MIB, 2 * MIB, 0, h[i], 0)); /* the other way round, too */
	}
	FINE(cuMemSetAccess(at, 4 * MIB, &access, 1));
	FINE(cuMemSetAccess(at + 8 * MIB, 4 * MIB, &access, 1));
	FINE(cuMemcpyHtoD_v2(at + 2 * MIB - 500, host, 1000)); /* over the seam */
	FINE(cuMemcpyDtoH_v2(back, at + 2 * MIB - 500, 1000));
	expect(back, 1000, 5);
	FINE(cuMemcpyDtoH_v2(back, at + 12 * MIB - 500, 500));
	CHECK(!memcmp(back, host, 500));
	FINE(cuMemcpyDtoH_v2(back, at + 8 * MIB, 500));
	CHECK(!memcmp(back, host + 500, 500));
	CHECK(faults(at));
	FINE(cuMemUnmap(at, 4 * MIB));
	GIVES(cuMemcpyDtoH_v2(back, at, 1), CUDA_ERROR_INVALID_VALUE);
	FINE(cuMemMap(at, 2 * MIB, 0, h[1], 0));
	FINE(cuMemSetAccess(at, 2 * MIB, &access, 1));
	FINE(cuMemcpyDtoH_v2(back, at, 500));
	CHECK(!memcmp(back, host + 500, 500));
	FINE(cuMemUnmap(at, 2 * MIB));
	FINE(cuMemUnmap(at + 8 * MIB, 4 * MIB));
	FINE(cuMemRelease(h[0]));
	FINE(cuMemRelease(h[1]));
	FINE(cuMemAddressFree(at, 16 * MIB));
}

static void globals(void)
{
	static const char ptx[] = ".version 6.3\n.target sm_75\n"
				  ".visible .global .align 4 .u32 numbers[3] = {7, 0x10, -1};\n"
				  ".const .align 8 .b8 table[5] = {1, 2, 3};\n"
				  ".global .f32 one = 0f3F800000;\n"
				  ".visible .entry quick() { ret; }\n";
	unsigned numbers[3];
	unsigned char table[5];
	CUdeviceptr p;
	CUmodule m;
	float one;
	size_t n;

	FINE(cuModuleLoadData(&m, ptx));
	FINE(cuModuleGetGlobal_v2(&p, &n, m, "numbers"));
	CHECK(n == sizeof(numbers));
	FINE(cuMemcpyDtoH_v2(numbers, p, n));
	CHECK(numbers[0] == 7 && numbers[1] == 16 && numbers[2] == ~0u);
	FINE(cuModuleGetGlobal_v2(&p, &n, m, "table"));
	CHECK(n == sizeof(table));
	FINE(cuMemcpyDtoH_v2(table, p, n));
	CHECK(table[0] == 1 && table[2] == 3 && table[4] == 0);
	FINE(cuMemsetD8_v2(p, 8, n)); /* const for kernels only */
	expect_all(p, n, 8);
	FINE(cuModuleGetGlobal_v2(&p, &n, m, "one"));
	FINE(cuMemcpyDtoH_v2(&one, p, n));
	CHECK(n == 4 && one == 1);
	FINE(cuModuleUnload(m));
}

/* What another interface has in a file. */
static void external(void)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = 1, .size = MIB};
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC part = {.offset = 65536, .size = 1000};
	unsigned char host[1000], back[1000];
	CUexternalMemory memory;
	CUdeviceptr p;
	int fd = memfd_create("external", MFD_CLOEXEC), other;

	CHECK(fd >= 0 && !ftruncate(fd, (off_t)MIB));
	other = dup(fd);
	desc.handle.fd = fd;
	pattern(host, sizeof(host), 6);
	FINE(cuImportExternalMemory(&memory, &desc));
	FINE(cuExternalMemoryGetMappedBuffer(&p, memory, &part));
	FINE(cuMemcpyHtoD_v2(p, host, sizeof(host)));
	CHECK(pread(other, back, sizeof(back), 65536) == sizeof(back));
	expect(back, sizeof(back), 6);
	FINE(cuMemFree_v2(p));
	FINE(cuDestroyExternalMemory(memory));
	close(other);
}

void check_contents(void)
{
	start();
	linear();
	sparse();
	rows();
	arrays();
	pools_and_mappings();
	globals();
	external();
}

static unsigned char first_byte(CUdeviceptr p)
{
	unsigned char host;

	FINE(cuMemcpyDtoH_v2(&host, p, 1));
	return host;
}

static void captured(CUstream s, CUdeviceptr p, CUdeviceptr q, unsigned char *host)
{
	CUgraphExec exec;
	CUgraph graph;

	FINE(cuStreamBeginCapture_v2(s, CU_CAPTURE_MODE_GLOBAL));
	FINE(cuMemcpyHtoDAsync_v2(p, host, 100, s));
	FINE(cuMemcpyDtoDAsync_v2(q, p, 100, s));
	FINE(cuMemsetD8Async(p, 3, 50, s));
	FINE(cuStreamEndCapture(s, &graph));
	CHECK(first_byte(q) == 0); /* nothing is done yet */
	FINE(cuGraphInstantiateWithFlags(&exec, graph, 0));
	FINE(cuGraphDestroy(graph));
	for (unsigned char round = 11; round < 13; round++) {
		memset(host, round, 100); /* it is read when the graph runs */
		FINE(cuGraphLaunch(exec, s));
		FINE(cuStreamSynchronize(s));
		CHECK(first_byte(q + 99) == round && first_byte(p + 49) == 3 && first_byte(p + 50) == round);
	}
	FINE(cuGraphExecDestroy(exec));
}

static void built(CUcontext ctx, CUstream s, CUdeviceptr p, CUdeviceptr q)
{
	CUDA_MEMSET_NODE_PARAMS fill = {.dst = p, .value = 0x21, .elementSize = 1, .width = 100, .height = 1, .pitch = 100}, got;
	CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = q,
			      .WidthInBytes = 100, .Height = 1, .Depth = 1}, seen;
	CUDA_MEM_ALLOC_NODE_PARAMS memory = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = 1000};
	CUgraphNode filled, copied, allocated, out, freed;
	CUgraphExec exec;
	CUgraph graph;

	FINE(cuGraphCreate(&graph, 0));
	FINE(cuGraphAddMemsetNode(&filled, graph, NULL, 0, &fill, ctx));
	FINE(cuGraphAddMemcpyNode(&copied, graph, &filled, 1, &copy, ctx));
	FINE(cuGraphMemsetNodeGetParams(filled, &got));
	CHECK(got.dst == p && got.value == 0x21 && got.width == 100 && got.elementSize == 1);
	FINE(cuGraphMemcpyNodeGetParams(copied, &seen));
	CHECK(seen.srcDevice == p && seen.dstDevice == q && seen.WidthInBytes == 100);
	copy.WidthInBytes = 5000;
	GIVES(cuGraphMemcpyNodeSetParams(copied, &copy), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuGraphAddMemcpyNode(&out, graph, NULL, 0, &copy, ctx), CUDA_ERROR_INVALID_VALUE);
	/* By way of memory that the graph allocates. */
	FINE(cuGraphAddMemAllocNode(&allocated, graph, &copied, 1, &memory));
	copy.WidthInBytes = 100;
	copy.dstDevice = memory.dptr;
	FINE(cuGraphAddMemcpyNode(&out, graph, &allocated, 1, &copy, ctx));
	copy.srcDevice = memory.dptr;
	copy.dstDevice = q + 200;
	FINE(cuGraphAddMemcpyNode(&out, graph, &out, 1, &copy, ctx));
	FINE(cuGraphAddMemFreeNode(&freed, graph, &out, 1, memory.dptr));
	FINE(cuGraphInstantiateWithFlags(&exec, graph, 0));
	FINE(cuGraphLaunch(exec, s));
	CHECK(first_byte(q + 99) == 0x21 && first_byte(q + 299) == 0x21);
	fill.value = 0x43;
	FINE(cuGraphExecMemsetNodeSetParams(exec, filled, &fill, ctx));
	FINE(cuGraphLaunch(exec, s));
	CHECK(first_byte(q + 99) == 0x43 && first_byte(q + 299) == 0x43);
	FINE(cuGraphExecDestroy(exec));
	FINE(cuGraphDestroy(graph));
	GIVES(cuMemcpyDtoH_v2(&copy, memory.dptr, 1), CUDA_ERROR_INVALID_VALUE);
}

void check_graph_contents(void)
{
	unsigned char host[100];
	CUcontext ctx = start();
	CUdeviceptr p, q;
	CUstream s;

	FINE(cuMemAlloc_v2(&p, 1000));
	FINE(cuMemAlloc_v2(&q, 1000));
	FINE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	captured(s, p, q, host);
	built(ctx, s, p, q);
	FINE(cuStreamDestroy_v2(s));
	FINE(cuMemFree_v2(p));
	FINE(cuMemFree_v2(q));
	FINE(cuDeviceGraphMemTrim(0));
}
