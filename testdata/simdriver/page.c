/*
 * Memory in pages. Where a GPU has a page size, what is not small takes whole pages, and small allocations of a context
 * share pages. A page is a sum here, without addresses: small ones that fit by their sum fit. It goes with the last
 * of them. A new context has a page to spare, which small modules are in.
 */
#include "page.h"

#include <stdlib.h>

#define SMALL_UNIT 512ull

struct page {
	struct page *next, **at; /* among those with room; at NULL: it is full */
	CUcontext ctx;
	enum page_use use;
	uint64_t bytes, free;
	bool spare; /* of what a new context has */
	size_t users;
};

static struct page *roomy;

static uint64_t align_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

uint64_t page_whole(CUcontext ctx, uint64_t bytes)
{
	uint64_t page = process.view.s->gpus[ctx->gpu].page_bytes;

	return page ? align_up(bytes, page) : bytes;
}

static void unlink_page(struct page *p)
{
	*p->at = p->next;
	if (p->next)
		p->next->at = p->at;
	p->at = NULL;
}

static void link_page(struct page *p)
{
	p->at = &roomy;
	p->next = roomy;
	if (roomy)
		roomy->at = &p->next;
	roomy = p;
}

static enum charge charge_of(enum page_use use)
{
	return use == PAGE_CONTEXT ? CHARGE_CONTEXT : CHARGE_DATA;
}

static struct page *page_with(CUcontext ctx, enum page_use use, uint64_t room)
{
	struct page *p = roomy;

	while (p && (p->ctx != ctx || p->use != use || p->free < room))
		p = p->next;
	return p;
}

static struct page *add_page(CUcontext ctx, enum page_use use, uint64_t bytes, CUresult *r)
{
	bool spare = use == PAGE_CONTEXT && !ctx->spare_used;
	struct page *p = malloc(sizeof(*p));

	*r = spare && p ? CUDA_SUCCESS : p ? from_errno(charge_take(&process.view, ctx->gpu, charge_of(use), bytes)) : CUDA_ERROR_OUT_OF_MEMORY;
	if (*r) {
		free(p);
		return NULL;
	}
	*p = (struct page){.ctx = ctx, .use = use, .bytes = bytes, .free = bytes, .spare = spare};
	ctx->spare_used |= spare;
	link_page(p);
	return p;
}

static CUresult take_part(CUcontext ctx, enum page_use use, uint64_t page, uint64_t room, struct taken *taken)
{
	struct page *p = page_with(ctx, use, room);
	CUresult r = CUDA_SUCCESS;

	if (!p)
		p = add_page(ctx, use, page, &r);
	if (!p)
		return r;
	*taken = (struct taken){room, p};
	p->free -= room;
	p->users++;
	if (!p->free)
		unlink_page(p);
	return CUDA_SUCCESS;
}

CUresult page_take(CUcontext ctx, enum page_use use, uint64_t bytes, struct taken *taken)
{
	const struct gpu *c = &process.view.s->gpus[ctx->gpu];
	CUresult r;

	*taken = (struct taken){0};
	if (c->page_bytes && bytes <= c->small_bytes && bytes <= c->page_bytes)
		return take_part(ctx, use, c->page_bytes, align_up(bytes, SMALL_UNIT), taken);
	bytes = page_whole(ctx, bytes);
	r = from_errno(charge_take(&process.view, ctx->gpu, charge_of(use), bytes));
	if (!r)
		taken->bytes = bytes;
	return r;
}

static void leave_page(struct page *p, uint64_t bytes)
{
	p->free += bytes;
	if (--p->users) {
		if (!p->at)
			link_page(p);
		return;
	}
	if (p->at)
		unlink_page(p);
	if (p->spare)
		p->ctx->spare_used = false;
	else
		charge_return(&process.view, p->ctx->gpu, charge_of(p->use), p->bytes);
	free(p);
}

void page_return(CUcontext ctx, enum page_use use, struct taken *taken)
{
	if (taken->page)
		leave_page(taken->page, taken->bytes);
	else if (taken->bytes)
		charge_return(&process.view, ctx->gpu, charge_of(use), taken->bytes);
	*taken = (struct taken){0};
}
