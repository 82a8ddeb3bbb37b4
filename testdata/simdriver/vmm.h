/* Inside libcuda.so.1: virtual memory. Physical memory is had by handle and counted; addresses are reserved, then mapped. */
#ifndef SIMDRIVER_VMM_H
#define SIMDRIVER_VMM_H

#include "content.h"
#include "driver.h"

/* Where addresses are reserved: 64 TiB that no Linux process uses. */
#define VMM_BASE 0x100000000000ull
#define VMM_END 0x500000000000ull
#define VMM_GRANULARITY (2ull << 20)

struct physical {
	uint64_t size;
	CUmemAllocationProp prop;
	unsigned gpu;
	bool charged;     /* made here, on a GPU, and not exported: in this process's account */
	int shared;       /* exported or imported: the descriptor that keeps it; else -1 */
	unsigned share;
	bool imported;
	unsigned handles; /* references by handle */
	uint64_t id;	  /* see memory_id */
	unsigned uses;    /* mappings, in arrays too */
	struct content content;
};

/* Process lock held, all of these. */
struct physical *physical_find(CUmemGenericAllocationHandle handle); /* one that has a reference by handle */
void physical_use(struct physical *p);
void physical_unuse(struct physical *p);

/* What is mapped into an array, or a mipmapped one, is no more. */
void tiles_drop(const void *resource);

/* All of it is mapped, and its device may use it. */
bool vmm_covers(CUdeviceptr ptr, size_t bytes);
bool vmm_content(CUdeviceptr ptr, struct content **of, uint64_t *offset, size_t *left);
/* The mapping that holds the address. */
bool vmm_mapping_at(CUdeviceptr ptr, CUdeviceptr *base, size_t *size, const struct physical **of);

#endif
