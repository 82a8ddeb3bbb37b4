/*
 * The table of allocations. The addresses of device memory lie where no Linux process has its own, so that a stray access
 * faults; what is written there is elsewhere, see content.c. Managed and host memory is real memory.
 */
#define _GNU_SOURCE
#include "allocation.h"
#include "pool.h"
#include "vmm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGN_SMALL 512ull
#define ALIGN_LARGE (2ull << 20)
#define BASE_32 0x10000000ull
#define END_32 0xf0000000ull
#define REUSE_SLOTS 64

static struct allocation *table; /* sorted by base */
static size_t table_count, table_room;

/* A real driver gives a freed address out again, which is where ledgers keyed by address go wrong. So do we. */
static struct {
	CUdeviceptr base;
	size_t size;
} reuse[REUSE_SLOTS];
static unsigned reuse_next;

static CUdeviceptr next_64 = FAKE_BASE;
static CUdeviceptr next_32 = BASE_32;

static uint64_t align_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* Index of the first allocation with a base above ptr. */
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

struct allocation *allocation_find(CUdeviceptr ptr)
{
	size_t i = upper(ptr);

	if (!i || ptr - table[i - 1].base >= table[i - 1].size)
		return NULL;
	return &table[i - 1];
}

uint64_t memory_id(void)
{
	static uint64_t last;

	return ++last;
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
	table[i].id = memory_id();
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
	if (a->base < FAKE_BASE)
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

static bool is_charged(enum place place)
{
	return place == DEVICE || place == MANAGED;
}

/* Managed memory has pages of its own: the kernel's driver for managed memory takes them. */
static enum page_use use_of(enum place place)
{
	return place == MANAGED ? PAGE_MANAGED : PAGE_DATA;
}

static bool is_real(enum place place)
{
	return place == MANAGED || place == HOST;
}

/* What was exported, others can have still. */
static void end_content(struct allocation *a)
{
	content_end(&a->content);
	if (a->shared < 0)
		return;
	if (a->place == PEER || (a->pool && a->pool->imported))
		share_close(&process.view, a->shared);
	else
		share_withdraw(&process.view, a->shared, a->share);
}

/* Returns the place behind an allocation and its bytes of the GPU. */
static void give_back(struct allocation *a)
{
	if (a->place == MANAGED)
		managed_freed(a->base, a->size);
	if (is_real(a->place))
		munmap((void *)(uintptr_t)a->base, a->size);
	else if (a->place != REGISTERED)
		forget_address(a);
	end_content(a);
	if (a->pool)
		pool_freed(a->pool, a->size, NULL, NULL, 0);
	else
		page_return(a->ctx, use_of(a->place), &a->taken);
}

/* Freed in a stream that has not come so far. */
static struct leaving {
	struct leaving *next;
	struct allocation allocation;
	struct queue *queue;
	uint64_t tail;
} *leaving;

/* all: a context's, done or not. */
static void settle(CUcontext all)
{
	for (struct leaving **at = &leaving; *at;) {
		struct leaving *l = *at;

		if (l->allocation.ctx != all && !queue_done(l->queue, l->tail)) {
			at = &l->next;
			continue;
		}
		*at = l->next;
		give_back(&l->allocation);
		free(l);
	}
}

void allocations_settle(void)
{
	settle(NULL);
}

static CUresult allocate_locked(CUcontext ctx, enum place place, size_t bytes, bool narrow, CUdeviceptr *out)
{
	struct allocation a = {.size = bytes, .ctx = ctx, .place = place, .content.size = is_real(place) ? 0 : bytes, .shared = -1};
	CUresult r = CUDA_SUCCESS;

	settle(NULL);
	if (is_charged(place))
		r = page_take(ctx, use_of(place), bytes, &a.taken);
	if (r == CUDA_ERROR_OUT_OF_MEMORY) { /* as documented, what pools keep unused is let go first */
		pools_trim(ctx->gpu);
		r = page_take(ctx, use_of(place), bytes, &a.taken);
	}
	if (r)
		return r;
	a.base = is_real(place) ? map_host(bytes) : pick_address(bytes, narrow);
	if (!a.base) {
		page_return(ctx, use_of(place), &a.taken);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!insert(a)) {
		give_back(&a);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = a.base;
	return CUDA_SUCCESS;
}

CUresult allocate(enum place place, size_t bytes, bool narrow, CUdeviceptr *out)
{
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = capture_forbids_unsafe();
	if (r)
		return r;
	process_lock();
	r = ctx->alive ? allocate_locked(ctx, place, bytes, narrow, out) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
	process_unlock();
	return r;
}

static bool host_frees(enum place place)
{
	return place == HOST;
}

static bool device_frees(enum place place)
{
	return place == DEVICE || place == MANAGED || place == EXTERNAL;
}

static bool closes(enum place place)
{
	return place == PEER;
}

static bool unregisters(enum place place)
{
	return place == REGISTERED;
}

static void remove_from_table(struct allocation *a)
{
	give_back(a);
	memmove(a, a + 1, (size_t)(&table[--table_count] - a) * sizeof(*a));
}

static CUresult end(CUdeviceptr ptr, bool (*may)(enum place))
{
	struct allocation *a;
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (!r)
		r = capture_forbids_unsafe();
	if (r)
		return r;
	process_lock();
	a = allocation_find(ptr);
	if (a && a->free_pending) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else if (may(DEVICE) && graph_memory_freed(ptr)) {
		r = CUDA_SUCCESS;
	} else if (!a || a->base != ptr || !may(a->place)) {
		r = may(REGISTERED) ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_ERROR_INVALID_VALUE;
	} else if (a->place == PEER && a->holds) {
		a->holds--;
	} else {
		remove_from_table(a);
	}
	process_unlock();
	return r;
}

CUresult allocation_take(CUcontext ctx, enum place place, size_t bytes, CUdeviceptr *out)
{
	return allocate_locked(ctx, place, bytes, false, out);
}

void allocation_drop(CUdeviceptr ptr)
{
	remove_from_table(allocation_find(ptr));
}

CUresult allocation_free(CUdeviceptr ptr, bool host)
{
	return end(ptr, host ? host_frees : device_frees);
}

CUresult allocation_end(CUdeviceptr ptr, enum place place)
{
	return end(ptr, place == PEER ? closes : unregisters);
}

CUresult allocation_register(CUdeviceptr ptr, size_t bytes)
{
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	if (allocation_find(ptr) || allocation_find(ptr + bytes - 1))
		r = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	else if (!insert((struct allocation){.base = ptr, .size = bytes, .ctx = ctx, .place = REGISTERED, .shared = -1}))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	process_unlock();
	return r;
}

CUdeviceptr allocation_addresses(CUdevice dev, size_t bytes)
{
	struct allocation a = {.base = pick_address(bytes, false), .size = bytes, .ctx = &process.devices[dev].primary, .place = GRAPH,
			       .content.size = bytes, .holds = 1, .shared = -1};

	return a.base && insert(a) ? a.base : 0;
}

static struct allocation *graph_addresses(CUdeviceptr ptr)
{
	struct allocation *a = allocation_find(ptr);

	return a && a->base == ptr && a->place == GRAPH ? a : NULL; /* NULL: they went with the context */
}

void allocation_hold(CUdeviceptr ptr)
{
	struct allocation *a = graph_addresses(ptr);

	if (a)
		a->holds++;
}

void allocation_unhold(CUdeviceptr ptr)
{
	struct allocation *a = graph_addresses(ptr);

	if (a && !--a->holds)
		remove_from_table(a);
}

CUresult allocation_add(CUcontext ctx, size_t bytes, CUmemoryPool pool, CUdeviceptr *out)
{
	struct allocation a = {.base = pick_address(bytes, false), .size = bytes, .ctx = ctx, .place = DEVICE, .pool = pool,
			       .content.size = bytes, .shared = -1};

	if (!a.base || !insert(a))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = a.base;
	return CUDA_SUCCESS;
}

CUresult allocation_open(CUcontext ctx, enum place place, CUmemoryPool pool, const struct share *found, int kept, unsigned slot, CUdeviceptr *out)
{
	struct allocation a = {.base = pick_address(found->length, false), .size = found->length, .ctx = ctx, .place = place, .pool = pool,
			       .content = {.size = found->length, .offset = found->offset}, .shared = kept, .share = slot};

	if (!a.base || !content_open(&a.content))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!insert(a)) {
		content_end(&a.content);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = a.base;
	return CUDA_SUCCESS;
}

bool allocation_reopen(CUcontext ctx, unsigned slot, CUdeviceptr *out)
{
	for (size_t i = 0; i < table_count; i++) {
		if (table[i].place != PEER || table[i].share != slot || table[i].ctx != ctx)
			continue;
		table[i].holds++;
		*out = table[i].base;
		return true;
	}
	return false;
}

CUresult allocation_export(struct allocation *a)
{
	/* The page of a small one stays in the account of the maker. */
	struct share what = {.gpu = a->ctx->gpu, .bytes = a->taken.page ? 0 : a->taken.bytes, .length = a->size};
	bool made = a->shared < 0;
	int err = made ? share_create(&process.view, &what, &a->shared, &a->share) : 0;

	if (made && !err && !a->taken.page)
		a->taken.bytes = 0;
	if (err)
		a->shared = -1;
	else if (!a->content.offset && !content_share(&a->content, process.view.s->shares[a->share].offset))
		err = EIO;
	return from_errno(err);
}

/* What cuMemAlloc gave: documented to be possible. */
static CUresult leave(struct allocation *a, struct queue *q, uint64_t tail)
{
	struct leaving *l;

	if (queue_done(q, tail)) {
		remove_from_table(a);
		return CUDA_SUCCESS;
	}
	l = malloc(sizeof(*l));
	if (!l)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*l = (struct leaving){.next = leaving, .allocation = *a, .queue = q, .tail = tail};
	leaving = l;
	memmove(a, a + 1, (size_t)(&table[--table_count] - a) * sizeof(*a));
	return CUDA_SUCCESS;
}

CUresult allocation_free_async(CUdeviceptr ptr, CUcontext ctx, CUstream stream)
{
	struct queue *q = queue_of(stream ? stream->ctx : ctx);
	struct allocation *a = allocation_find(ptr);

	if (a && a->free_pending)
		return CUDA_ERROR_INVALID_VALUE;
	if (graph_memory_freed(ptr))
		return CUDA_SUCCESS;
	if (!a || a->base != ptr || a->place != DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!a->pool)
		return leave(a, q, stream_ready(ctx, stream));
	forget_address(a);
	end_content(a);
	pool_freed(a->pool, a->size, stream, q, stream_ready(ctx, stream));
	memmove(a, a + 1, (size_t)(&table[--table_count] - a) * sizeof(*a));
	return CUDA_SUCCESS;
}

void memory_drop_context(CUcontext ctx)
{
	size_t kept = 0;

	settle(ctx);
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
	const struct allocation *a = allocation_find(ptr);

	if (!a)
		return vmm_covers(ptr, bytes);
	return a->place != HOST && a->place != REGISTERED && bytes <= a->size - (ptr - a->base);
}

bool memory_content(CUdeviceptr ptr, struct content **of, uint64_t *offset, size_t *left)
{
	struct allocation *a = allocation_find(ptr);

	if (!a)
		return vmm_content(ptr, of, offset, left);
	*of = a->content.size ? &a->content : NULL;
	*offset = ptr - a->base;
	*left = a->size - (size_t)*offset;
	return true;
}
