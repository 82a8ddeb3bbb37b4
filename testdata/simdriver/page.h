/* Inside libcuda.so.1: what an allocation takes of a GPU. */
#ifndef SIMDRIVER_PAGE_H
#define SIMDRIVER_PAGE_H

#include "driver.h"

struct page;

struct taken {
	uint64_t bytes;	   /* of the page, or of the GPU; 0: nothing, or no longer in the account of this process */
	struct page *page; /* that it shares with other small ones; NULL: none */
};

/* Process lock held, both. A second return does nothing. */
CUresult page_take(unsigned gpu, uint64_t bytes, struct taken *taken);
void page_return(unsigned gpu, struct taken *taken);

#endif
