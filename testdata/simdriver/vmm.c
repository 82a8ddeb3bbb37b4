/* Virtual memory: addresses. Both tables are sorted by base; neither has much in it that moves often. */
#include "vmm.h"

#include <stdlib.h>
#include <string.h>

struct span { /* reserved, or mapped */
	CUdeviceptr base;
	uint64_t size;
	struct physical *of; /* NULL: reserved */
	int access;
};

struct spans {
	struct span *all;
	size_t count, room;
};

static struct spans reserved, mapped;

/* Index of the first span with a base above ptr. */
static size_t upper(const struct spans *s, CUdeviceptr ptr)
{
	size_t low = 0, high = s->count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (s->all[mid].base <= ptr)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static struct span *holding(const struct spans *s, CUdeviceptr ptr)
{
	size_t i = upper(s, ptr);

	return i && ptr - s->all[i - 1].base < s->all[i - 1].size ? &s->all[i - 1] : NULL;
}

static bool insert(struct spans *s, struct span one)
{
	size_t i;

	if (s->count == s->room) {
		size_t room = s->room ? s->room * 2 : 64;
		struct span *bigger = realloc(s->all, room * sizeof(*bigger));

		if (!bigger)
			return false;
		s->all = bigger;
		s->room = room;
	}
	i = upper(s, one.base);
	memmove(&s->all[i + 1], &s->all[i], (s->count - i) * sizeof(*s->all));
	s->all[i] = one;
	s->count++;
	return true;
}

static void erase(struct spans *s, size_t first, size_t count)
{
	s->count -= count;
	memmove(&s->all[first], &s->all[first + count], (s->count - first) * sizeof(*s->all));
}

static bool overlaps(const struct spans *s, CUdeviceptr base, uint64_t size)
{
	size_t i = upper(s, base);

	return holding(s, base) || (i < s->count && s->all[i].base - base < size);
}

static CUdeviceptr first_gap(uint64_t size, uint64_t align)
{
	CUdeviceptr base = VMM_BASE;

	for (size_t i = 0;; i++) {
		base = (base + align - 1) / align * align;
		if (base > VMM_END || size > VMM_END - base)
			return 0;
		if (i == reserved.count || (reserved.all[i].base >= base && reserved.all[i].base - base >= size))
			return base;
		base = reserved.all[i].base + reserved.all[i].size;
	}
}

static CUresult reserve(CUdeviceptr *ptr, size_t size, size_t align, CUdeviceptr requested)
{
	CUdeviceptr base = requested;

	if (align < VMM_GRANULARITY)
		align = VMM_GRANULARITY;
	/* The requested address is only a hint: if it is not free, another one is returned. */
	if (requested % align || requested < VMM_BASE || requested > VMM_END || size > VMM_END - requested || overlaps(&reserved, requested, size))
		base = first_gap(size, align);
	if (!base || !insert(&reserved, (struct span){.base = base, .size = size}))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*ptr = base;
	return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags)
{
	CUresult r;

	ENTER();
	if (!ptr || !size || size % VMM_GRANULARITY || (alignment & (alignment - 1)) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = reserve(ptr, size, alignment, addr);
	process_unlock();
	return r;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	struct span *one;

	ENTER();
	process_lock();
	one = holding(&reserved, ptr);
	if (one && one->base == ptr && one->size == size && !overlaps(&mapped, ptr, size)) {
		erase(&reserved, (size_t)(one - reserved.all), 1);
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

static CUresult map(CUdeviceptr ptr, size_t size, struct physical *p)
{
	const struct span *room = holding(&reserved, ptr);

	if (!p || !room || !size || (ptr | size) % VMM_GRANULARITY || size > p->size || size > room->base + room->size - ptr ||
	    overlaps(&mapped, ptr, size))
		return CUDA_ERROR_INVALID_VALUE;
	if (!insert(&mapped, (struct span){.base = ptr, .size = size, .of = p}))
		return CUDA_ERROR_OUT_OF_MEMORY;
	physical_use(p);
	return CUDA_SUCCESS;
}

/* The offset must be 0, as documented. */
CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult r;

	ENTER();
	if (offset || flags)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = map(ptr, size, physical_find(handle));
	process_unlock();
	return r;
}

/* Whole mappings, without a gap between them: the first one's index and how many; 0: it is not so. */
static size_t whole(CUdeviceptr ptr, uint64_t size, size_t *first)
{
	const struct span *at = holding(&mapped, ptr);
	CUdeviceptr next = ptr;
	size_t i;

	if (!at || at->base != ptr || !size)
		return 0;
	*first = (size_t)(at - mapped.all);
	for (i = *first; i < mapped.count && mapped.all[i].base == next && next - ptr < size; i++)
		next += mapped.all[i].size;
	return next - ptr == size ? i - *first : 0;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	size_t first, count;

	ENTER();
	process_lock();
	count = whole(ptr, size, &first);
	for (size_t i = 0; i < count; i++)
		physical_unuse(mapped.all[first + i].of);
	if (count)
		erase(&mapped, first, count);
	process_unlock();
	return count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	size_t first, spans;

	ENTER();
	if (!desc || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && !device_gpu(desc[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
	}
	process_lock();
	spans = whole(ptr, size, &first);
	for (size_t i = 0; i < spans; i++)
		mapped.all[first + i].access = desc[0].flags;
	process_unlock();
	return spans ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	const struct span *at;

	ENTER();
	if (!flags || !location)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	at = holding(&mapped, ptr);
	if (at)
		*flags = (unsigned long long)at->access;
	process_unlock();
	return at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool vmm_covers(CUdeviceptr ptr, size_t bytes)
{
	const struct span *at;

	for (uint64_t done = 0; done < bytes; done = at->base + at->size - ptr) {
		at = holding(&mapped, ptr + done);
		if (!at || !at->access)
			return false;
	}
	return true;
}

bool vmm_mapping_at(CUdeviceptr ptr, CUdeviceptr *base, size_t *size, const struct physical **of)
{
	const struct span *at = holding(&mapped, ptr);

	if (!at)
		return false;
	*base = at->base;
	*size = at->size;
	*of = at->of;
	return true;
}

bool vmm_content(CUdeviceptr ptr, struct content **of, uint64_t *offset, size_t *left)
{
	const struct span *at = holding(&mapped, ptr);

	if (!at)
		return false;
	*of = &at->of->content;
	*offset = ptr - at->base;
	*left = (size_t)(at->size - *offset);
	return true;
}
