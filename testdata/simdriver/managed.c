/*
 * Where managed memory should be: what a program advises, and asks to be moved, is kept by pages and reported again. It lies on
 * the GPU here, wherever it should be.
 */
#include "allocation.h"

#include <stdlib.h>
#include <string.h>

#define HINT_PAGE 4096ull /* the host's, as documented */
#define HOST_DEVICE (-1) /* CU_DEVICE_CPU */
#define NO_DEVICE (-2)	 /* CU_DEVICE_INVALID */

enum { READ_MOSTLY = 1, NOT_READ_MOSTLY, PREFERRED, NOT_PREFERRED, ACCESSED_BY, NOT_ACCESSED_BY };
enum { RANGE_READ_MOSTLY = 1, RANGE_PREFERRED, RANGE_ACCESSED_BY, RANGE_PREFETCHED, RANGE_PREFERRED_TYPE, RANGE_PREFERRED_ID,
	RANGE_PREFETCHED_TYPE, RANGE_PREFETCHED_ID };

struct hint { /* of the addresses from `from` to before `to` */
	struct hint *next;
	CUdeviceptr from, to;
	bool read_mostly;
	CUmemLocation preferred, prefetched; /* type 0: none */
	uint64_t accessed_by;		     /* bit 0: the host, bit n + 1: device n */
};

static struct hint *hints; /* by address, none over another; process lock */

static bool split(struct hint *h, CUdeviceptr at)
{
	struct hint *second = malloc(sizeof(*second));

	if (!second)
		return false;
	*second = *h;
	second->from = at;
	h->next = second;
	h->to = at;
	return true;
}

static bool insert(struct hint **at, CUdeviceptr from, CUdeviceptr to)
{
	struct hint *h = calloc(1, sizeof(*h));

	if (!h)
		return false;
	h->from = from;
	h->to = to;
	h->next = *at;
	*at = h;
	return true;
}

/* Calls set for hints that make up exactly that range. */
static CUresult change(CUdeviceptr from, CUdeviceptr to, void (*set)(struct hint *, CUmemLocation), CUmemLocation where)
{
	struct hint **at = &hints;

	while (from < to) {
		bool done = true;

		while (*at && (*at)->to <= from)
			at = &(*at)->next;
		if (!*at || (*at)->from > from)
			done = insert(at, from, *at && (*at)->from < to ? (*at)->from : to);
		if (done && (*at)->from < from) {
			done = split(*at, from);
			at = &(*at)->next;
		}
		if (done && (*at)->to > to)
			done = split(*at, to);
		if (!done)
			return CUDA_ERROR_OUT_OF_MEMORY;
		set(*at, where);
		from = (*at)->to;
	}
	return CUDA_SUCCESS;
}

void managed_freed(CUdeviceptr base, size_t size)
{
	for (struct hint **at = &hints; *at && (*at)->from < base + size;) {
		struct hint *h = *at;

		if (h->from < base) {
			at = &h->next;
			continue;
		}
		*at = h->next;
		free(h);
	}
}

static uint64_t accessor(CUmemLocation where)
{
	return 1ull << (where.type == CU_MEM_LOCATION_TYPE_DEVICE ? where.id + 1 : 0);
}

static void set_read_mostly(struct hint *h, CUmemLocation where)
{
	h->read_mostly = where.type != 0;
}

static void set_preferred(struct hint *h, CUmemLocation where)
{
	h->preferred = where;
}

static void set_accessed(struct hint *h, CUmemLocation where)
{
	h->accessed_by |= accessor(where);
}

static void unset_accessed(struct hint *h, CUmemLocation where)
{
	h->accessed_by &= ~accessor(where);
}

static void set_prefetched(struct hint *h, CUmemLocation where)
{
	h->prefetched = where;
}

/* All of it is managed memory. Process lock held. */
static bool is_managed(CUdeviceptr ptr, size_t bytes)
{
	const struct allocation *a = allocation_find(ptr);

	return a && a->place == MANAGED && bytes && bytes <= a->size - (ptr - a->base);
}

