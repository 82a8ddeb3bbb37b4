#ifndef GPUSLICE_CREADERS_H
#define GPUSLICE_CREADERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "bucket.h"
#include "cores.h"
#include "envlimits.h"
#include "layout.h"
#include "limits.h"
#include "slot.h"
#include "usage.h"

enum { CREADERS_HIGH_WATER = offsetof(struct vgpu_usage, high_water), CREADERS_CHARGED = offsetof(struct vgpu_usage, charged) };

struct creaders_stat {
	char state;
	uint64_t flags, threads, started, pending;
};

/* Both files are read again, as by a process that starts. */
void creaders_forget(void);
void creaders_forget_usage(void);
uint64_t creaders_size(const char *text);
bool creaders_stat(const char *line, struct creaders_stat *out);
int creaders_turns(uint64_t earned, uint64_t spent, uint64_t refilled, uint64_t now, uint64_t ns, int64_t settle, uint32_t rate,
                   int most);

#endif
