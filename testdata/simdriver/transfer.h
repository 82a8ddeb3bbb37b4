/* Inside libcuda.so.1: copies and fills, whatever they were asked for by. */
#ifndef SIMDRIVER_TRANSFER_H
#define SIMDRIVER_TRANSFER_H

#include "driver.h"

/* Of linear memory, HOST is not checked, DEVICE is the device's, and UNIFIED is one of the two, by its address. Numbers of CUmemorytype. */
enum side_kind { SIDE_HOST = 1, SIDE_DEVICE = 2, SIDE_ARRAY = 3, SIDE_UNIFIED = 4 };

struct side {
	enum side_kind kind;
	CUdeviceptr ptr;
	CUarray array;
	size_t x, y, z;	 /* where it begins; x in bytes */
	uint64_t pitch, rows; /* bytes from one row to the next, rows from one plane to the next; not of an array */
};

struct transfer {
	struct side to, from;
	size_t width, height, depth; /* bytes, rows, planes; nothing is done where one of them is 0 */
	unsigned element;	     /* bytes of the value that it fills with; 0: it copies */
	uint32_t value;
};

/* The whole of both sides exists. Process lock held. */
CUresult transfer_check(const struct transfer *t);
/* Takes the lock, and lets others have it in between. */
CUresult transfer_run(const struct transfer *t);
/* The same when the stream has come so far. */
CUresult transfer_do(const struct transfer *t, CUcontext ctx, CUstream stream);

/* Does it in a stream (any handle), or makes a node of it where the stream is captured; wait: until the stream has come so far. */
CUresult transfer_put(const struct transfer *t, CUstream stream, bool wait);

/* Of copies: from NVIDIA's descriptions of 2D and 3D copies. */
CUresult transfer_of_3d(struct transfer *t, const CUDA_MEMCPY3D *c);
void transfer_to_3d(const struct transfer *t, CUDA_MEMCPY3D *c);
CUresult transfer_of_2d(struct transfer *t, const CUDA_MEMCPY2D *c);
CUresult transfer_of_fill(struct transfer *t, CUdeviceptr dst, size_t pitch, unsigned element, uint32_t value, size_t width, size_t height);
CUresult transfer_of_memset(struct transfer *t, const CUDA_MEMSET_NODE_PARAMS *p);

#endif