static CUresult change_pages(CUdeviceptr ptr, size_t bytes, void (*set)(struct hint *, CUmemLocation), CUmemLocation where)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	process_lock();
	if (is_managed(ptr, bytes))
		r = change(ptr / HINT_PAGE * HINT_PAGE, (ptr + bytes + HINT_PAGE - 1) / HINT_PAGE * HINT_PAGE, set, where);
	process_unlock();
	return r;
}

static CUresult advise(CUdeviceptr ptr, size_t bytes, int advice, CUmemLocation where)
{
	static const CUmemLocation nowhere, anywhere = {CU_MEM_LOCATION_TYPE_HOST, 0};

	switch (advice) {
	case READ_MOSTLY:
		return change_pages(ptr, bytes, set_read_mostly, anywhere);
	case NOT_READ_MOSTLY:
		return change_pages(ptr, bytes, set_read_mostly, nowhere);
	case PREFERRED:
		return change_pages(ptr, bytes, set_preferred, where);
	case NOT_PREFERRED:
		return change_pages(ptr, bytes, set_preferred, nowhere);
	case ACCESSED_BY:
		return change_pages(ptr, bytes, set_accessed, where);
	case NOT_ACCESSED_BY:
		return change_pages(ptr, bytes, unset_accessed, where);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* Documented: the place does not matter to these. */
static bool needs_no_place(int advice)
{
	return advice == READ_MOSTLY || advice == NOT_READ_MOSTLY || advice == NOT_PREFERRED;
}

static bool find_device(CUdevice dev, CUmemLocation *where)
{
	*where = (CUmemLocation){dev == HOST_DEVICE ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, dev == HOST_DEVICE ? 0 : dev};
	return dev == HOST_DEVICE || device_gpu(dev);
}

static bool find_location(CUmemLocation_prefetch at, CUmemLocation *where)
{
	*where = (CUmemLocation){at.type, at.id};
	return at.type >= CU_MEM_LOCATION_TYPE_DEVICE && at.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT &&
	       (at.type != CU_MEM_LOCATION_TYPE_DEVICE || device_gpu(at.id));
}

CUresult cuMemAdvise(CUdeviceptr ptr, size_t bytes, int advice, CUdevice dev)
{
	CUmemLocation where;

	ENTER();
	if (!find_device(dev, &where) && !needs_no_place(advice))
		return CUDA_ERROR_INVALID_DEVICE;
	return advise(ptr, bytes, advice, where);
}

CUresult cuMemAdvise_v2(CUdeviceptr ptr, size_t bytes, int advice, CUmemLocation_prefetch at)
{
	CUmemLocation where;

	ENTER();
	if (!find_location(at, &where) && !needs_no_place(advice))
		return CUDA_ERROR_INVALID_VALUE;
	return advise(ptr, bytes, advice, where);
}

static CUresult prefetch(CUdeviceptr ptr, size_t bytes, CUmemLocation to, CUstream handle)
{
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	r = stream_find(handle, ctx, &s);
	process_unlock();
	return r ? r : change_pages(ptr, bytes, set_prefetched, to);
}

CUresult cuMemPrefetchAsync(CUdeviceptr ptr, size_t bytes, CUdevice dev, CUstream stream)
{
	CUmemLocation to;

	ENTER();
	return find_device(dev, &to) ? prefetch(ptr, bytes, to, stream) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr ptr, size_t bytes, CUdevice dev, CUstream stream)
{
	CUmemLocation to;

	ENTER();
	return find_device(dev, &to) ? prefetch(ptr, bytes, to, per_thread(stream)) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr ptr, size_t bytes, CUmemLocation_prefetch at, unsigned int flags, CUstream stream)
{
	CUmemLocation to;

	ENTER();
	return flags || !find_location(at, &to) ? CUDA_ERROR_INVALID_VALUE : prefetch(ptr, bytes, to, stream);
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr ptr, size_t bytes, CUmemLocation_prefetch at, unsigned int flags,
				    CUstream stream)
{
	CUmemLocation to;

	ENTER();
	return flags || !find_location(at, &to) ? CUDA_ERROR_INVALID_VALUE : prefetch(ptr, bytes, to, per_thread(stream));
}

/* Documented: of memory that is managed, all of the allocation (length 0), and one stream only if that is not the default one. */
static CUresult attach(CUstream handle, CUdeviceptr ptr, size_t length, unsigned flags)
{
	const struct allocation *a;
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = stream_find(handle, ctx, &s);
	a = allocation_find(ptr);
	if (!r && (!a || a->place != MANAGED || a->base != ptr || (length && length != a->size) || (flags == CU_MEM_ATTACH_SINGLE && !s)))
		r = CUDA_ERROR_INVALID_VALUE;
	process_unlock();
	return r;
}

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr ptr, size_t length, unsigned int flags)
{
	ENTER();
	return attach(stream, ptr, length, flags);
}

CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr ptr, size_t length, unsigned int flags)
{
	ENTER();
	return attach(per_thread(stream), ptr, length, flags);
}

