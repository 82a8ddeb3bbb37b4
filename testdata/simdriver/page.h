/* Inside libcuda.so.1: what an allocation takes of a GPU. */
#ifndef SIMDRIVER_PAGE_H
#define SIMDRIVER_PAGE_H

#include "driver.h"

struct page;

struct taken {
	uint64_t bytes;	   /* of the page, or of the GPU; 0: nothing, or no longer in the account of this process */
	struct page *page; /* that it shares with other small ones; NULL: none */
};

/* Allocations of two uses share no page. */
enum page_use { PAGE_CONTEXT, PAGE_DATA, PAGE_MANAGED };

/* Process lock held, both. A second return does nothing. */
CUresult page_take(CUcontext ctx, enum page_use use, uint64_t bytes, struct taken *taken);
void page_return(CUcontext ctx, enum page_use use, struct taken *taken);
/* As many as whole pages have. */
uint64_t page_whole(CUcontext ctx, uint64_t bytes);

#endif
