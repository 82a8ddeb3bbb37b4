/* What becomes of each way to take memory, on the fake driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

static void *handle;
#define CALL(name, ...) ((int (*)())dlsym(handle, #name))(__VA_ARGS__)

static size_t before;

static size_t left(void)
{
	size_t f, t;

	return CALL(cuMemGetInfo_v2, &f, &t) ? 0 : f;
}

static void show(const char *what, int r)
{
	size_t now = left();

	printf("%s %d %zd\n", what, r, (ssize_t)(before - now));
	before = now;
}

struct d1 { unsigned w, h; int f; unsigned n; };
struct d2 { size_t w, h; int f; unsigned n; };
struct d31 { unsigned w, h, d; int f; unsigned n, flags; };
struct d3 { size_t w, h, d; int f; unsigned n, flags; };
struct prop { int type, handles, location, id; };

static void unmap(void)
{
	show("unmapped meanwhile", CALL(cuMemUnmap, 0x200000ull, (size_t)1));
}

/* A reference that is got while the last known one goes: to the same memory, or not. */
static void retains(unsigned other)
{
	unsigned long long p = 5;
	void (**meanwhile)(void) = dlsym(handle, "fake_meanwhile");

	show("create", CALL(cuMemCreate, &p, (size_t)1, &(struct prop){ 1, 0, 1, 0 }, 0ull));
	CALL(cuMemMap, 0x200000ull, (size_t)1, (size_t)0, p, 0ull);
	show("release", CALL(cuMemRelease, p));
	*meanwhile = unmap;
	p += other - 1ull; /* the driver adds one */
	show("retain", CALL(cuMemRetainAllocationHandle, &p, NULL));
	show("release", CALL(cuMemRelease, p));
}

int main(void)
{
	void *a = NULL, *b = NULL, *m = NULL;
	unsigned long long p = 0, imported;
	int value = -1;

	handle = dlopen("libcuda.so.1", RTLD_NOW);
	CALL(cuInit, 0);
	before = left();
	show("alloc", CALL(cuMemAlloc_v2, &p, (size_t)1000));
	show("free", CALL(cuMemFree_v2, p));
	show("1D u8", CALL(cuArrayCreate, &a, &(struct d1){ 1000, 0, 1, 1 }));
	show("destroy", CALL(cuArrayDestroy, a));
	show("2D float4", CALL(cuArrayCreate_v2, &a, &(struct d2){ 64, 64, 0x20, 4 }));
	show("3D half2", CALL(cuArray3DCreate, &b, &(struct d31){ 64, 8, 4, 0x10, 2, 0 }));
	show("destroy", CALL(cuArrayDestroy, b));
	show("layered", CALL(cuArray3DCreate_v2, &b, &(struct d3){ 64, 8, 10, 0x20, 1, 1 }));
	show("destroy", CALL(cuArrayDestroy, b));
	show("destroy", CALL(cuArrayDestroy, a));
	show("sparse", CALL(cuArray3DCreate_v2, &b, &(struct d3){ 1 << 20, 1 << 14, 0, 0x20, 4, 0x40 }));
	for (unsigned f = 0; f < 9; f++) { /* NV12, P010, NV16, P216, Y444 in planes of 8 and 10 bits, YUY2, AYUV, Y416 */
		static const int formats[] = { 0xb0, 0x9f, 0xa2, 0xa4, 0xb2, 0xb3, 0xa5, 0xa8, 0xb1 };

		show("video", CALL(cuArray3DCreate_v2, &b, &(struct d3){ 1920, 1080, 0, formats[f], 3, 0 }));
		show("destroy", CALL(cuArrayDestroy, b));
	}
	show("mipmapped", CALL(cuMipmappedArrayCreate, &m, &(struct d3){ 64, 64, 0, 0x20, 1, 0 }, 3));
	show("destroy", CALL(cuMipmappedArrayDestroy, m));
	show("too large", CALL(cuArrayCreate_v2, &a, &(struct d2){ 1 << 20, 1 << 20, 0x20, 4 }));
	show("overflow", CALL(cuArrayCreate_v2, &a, &(struct d2){ SIZE_MAX, SIZE_MAX, 0x20, 4 }));
	show("no descriptor", CALL(cuArrayCreate_v2, &a, NULL));
	show("async", CALL(cuMemAllocAsync, &p, (size_t)1, NULL));
	show("async_ptsz", CALL(cuMemAllocAsync_ptsz, &p, (size_t)1 << 20, NULL));
	show("unknown pool", CALL(cuMemAllocFromPoolAsync, &p, (size_t)1, (void *)0x77, NULL));
	show("unknown pool_ptsz", CALL(cuMemAllocFromPoolAsync_ptsz, &p, (size_t)1, (void *)0x77, NULL));
	show("managed pool", CALL(cuMemPoolCreate, &b, &(struct prop){ 2, 0, 1, 0 }));
	show("pool nowhere", CALL(cuMemPoolCreate, &b, &(struct prop){ 1, 0, 0, 0 }));
	show("create on device", CALL(cuMemCreate, &p, (size_t)1, &(struct prop){ 1, 0, 1, 0 }, 0ull));
	show("import what has no size", CALL(cuMemImportFromShareableHandle, &imported, NULL, 1));
	show("release", CALL(cuMemRelease, p));
	show("release again", CALL(cuMemRelease, p));
	show("release what is unknown", CALL(cuMemRelease, p));
	retains(0);
	retains(1);
	show("create on host", CALL(cuMemCreate, &p, (size_t)1, &(struct prop){ 1, 0, 2, 0 }, 0ull));
	show("create anywhere", CALL(cuMemCreate, &p, (size_t)1, &(struct prop){ 1, 0, 9, 0 }, 0ull));
	CALL(cuDeviceGetAttribute, &value, 115, 0);
	printf("pools %d\n", value);
	value = -1;
	CALL(cuDeviceGetAttribute, &value, 102, 0);
	printf("vmm %d\n", value);
	CALL(cuDeviceGetAttribute, &value, 16, 0);
	printf("others %d\n", value);
	int status = -1;
	int r = CALL(cuGetProcAddress_v2, "cuMemAlloc", &a, 99000, (uint64_t)0, &status);
	printf("unknown variant %d %d %d\n", r, status, a != NULL);
	r = CALL(cuGetProcAddress_v2, "cuMemcpy", &a, 99000, (uint64_t)0, &status);
	printf("unknown name %d %d %d\n", r, status, a != NULL);
	return 0;
}
