/*
 * Allocations. Device memory has addresses and sizes, nothing behind them: no one but a kernel could read it, and kernels
 * are only time here. The addresses lie where no Linux process has its own, so that a stray access faults. Managed and
 * host memory is real memory.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGN_SMALL 512ull
#define ALIGN_LARGE (2ull << 20)
#define PITCH_ALIGN 512ull
#define BASE_64 0x0a0000000000ull
#define BASE_32 0x10000000ull
#define END_32 0xf0000000ull
#define REUSE_SLOTS 64

enum place { DEVICE, MANAGED, HOST };

struct allocation {
	CUdeviceptr base;
	size_t size;
	CUcontext ctx;
	enum place place;
};

static struct allocation *table; /* sorted by base */
static size_t table_count, table_room;

/* A real driver gives a freed address out again, which is where ledgers keyed by address go wrong. So do we. */
static struct {
	CUdeviceptr base;
	size_t size;
} reuse[REUSE_SLOTS];
static unsigned reuse_next;

static CUdeviceptr next_64 = BASE_64;
static CUdeviceptr next_32 = BASE_32;

static uint64_t align_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* Index of the first allocation whose base is above ptr. */
static size_t upper(CUdeviceptr ptr)
{
	size_t low = 0, high = table_count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (table[mid].base <= ptr)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static struct allocation *find(CUdeviceptr ptr)
{
	size_t i = upper(ptr);

	if (!i || ptr - table[i - 1].base >= table[i - 1].size)
		return NULL;
	return &table[i - 1];
}

static bool insert(struct allocation a)
{
	size_t i;

	if (table_count == table_room) {
		size_t room = table_room ? table_room * 2 : 256;
		struct allocation *bigger = realloc(table, room * sizeof(*table));

		if (!bigger)
			return false;
		table = bigger;
		table_room = room;
	}
	i = upper(a.base);
	memmove(&table[i + 1], &table[i], (table_count - i) * sizeof(*table));
	table[i] = a;
	table_count++;
	return true;
}

static CUdeviceptr pick_address(size_t size, bool narrow)
{
	uint64_t align = size >= ALIGN_LARGE ? ALIGN_LARGE : ALIGN_SMALL;
	CUdeviceptr *next = narrow ? &next_32 : &next_64;
	CUdeviceptr base;

	for (unsigned i = 0; i < REUSE_SLOTS && !narrow; i++) {
		if (reuse[i].size == size) {
			reuse[i].size = 0;
			return reuse[i].base;
		}
	}
	base = align_up(*next, align);
	if (narrow && base + size > END_32)
		return 0;
	*next = base + size;
	return base;
}

static void forget_address(const struct allocation *a)
{
	if (a->base < BASE_64)
		return;
	reuse[reuse_next].base = a->base;
	reuse[reuse_next].size = a->size;
	reuse_next = (reuse_next + 1) % REUSE_SLOTS;
}

static CUdeviceptr map_host(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? 0 : (CUdeviceptr)(uintptr_t)p;
}

/* Returns the place behind an allocation and its bytes of the card. */
static void give_back(const struct allocation *a)
{
	if (a->place == DEVICE)
		forget_address(a);
	else
		munmap((void *)(uintptr_t)a->base, a->size);
	if (a->place != HOST)
		charge_return(&process.view, a->ctx->card, CHARGE_DATA, a->size);
}

static CUresult allocate_locked(CUcontext ctx, enum place place, size_t bytes, bool narrow, CUdeviceptr *out)
{
	struct allocation a = {.size = bytes, .ctx = ctx, .place = place};
	CUresult r = CUDA_SUCCESS;

	if (place != HOST)
		r = from_errno(charge_take(&process.view, ctx->card, CHARGE_DATA, bytes));
	if (r)
		return r;
	a.base = place == DEVICE ? pick_address(bytes, narrow) : map_host(bytes);
	if (!a.base) {
		if (place != HOST)
			charge_return(&process.view, ctx->card, CHARGE_DATA, bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!insert(a)) {
		give_back(&a);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = a.base;
	return CUDA_SUCCESS;
}

static CUresult allocate(enum place place, size_t bytes, bool narrow, CUdeviceptr *out)
{
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	process_lock();
	r = ctx->alive ? allocate_locked(ctx, place, bytes, narrow, out) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
	process_unlock();
	return r;
}

static CUresult release(CUdeviceptr ptr, bool host)
{
	struct allocation *a;
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	a = find(ptr);
	if (!a || a->base != ptr || (a->place == HOST) != host) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		give_back(a);
		memmove(a, a + 1, (size_t)(&table[--table_count] - a) * sizeof(*a));
	}
	process_unlock();
	return r;
}

void memory_drop_context(CUcontext ctx)
{
	size_t kept = 0;

	for (size_t i = 0; i < table_count; i++) {
		if (table[i].ctx == ctx)
			give_back(&table[i]);
		else
			table[kept++] = table[i];
	}
	table_count = kept;
}

bool memory_covers(CUdeviceptr ptr, size_t bytes)
{
	const struct allocation *a = find(ptr);

	return a && a->place != HOST && bytes <= a->size - (ptr - a->base);
}

static CUresult get_info(uint64_t *free_bytes, uint64_t *total)
{
	const struct card *c;
	uint64_t used;
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	c = &process.view.s->cards[ctx->card];
	state_reap(&process.view);
	if (state_lock(&process.view))
		return CUDA_ERROR_OPERATING_SYSTEM;
	used = card_used(c);
	state_unlock(&process.view);
	*total = card_capacity(c);
	*free_bytes = used < *total ? *total - used : 0;
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	uint64_t f, t;
	CUresult r;

	ENTER();
	if (!free_bytes || !total)
		return CUDA_ERROR_INVALID_VALUE;
	r = get_info(&f, &t);
	if (!r) {
		*free_bytes = f;
		*total = t;
	}
	return r;
}

CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total)
{
	uint64_t f, t;
	CUresult r;

	ENTER();
	if (!free_bytes || !total)
		return CUDA_ERROR_INVALID_VALUE;
	r = get_info(&f, &t);
	if (!r) {
		*free_bytes = f > UINT32_MAX ? UINT32_MAX : (unsigned)f;
		*total = t > UINT32_MAX ? UINT32_MAX : (unsigned)t;
	}
	return r;
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
	ENTER();
	if (!ptr)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(DEVICE, bytes, false, ptr);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *ptr, unsigned int bytes)
{
	CUdeviceptr wide;
	CUresult r;

	ENTER();
	if (!ptr)
		return CUDA_ERROR_INVALID_VALUE;
	r = allocate(DEVICE, bytes, true, &wide);
	if (!r)
		*ptr = (CUdeviceptr_v1)wide;
	return r;
}

static CUresult allocate_pitch(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned element, bool narrow)
{
	size_t row;
	CUresult r;

	if ((element != 4 && element != 8 && element != 16) || !width || !height)
		return CUDA_ERROR_INVALID_VALUE;
	if (width > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	row = align_up(width, PITCH_ALIGN);
	if (height > SIZE_MAX / 2 / row)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = allocate(DEVICE, row * height, narrow, ptr);
	if (!r)
		*pitch = row;
	return r;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	ENTER();
	if (!ptr || !pitch)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate_pitch(ptr, pitch, width, height, element, false);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *ptr, unsigned int *pitch, unsigned int width, unsigned int height,
			 unsigned int element)
{
	CUdeviceptr wide;
	size_t row;
	CUresult r;

	ENTER();
	if (!ptr || !pitch)
		return CUDA_ERROR_INVALID_VALUE;
	r = allocate_pitch(&wide, &row, width, height, element, true);
	if (!r) {
		*ptr = (CUdeviceptr_v1)wide;
		*pitch = (unsigned)row;
	}
	return r;
}

CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t bytes, unsigned int flags)
{
	ENTER();
	if (!ptr || (flags != 1 && flags != 2)) /* GLOBAL, HOST */
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(MANAGED, bytes, false, ptr);
}

CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	ENTER();
	return ptr ? release(ptr, false) : CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr_v1 ptr)
{
	ENTER();
	return ptr ? release(ptr, false) : CUDA_SUCCESS;
}

