/* Limits of memory for control groups. */
#ifndef SIMDRIVER_MEMORY_LIMIT_H
#define SIMDRIVER_MEMORY_LIMIT_H

#include "state.h"

/* The inodes of a control group and those above it; the first is 0 if it is none. */
void cgroup_chain(const char *path, uint64_t ids[MAX_CGROUP_DEPTH]);
/* Of this process, if any group has a limit. */
void cgroups_own(const struct state *s, uint64_t ids[MAX_CGROUP_DEPTH]);
/* Lock held. */
struct memory_limit *limit_find(struct state *s, unsigned gpu, uint64_t cgroup);
uint64_t cgroup_used(const struct state *s, unsigned gpu, uint64_t cgroup);
/* The limit that this process sees as the GPU's memory. Takes the lock. */
bool limit_shown(struct view *v, unsigned gpu, uint64_t *hard, uint64_t *used);

#endif
