/* Inside libcuda.so.1: the allocations of this process. */
#ifndef SIMDRIVER_ALLOCATION_H
#define SIMDRIVER_ALLOCATION_H

#include "content.h"
#include "driver.h"
#include "page.h"

/* Device memory of 64-bit calls is given out from here on; that of the old 32-bit calls below 4 GiB. */
#define FAKE_BASE 0x0a0000000000ull
#define FAKE_END 0x0b0000000000ull

/* PEER: another process's, EXTERNAL: another interface's, REGISTERED: the program's own, MODULE: data of a module,
 * GRAPH: an allocation node's; nothing is charged here for these. */
enum place { DEVICE, MANAGED, HOST, PEER, EXTERNAL, REGISTERED, MODULE, GRAPH };

struct allocation {
	CUdeviceptr base;
	size_t size;
	CUcontext ctx;
	enum place place;
	CUmemoryPool pool; /* that it came from; NULL: none */
	uint64_t id;	   /* in the process */
	struct taken taken;
	struct content content;
	bool free_pending; /* in pending.c; no one else frees it */
	unsigned holds; /* GRAPH: by nodes, executable graphs and what those left allocated. PEER: how often it was opened again */
	int shared; /* exported, or another process's: the descriptor that keeps it; else -1 */
	unsigned share;
};

/* A number that is given out once. Process lock held. */
uint64_t memory_id(void);
/* The allocation that holds this address, or NULL. Process lock held. */
struct allocation *allocation_find(CUdeviceptr ptr);
/* Allocates bytes in the current context. narrow: at an address below 4 GiB. */
CUresult allocate(enum place place, size_t bytes, bool narrow, CUdeviceptr *out);
CUresult allocation_free(CUdeviceptr ptr, bool host);
/* Frees device memory, whatever gave it, in the order of the stream. Process lock held. */
CUresult allocation_free_async(CUdeviceptr ptr, CUcontext ctx, CUstream stream);
/* Gives back what was freed so and is done now. Process lock held. */
void allocations_settle(void);
/* Opens what another process exported; the allocation has the descriptor then. Process lock held. */
CUresult allocation_open(CUcontext ctx, enum place place, CUmemoryPool pool, const struct share *found, int kept, unsigned slot, CUdeviceptr *out);
/* Opens again what is open already in that context. Process lock held. */
bool allocation_reopen(CUcontext ctx, unsigned slot, CUdeviceptr *out);
/* Exports it: other processes can open that share. Process lock held. */
CUresult allocation_export(struct allocation *a);
/* Allocates bytes in a context, and frees such an allocation. Process lock held. */
CUresult allocation_take(CUcontext ctx, enum place place, size_t bytes, CUdeviceptr *out);
void allocation_drop(CUdeviceptr ptr);
/* Frees an allocation of exactly that place, by its first address. */
CUresult allocation_end(CUdeviceptr ptr, enum place place);
/* Memory of the program becomes REGISTERED. */
CUresult allocation_register(CUdeviceptr ptr, size_t bytes);
/* What was advised about managed memory is forgotten. Process lock held. */
void managed_freed(CUdeviceptr base, size_t size);

#endif