static CUresult address_range(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	const struct allocation *a;
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	a = find(ptr);
	if (!a) {
		r = CUDA_ERROR_NOT_FOUND;
	} else {
		*base = a->base;
		*size = a->size;
	}
	process_unlock();
	return r;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	CUdeviceptr b;
	size_t n;
	CUresult r;

	ENTER();
	r = address_range(&b, &n, ptr);
	if (r)
		return r;
	if (base)
		*base = b;
	if (size)
		*size = n;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *size, CUdeviceptr_v1 ptr)
{
	CUdeviceptr b;
	size_t n;
	CUresult r;

	ENTER();
	r = address_range(&b, &n, ptr);
	if (r)
		return r;
	if (base)
		*base = (CUdeviceptr_v1)b;
	if (size)
		*size = (unsigned)n;
	return CUDA_SUCCESS;
}

static CUresult allocate_host(void **pp, size_t bytes)
{
	CUdeviceptr p;
	CUresult r;

	if (!pp)
		return CUDA_ERROR_INVALID_VALUE;
	r = allocate(HOST, bytes, false, &p);
	if (!r)
		*pp = (void *)(uintptr_t)p;
	return r;
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytes)
{
	ENTER();
	return allocate_host(pp, bytes);
}

CUresult cuMemAllocHost(void **pp, unsigned int bytes)
{
	ENTER();
	return allocate_host(pp, bytes);
}

