/*
 * Memory in pages. Where a GPU has a page size, an allocation that is not small takes whole pages, and small ones of a
 * process share pages. A page is a sum here, without addresses: small ones that fit by their sum fit. It goes with
 * the last of them.
 */
#include "page.h"

#include <stdlib.h>

#define SMALL_UNIT 512ull

struct page {
	struct page *next;
	unsigned gpu;
	uint64_t bytes, free;
	size_t users;
};

static struct page *pages;

static uint64_t align_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static CUresult take_bytes(unsigned gpu, uint64_t bytes)
{
	return from_errno(charge_take(&process.view, gpu, CHARGE_DATA, bytes));
}

static struct page *page_with(unsigned gpu, uint64_t room)
{
	struct page *p = pages;

	while (p && (p->gpu != gpu || p->free < room))
		p = p->next;
	return p;
}

static CUresult add_page(unsigned gpu, uint64_t bytes)
{
	struct page *p = malloc(sizeof(*p));
	CUresult r = p ? take_bytes(gpu, bytes) : CUDA_ERROR_OUT_OF_MEMORY;

	if (r) {
		free(p);
		return r;
	}
	*p = (struct page){.next = pages, .gpu = gpu, .bytes = bytes, .free = bytes};
	pages = p;
	return CUDA_SUCCESS;
}

static CUresult take_part(unsigned gpu, uint64_t page, uint64_t room, struct taken *taken)
{
	CUresult r = page_with(gpu, room) ? CUDA_SUCCESS : add_page(gpu, page);

	if (r)
		return r;
	taken->page = page_with(gpu, room);
	taken->bytes = room;
	taken->page->free -= room;
	taken->page->users++;
	return CUDA_SUCCESS;
}

CUresult page_take(unsigned gpu, uint64_t bytes, struct taken *taken)
{
	const struct gpu *c = &process.view.s->gpus[gpu];
	uint64_t page = c->page_bytes;
	CUresult r;

	*taken = (struct taken){0};
	if (page && bytes <= c->small_bytes && bytes <= page)
		return take_part(gpu, page, align_up(bytes, SMALL_UNIT), taken);
	if (page)
		bytes = align_up(bytes, page);
	r = take_bytes(gpu, bytes);
	if (!r)
		taken->bytes = bytes;
	return r;
}

static void drop(struct page *p)
{
	struct page **at = &pages;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	charge_return(&process.view, p->gpu, CHARGE_DATA, p->bytes);
	free(p);
}

void page_return(unsigned gpu, struct taken *taken)
{
	struct page *p = taken->page;

	if (p) {
		p->free += taken->bytes;
		if (!--p->users)
			drop(p);
	} else if (taken->bytes) {
		charge_return(&process.view, gpu, CHARGE_DATA, taken->bytes);
	}
	*taken = (struct taken){0};
}
