/* The files of turns of one GPU: the host's table of shares, and this container's own words. */
#ifndef GPUSLICE_TABLE_H
#define GPUSLICE_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

/* The shares of a GPU's containers, as parts of it. */
struct shares {
	bool valid; /* false: there is no table, or this container is not in it */
	uint32_t sequence;
	bool any_share; /* another container has one, or another priority */
	bool low;
	bool crowded; /* there are more containers than this one can follow */
	double weight; /* of this container */
	int count;
	struct {
		uint64_t id;
		double weight;
		bool low;
	} peers[VGPU_TURN_PEERS];
};

/* Maps a cell's table. The result is its sequence; NULL: there is none. Once it is mapped this is one load. */
const _Atomic uint32_t *table_sequence(int cell);
/* Reads the table again. What can't be read leaves the shares as they are. */
void table_read(int cell, uint64_t id, struct shares *shares);
/* Maps the container's own words; NULL: there are none. */
struct vgpu_turn *table_own(int cell, uint64_t id);

/* The path of a file of a cell; name NULL: that of the words of id. */
enum { TABLE_PATH_BYTES = 512 };
bool table_path(char path[TABLE_PATH_BYTES], int cell, const char *name, uint64_t id);

#endif
