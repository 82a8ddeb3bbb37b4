#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int contexts = 1;
static uintptr_t next = 0x1000;

int cuCtxGetDevice(int *dev) { *dev = 0; return 0; }
int cuCtxGetCurrent(void **ctx) { *ctx = &contexts; return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int dev)
{
	static const unsigned char id[16] = { 0, 0, 0, 1, 0x51, 0x51, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 1 };

	memcpy(uuid, id, 16);
	uuid[3] += dev;
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
int cuMemCreate(unsigned long long *handle) { *handle = address(); return 0; }
int cuMemExportToShareableHandle(int *fd) { *fd = open("/dev/null", O_RDONLY | O_CLOEXEC); return *fd < 0; }
int cuMemImportFromShareableHandle(unsigned long long *handle) { *handle = address(); return 0; }
int cuMemAllocManaged(unsigned long long *ptr, size_t size, unsigned flags) { (void)flags; return cuMemAlloc_v2(ptr, size); }
int cuMemAllocPitch_v2(unsigned long long *ptr, size_t *pitch, size_t width, size_t height, unsigned element)
{
	(void)element;
	*pitch = (width + 511) & ~(size_t)511;
	return cuMemAlloc_v2(ptr, *pitch * height);
}
/* All handles are of memory of one GPU, and each opens at an address of its own. */
#ifndef IPC_DEVICE
#define IPC_DEVICE 0
#endif
int cuIpcOpenMemHandle_v2(unsigned long long *ptr) { *ptr = address(); return 0; }
int cuMemGetAddressRange_v2(unsigned long long *base, size_t *size, unsigned long long ptr)
{
	if (base)
		*base = ptr;
	if (size)
		*size = 4096;
	return 0;
}
/* One pool, which grows by a chunk and keeps it. */
static unsigned long long reserved;
int cuDeviceGetMemPool(void **pool, int dev) { (void)dev; *pool = &reserved; return 0; }
int cuDeviceGetDefaultMemPool(void **pool, int dev) { return cuDeviceGetMemPool(pool, dev); }
int cuMemPoolGetAttribute(void *pool, int which, unsigned long long *value)
{
	(void)pool, (void)which;
	*value = __atomic_load_n(&reserved, __ATOMIC_RELAXED);
	return 0;
}
int cuMemAllocAsync(unsigned long long *ptr, size_t size, void *stream)
{
	(void)size, (void)stream;
	__atomic_store_n(&reserved, 32 << 20, __ATOMIC_RELAXED);
	*ptr = address();
	return 0;
}
int cuMemAllocAsync_ptsz(unsigned long long *ptr, size_t size, void *stream) { return cuMemAllocAsync(ptr, size, stream); }
int cuMemAllocFromPoolAsync(unsigned long long *ptr, size_t size, void *pool, void *stream) { (void)pool; return cuMemAllocAsync(ptr, size, stream); }
int cuMemPoolCreate(void **pool, void *props) { (void)props; *pool = (void *)(next += 16); return 0; }
int cuStreamCreate(void **stream) { *stream = NULL; return 0; }
int cuMemPoolDestroy(void *pool) { (void)pool; return 0; }
int cuGraphCreate(void **graph) { return cuMemPoolCreate(graph, NULL); }
int cuGraphAddMemAllocNode(void **node) { return cuMemPoolCreate(node, NULL); }
int cuGraphAddMemFreeNode(void **node) { return cuMemPoolCreate(node, NULL); }
int cuGraphDestroy(void *graph) { (void)graph; return 0; }
int cuGraphInstantiateWithFlags(void **exec) { return cuMemPoolCreate(exec, NULL); }
int cuStreamGetCtx(void *stream, void **ctx) { (void)stream; return cuCtxGetCurrent(ctx); }
int cuDeviceGet(int *dev, int ordinal) { *dev = ordinal; return 0; }
int cuCtxSetCurrent(void *ctx) { (void)ctx; return 0; }
/* The primary context, which green ones retain. */
#ifndef CONTEXT_US
#define CONTEXT_US 0 /* what the first one takes */
#endif
static int retained;
int cuDevicePrimaryCtxRetain(void **ctx, int dev)
{
	(void)dev;
	if (!retained++ && CONTEXT_US)
		usleep(CONTEXT_US);
	return cuCtxGetCurrent(ctx);
}
int cuDevicePrimaryCtxRelease(int dev) { (void)dev; return retained-- > 0 ? 0 : 201; }
int cuDevicePrimaryCtxRelease_v2(int dev) { return cuDevicePrimaryCtxRelease(dev); }
int cuDevicePrimaryCtxGetState(int dev, unsigned *flags, int *active) { (void)dev; *flags = 0; *active = retained > 0; return 0; }
int cuGreenCtxCreate(void **ctx, void *desc, int dev, unsigned flags) { (void)desc, (void)flags; return cuDevicePrimaryCtxRetain(ctx, dev); }
int cuGreenCtxDestroy(void *ctx) { (void)ctx; return cuDevicePrimaryCtxRelease(0); }
static char green_context; /* and no driver is known to end it so */
int cuCtxFromGreenCtx(void **ctx, void *green) { (void)green; *ctx = &green_context; return 0; }
int cuCtxDestroy_v2(void *ctx) { return ctx == &green_context ? cuDevicePrimaryCtxRelease(0) : 0; }
static int new_context(void **ctx) { *ctx = (void *)(next += 16); return 0; }
int cuCtxCreate(void **ctx) { return new_context(ctx); }
int cuCtxCreate_v2(void **ctx) { return new_context(ctx); }
int cuCtxCreate_v3(void **ctx) { return new_context(ctx); }
int cuCtxCreate_v4(void **ctx) { return new_context(ctx); }
int cuGLCtxCreate(void **ctx) { return new_context(ctx); }
int cuGLCtxCreate_v2(void **ctx) { return new_context(ctx); }
int cuVDPAUCtxCreate(void **ctx) { return new_context(ctx); }
int cuVDPAUCtxCreate_v2(void **ctx) { return new_context(ctx); }
/* What happens in other threads while this one is in the driver. */
void (*fake_meanwhile)(void);
int cuMemRetainAllocationHandle(unsigned long long *handle)
{
	if (fake_meanwhile)
		fake_meanwhile();
	(*handle)++; /* the program passes the expected handle minus one */
	return 0;
}
#ifndef PROC_TABLE /* fake_proc.c has another one */
/* A future driver: it returns a variant that the limiter does not know. */
static int tomorrow(void) { return 0; }
int cuGetProcAddress_v2(const char *name, void **pfn, int version, uint64_t flags, int *status)
{
	(void)version, (void)flags;
	*pfn = !strcmp(name, "cuMemAlloc") || !strcmp(name, "cuMemcpy") || !strcmp(name, "cuEventRecord") ? (void *)tomorrow : NULL;
	if (status)
		*status = 0;
	return *pfn ? 0 : 500;
}
#endif
/* Kernels that take fakeMilliseconds each, one after the other; events that happen behind them, but never in a
 * stream that stands still; and captures in the strictest mode: any call of an event, in whatever stream and
 * thread, breaks the one that is open, but in a thread in relaxed mode. */
float fakeMilliseconds;
void *fakeStill;
static void *recorded[64];
static uint64_t happens[64], worked_until;
static void *captured;
static int launches, broken, records, lost;
static void *destroyed;
static __thread int mode;
int cuThreadExchangeStreamCaptureMode(int *other) { int before = mode; mode = *other; *other = before; return 0; }
static void breaks(void) { broken += captured != NULL && mode != 2; }
static uint64_t clock_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
int cuEventCreate(void **event) { breaks(); *event = (void *)(next += 16); return 0; }
int cuEventRecord(void *event, void *stream)
{
	records++;
	lost += stream && stream == destroyed;
	recorded[(uintptr_t)event / 16 % 64] = stream;
	happens[(uintptr_t)event / 16 % 64] = worked_until;
	breaks();
	return 0;
}
int cuEventQuery(void *event)
{
	uintptr_t i = (uintptr_t)event / 16 % 64;

	breaks();
	return (fakeStill && recorded[i] == fakeStill) || (happens[i] && clock_now() < happens[i]) ? 600 : 0;
}
int cuStreamBeginCapture_v2(void *stream) { if (captured) return 401; captured = stream; return 0; }
int cuStreamEndCapture(void *stream, void **graph) { *graph = NULL; if (captured != stream) return 401; captured = NULL; return 0; }
int cuStreamIsCapturing(void *stream, int *status) { *status = stream && stream == captured; return stream ? 0 : captured ? 906 : 0; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream)
{
	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
	launches++;
	if (fakeMilliseconds > 0 && (!captured || stream != captured)) {
		uint64_t now = clock_now();
		worked_until = (worked_until > now ? worked_until : now) + (uint64_t)(fakeMilliseconds * 1e6f);
	}
	return 0;
}
/* Copies, fills and frees wait for all work, and keep their arguments. */
static int wait_for_work(void)
{
	if (!worked_until)
		return 0;
	uint64_t now = clock_now();
	struct timespec t = { 0, worked_until > now ? (long)(worked_until - now) : 0 };

	if (t.tv_nsec)
		syscall(SYS_nanosleep, &t, NULL);
	return 0;
}
static int synchronised;
int fakeSynchronised(void) { return synchronised; }
int cuStreamSynchronize(void *stream) { (void)stream; synchronised++; return wait_for_work(); }
int cuPointerGetAttribute(unsigned *type, int what, unsigned long long ptr)
{
	*type = what == 8 ? ptr >> 40 != 0 : what == 9 ? IPC_DEVICE : 2; /* managed; its number; the GPU's */
	return ptr < 0x100000 ? 1 : 0; /* no address of the driver's */
}
static long copied[5];
long *fakeCopied(void) { return copied; }
#define COPY(name)                                        \
	int name(long a, long b, long c, long d, long e)  \
	{                                                 \
		const long args[] = { a, b, c, d, e };    \
		memcpy(copied, args, sizeof(copied));     \
		return wait_for_work();                   \
	}
#define COPIES(name) COPY(name) COPY(name##_v2) COPY(name##_v2_ptds)
COPY(cuMemcpy)
COPY(cuMemcpy_ptds)
COPIES(cuMemcpyDtoH)
COPIES(cuMemcpyAtoH)
COPIES(cuMemcpyHtoD)
COPIES(cuMemcpyHtoA)
COPIES(cuMemcpy2D)
COPIES(cuMemcpy2DUnaligned)
COPIES(cuMemcpy3D)
COPY(cuMemcpy3DPeer)
COPY(cuMemcpy3DPeer_ptds)
#define FILLS(name) COPIES(name##8) COPIES(name##16) COPIES(name##32)
FILLS(cuMemsetD)
FILLS(cuMemsetD2D)
COPY(cuMemFree)
COPY(cuMemFree_v2)
COPY(cuArrayDestroy)
COPY(cuMipmappedArrayDestroy)
int cuLaunchKernelEx(void *config, void *f) { (void)config; return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL); }
typedef struct { void *f; unsigned gx, gy, gz, bx, by, bz, shared; void *stream, **params; } params_t;
int cuLaunchCooperativeKernelMultiDevice(params_t *list, unsigned count, unsigned flags)
{
	(void)flags;
	for (unsigned i = 0; i < count; i++)
		cuLaunchKernel(list[i].f, 1, 1, 1, 1, 1, 1, 0, list[i].stream);
	return 0;
}
int cuStreamDestroy_v2(void *stream)
{
	destroyed = stream;
	if (captured == stream)
		captured = NULL; /* its capture ends with it */
	return 0;
}
int fakeRecords(void) { return records; } /* events that were recorded */
int fakeLost(void) { return lost; } /* in a stream that was destroyed before */
int fakeLaunches(void) { return launches; }
int fakeBroken(void) { return broken; }