CUresult cuMemHostAlloc(void **pp, size_t bytes, unsigned int flags)
{
	ENTER();
	if (flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate_host(pp, bytes);
}

CUresult cuMemFreeHost(void *p)
{
	ENTER();
	return release((CUdeviceptr)(uintptr_t)p, true);
}

static CUresult host_pointer(CUdeviceptr *dptr, void *p, unsigned flags)
{
	const struct allocation *a;

	if (!dptr || flags)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	a = find((CUdeviceptr)(uintptr_t)p);
	process_unlock();
	*dptr = (CUdeviceptr)(uintptr_t)p; /* unified addressing */
	return a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *dptr, void *p, unsigned int flags)
{
	ENTER();
	return host_pointer(dptr, p, flags);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1 *dptr, void *p, unsigned int flags)
{
	CUdeviceptr wide = 0;
	CUresult r;

	ENTER();
	if (!dptr)
		return CUDA_ERROR_INVALID_VALUE;
	r = host_pointer(&wide, p, flags);
	*dptr = (CUdeviceptr_v1)wide;
	return r;
}

static CUresult pointer_attribute(void *data, int which, const struct allocation *a)
{
	switch (which) {
	case 1: /* CONTEXT */
		*(CUcontext *)data = a->ctx;
		return CUDA_SUCCESS;
	case 2: /* MEMORY_TYPE: HOST 1, DEVICE 2 */
		*(unsigned *)data = a->place == HOST ? 1 : 2;
		return CUDA_SUCCESS;
	case 8: /* IS_MANAGED */
		*(unsigned *)data = a->place == MANAGED;
		return CUDA_SUCCESS;
	case 9: /* DEVICE_ORDINAL */
		*(int *)data = a->ctx->device;
		return CUDA_SUCCESS;
	case 11: /* RANGE_START_ADDR */
		*(CUdeviceptr *)data = a->base;
		return CUDA_SUCCESS;
	case 12: /* RANGE_SIZE */
		*(size_t *)data = a->size;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr ptr)
{
	const struct allocation *a;
	CUresult r;

	ENTER();
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	a = find(ptr);
	r = a ? pointer_attribute(data, attribute, a) : CUDA_ERROR_INVALID_VALUE;
	process_unlock();
	return r;
}
