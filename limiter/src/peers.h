/* What the other containers of a GPU show of themselves. */
#ifndef GPUSLICE_PEERS_H
#define GPUSLICE_PEERS_H

#include <stdbool.h>
#include <stdint.h>

#include "lag.h"
#include "table.h"

/* The peers' files of a cell, for one thread at a time. Zero is none. */
struct peers {
	int count;
	struct peer_file {
		uint64_t id;
		bool open;
		int fd;
		uint64_t dev, ino, tried;
	} files[VGPU_TURN_PEERS];
};

/* Follows a change of the shares. */
void peers_follow(struct peers *peers, const struct shares *shares);
/* Fills in the view's peers as they are at its time. */
void peers_look(struct peers *peers, int cell, const struct shares *shares, struct view *view);

#endif
