#ifndef GPUSLICE_CREADERS_H
#define GPUSLICE_CREADERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "cores.h"
#include "envlimits.h"
#include "lag.h"
#include "layout.h"
#include "limits.h"
#include "slot.h"
#include "table.h"
#include "usage.h"

enum { CREADERS_HIGH_WATER = offsetof(struct vgpu_usage, high_water), CREADERS_CHARGED = offsetof(struct vgpu_usage, charged),
	CREADERS_IPC_HIGH = offsetof(struct vgpu_usage, ipc_high), CREADERS_IPC_LEFT = offsetof(struct vgpu_usage, ipc_left) };
#define CREADERS_IPC offsetof(struct vgpu_usage, ipc)
#define CREADERS_EXPORTED offsetof(struct vgpu_slot, exported)
#define CREADERS_SUSPENDED VGPU_OWNER_SUSPENDED
#define CREADERS_LAG_MOST LAG_MOST_NS
#define CREADERS_LAG_LEAST LAG_LEAST_NS

struct creaders_stat {
	char state;
	uint64_t flags, threads, started, pending;
};

/* A look, and what comes of it. */
struct creaders_turn {
	uint64_t now, from, to, ns;
	double ceiling;
	int process;
	bool low, peer_low;
	uint64_t charged;
	bool contended, may_go;
};

/* Both files are read again, as by a process that starts. */
void creaders_forget(void);
void creaders_forget_usage(void);
/* The second sum of a process: with those of IPC records that it has kept. */
struct usage_sum creaders_sum(struct vgpu_usage *usage, int cell);
uint64_t creaders_size(const char *text);
/* The shares of a table for a container. */
void creaders_table(const void *file, uint64_t id, struct shares *out);
/* A container's words, of a peer as well. */
void creaders_turn(struct vgpu_turn *turn, const void *peer, struct creaders_turn *look);
bool creaders_stat(const char *line, struct creaders_stat *out);

#endif
