#include <stddef.h>
#include <stdint.h>
#include <string.h>

static int contexts = 1;
static uintptr_t next = 0x1000;

int cuCtxGetDevice(int *dev) { *dev = 0; return 0; }
int cuCtxGetCurrent(void **ctx) { *ctx = &contexts; return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int dev)
{
	static const unsigned char id[16] = { 0, 0, 0, 1, 0x51, 0x51, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 1 };

	memcpy(uuid, id, 16);
	(void)dev;
	return 0;
}
int cuArrayCreate(void **out, void *desc) { (void)desc; *out = (void *)(next += 16); return 0; }
int cuArrayCreate_v2(void **out, void *desc) { return cuArrayCreate(out, desc); }
int cuArray3DCreate(void **out, void *desc) { return cuArrayCreate(out, desc); }
int cuArray3DCreate_v2(void **out, void *desc) { return cuArrayCreate(out, desc); }
int cuMipmappedArrayCreate(void **out, void *desc, unsigned levels) { (void)levels; return cuArrayCreate(out, desc); }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = *total = (size_t)80 << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int dev) { (void)attribute, (void)dev; *value = 1; return 0; }
/* Addresses are unique within a process, whatever the thread. */
static unsigned long long address(void) { return 0x100000 + 512 * __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED); }
int cuMemAlloc_v2(unsigned long long *ptr, size_t size) { (void)size; *ptr = address(); return 0; }
int cuMemAllocManaged(unsigned long long *ptr, size_t size, unsigned flags) { (void)flags; return cuMemAlloc_v2(ptr, size); }
int cuMemAllocPitch_v2(unsigned long long *ptr, size_t *pitch, size_t width, size_t height, unsigned element)
{
	(void)element;
	*pitch = (width + 511) & ~(size_t)511;
	return cuMemAlloc_v2(ptr, *pitch * height);
}
int cuDeviceGet(int *dev, int ordinal) { *dev = ordinal; return 0; }
int cuCtxSetCurrent(void *ctx) { (void)ctx; return 0; }
int cuDevicePrimaryCtxRetain(void **ctx, int dev) { (void)dev; return cuCtxGetCurrent(ctx); }
/* A driver of tomorrow: it gives out a variant that nobody knows. */
static int tomorrow(void) { return 0; }
int cuGetProcAddress_v2(const char *name, void **pfn, int version, uint64_t flags, int *status)
{
	(void)version, (void)flags;
	*pfn = !strcmp(name, "cuMemAlloc") ? (void *)tomorrow : !strcmp(name, "cuMemcpy") ? (void *)tomorrow : NULL;
	if (status)
		*status = 0;
	return *pfn ? 0 : 500;
}