static bool same(CUmemLocation a, CUmemLocation b)
{
	return a.type == b.type && a.id == b.id;
}

/* What all pages of a range have in common. */
static struct hint common(CUdeviceptr from, CUdeviceptr to)
{
	static const CUmemLocation nowhere;
	struct hint all = {0};
	bool first = true;

	for (const struct hint *h = hints; h && from < to; h = h->next) {
		if (h->to <= from)
			continue;
		if (h->from > from)
			break;
		if (first)
			all = *h;
		all.read_mostly &= h->read_mostly;
		all.accessed_by &= h->accessed_by;
		if (!same(all.preferred, h->preferred))
			all.preferred = nowhere;
		if (!same(all.prefetched, h->prefetched))
			all.prefetched = nowhere;
		first = false;
		from = h->to;
	}
	if (from < to) /* the rest has none */
		memset(&all, 0, sizeof(all));
	return all;
}

static int device_of(CUmemLocation l)
{
	return l.type == CU_MEM_LOCATION_TYPE_DEVICE ? l.id : l.type ? HOST_DEVICE : NO_DEVICE;
}

static void list_accessors(uint64_t accessed_by, int *out, size_t room)
{
	size_t n = 0;

	for (int dev = HOST_DEVICE; dev < (int)process.device_count && n < room; dev++) {
		if (accessed_by >> (dev + 1) & 1)
			out[n++] = dev;
	}
	while (n < room)
		out[n++] = NO_DEVICE;
}

static bool good_question(const void *data, size_t size, int attribute)
{
	if (!data || attribute < RANGE_READ_MOSTLY || attribute > RANGE_PREFETCHED_ID)
		return false;
	return attribute == RANGE_ACCESSED_BY ? size && size % sizeof(int) == 0 : size == sizeof(int);
}

static void answer(int *data, size_t size, int attribute, const struct hint *all)
{
	switch (attribute) {
	case RANGE_READ_MOSTLY:
		*data = all->read_mostly;
		break;
	case RANGE_PREFERRED:
		*data = device_of(all->preferred);
		break;
	case RANGE_ACCESSED_BY:
		list_accessors(all->accessed_by, data, size / sizeof(int));
		break;
	case RANGE_PREFETCHED:
		*data = device_of(all->prefetched);
		break;
	case RANGE_PREFERRED_TYPE:
		*data = all->preferred.type;
		break;
	case RANGE_PREFERRED_ID:
		*data = all->preferred.id;
		break;
	case RANGE_PREFETCHED_TYPE:
		*data = all->prefetched.type;
		break;
	default:
		*data = all->prefetched.id;
	}
}

static CUresult ask(void **data, const size_t *sizes, const int *attributes, size_t count, CUdeviceptr ptr, size_t bytes)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	for (size_t i = 0; i < count; i++) {
		if (!good_question(data[i], sizes[i], attributes[i]))
			return r;
	}
	process_lock();
	if (is_managed(ptr, bytes)) {
		struct hint all = common(ptr, ptr + bytes);

		for (size_t i = 0; i < count; i++)
			answer(data[i], sizes[i], attributes[i], &all);
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

CUresult cuMemRangeGetAttribute(void *data, size_t size, int attribute, CUdeviceptr ptr, size_t bytes)
{
	ENTER();
	return ask(&data, &size, &attribute, 1, ptr, bytes);
}

CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, int *attributes, size_t count, CUdeviceptr ptr, size_t bytes)
{
	ENTER();
	return !data || !sizes || !attributes || !count ? CUDA_ERROR_INVALID_VALUE : ask(data, sizes, attributes, count, ptr, bytes);
}
