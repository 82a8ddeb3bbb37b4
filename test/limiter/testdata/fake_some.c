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
int cuMemAlloc_v2(unsigned long long *ptr, size_t size) { (void)size; *ptr = (next += 512); return 0; }
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
