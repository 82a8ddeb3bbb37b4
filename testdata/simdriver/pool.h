/* Inside libcuda.so.1: memory pools, and what a graph's memory is. */
#ifndef SIMDRIVER_POOL_H
#define SIMDRIVER_POOL_H

#include "driver.h"

struct pending; /* what was freed in a stream that is not there yet */

struct CUmemPoolHandle_st {
	CUmemoryPool next; /* of the process */
	CUdevice device;
	unsigned gpu;
	bool fixed;	/* a device's default pool */
	bool imported;	/* another process's: its memory is charged there */
	bool destroyed; /* ends with its last allocation */
	int reuse[3];
	uint64_t threshold, max;
	uint64_t reserved, reserved_high, used, used_high;
	struct freed *pending;
};

/* The allocation is freed: when the queue has come so far; NULL: at once. Process lock held. */
void pool_freed(CUmemoryPool pool, size_t bytes, CUstream stream, struct queue *q, uint64_t tail);
/* All pools of the process give back what they need not keep, as a synchronisation lets them. Takes the lock. */
void pools_synchronised(void);
/* Everything that no one uses goes back to the GPU. Process lock held. */
void pools_trim(unsigned gpu);

/* False: there is no such pool, or it is another process's. */
bool pool_device(CUmemoryPool pool, CUdevice *dev);
CUresult pool_import(CUmemoryPool *pool, CUdevice dev);
CUresult pool_import_pointer(CUmemoryPool pool, CUcontext ctx, const struct share *found, int kept, unsigned slot, CUdeviceptr *out);

/* A node of the graph that the stream is captured into. Process lock held. */
CUresult graph_capture_alloc(CUstream stream, CUdevice dev, size_t bytes, CUdeviceptr *out);
CUresult graph_capture_free(CUstream stream, CUdeviceptr ptr);

/* A graph's memory was freed outside of it. False: the address is no graph's. Process lock held. */
bool graph_memory_freed(CUdeviceptr ptr);
/* Addresses of that size for a graph's allocation node, held once; 0: no memory. They go when no one holds them. Process lock held. */
CUdeviceptr allocation_addresses(CUdevice dev, size_t bytes);
void allocation_hold(CUdeviceptr ptr);
void allocation_unhold(CUdeviceptr ptr);
CUresult allocation_add(CUcontext ctx, size_t bytes, CUmemoryPool pool, CUdeviceptr *out);

#endif
