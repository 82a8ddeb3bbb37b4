/* What launches cost: how long the card takes for a function and a size, or for a
 * graph, as far as this process has found out. */
#ifndef GPUSLICE_COST_H
#define GPUSLICE_COST_H

#include <stdatomic.h>
#include <stdint.h>

struct cost {
	_Atomic uint64_t key;      /* 0: empty */
	_Atomic uint64_t ns;       /* the estimate; 0: not known yet; COST_NEW may be set */
	_Atomic uint64_t due;      /* when to measure it again */
	_Atomic uint64_t lowest;   /* of the samples of this window; 0: none */
	_Atomic uint64_t before;   /* of the window before */
	_Atomic uint64_t charged;  /* for the launches while it was new */
	_Atomic uint32_t launches; /* these */
	_Atomic uint32_t samples;
};

/* The estimate is still likely to fall: what is charged is written down, and
 * corrected with each sample. */
#define COST_NEW ((uint64_t)1 << 63)

/* Never 0. volume is rounded to an eighth, so that sizes that change from launch
 * to launch are few keys. */
uint64_t cost_key(const void *what, uint64_t volume, int cell);
/* NULL: no memory for the table. The entry may become another key's at any time:
 * a wrong estimate is all that comes of it. */
struct cost *cost_find(uint64_t key);
/* Whether the launch needs more than its estimate: it is unknown, or new. */
static inline int cost_unsure(uint64_t ns)
{
	return (int64_t)(ns - 1) < 0;
}

/* A launch was charged while its cost was unsure. */
void cost_note(struct cost *cost, uint64_t charged);
/* A measured duration. Returns by how much what was charged for the launches while it
 * was new is too little, or, below 0, too much. */
int64_t cost_learn(struct cost *cost, uint64_t ns, uint64_t now);
/* What a launch of unknown cost is charged. */
uint64_t cost_typical(void);

#endif
