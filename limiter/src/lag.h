/* What a container is due of a GPU's time, and whether it may launch now: arithmetic only, with the
 * time passed in. Times are CLOCK_MONOTONIC in nanoseconds. */
#ifndef GPUSLICE_LAG_H
#define GPUSLICE_LAG_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

/* Another container of the GPU. What it wrote itself is checked (peers.c). */
struct peer {
	uint64_t id;
	double weight; /* its part of the GPU, above 0 to 1 */
	bool low;      /* its priority */
	uint64_t want_until, hold_until;
	bool gaps; /* others may use the gaps in its turn */
	uint64_t busy; /* extrapolated to the view's time */
	int64_t lag, credit;
	unsigned processes; /* that have work; at least 1 */
};

/* A GPU as a container sees it at one time. */
struct view {
	uint64_t now;
	double weight;
	bool low;
	double ceiling; /* the part that it never exceeds; 0: none */
	uint64_t taken; /* when it last took the turn */
	bool rests;     /* it was at its ceiling: it saves for more than one launch */
	int count;
	struct peer peers[VGPU_TURN_PEERS];
};

enum { LAG_PROCESSES = 8 }; /* of a container, that count as having work at the same time */
#define LAG_MOST_NS ((int64_t)80000000)
#define LAG_LEAST_NS (-(int64_t)10000000000)
#define LAG_CREDIT_NS 50000000. /* of the whole GPU, that a ceiling lets an idle container save */
/* So long after it wanted the GPU a container is still due its part, and the others are not. */
#define LAG_ABSENT_NS ((uint64_t)5000000)
/* No word of another container is taken seriously for longer. */
#define LAG_HORIZON_NS ((uint64_t)10000000000)

/* Low-priority containers get little while one of high priority wants the GPU: changes the view's
 * weights. Call it before the functions below. */
void lag_weigh(const struct vgpu_turn *turn, struct view *view);

/* When a process had work under way since it looked last: ns in all, between two times. */
struct span {
	uint64_t from, to, ns;
	uint64_t pauses; /* short ones in its turn, in which others wait for it */
	bool fills;      /* the work was in gaps of another container's turn */
	bool filled;     /* others may have had work in gaps of its turn */
};

/* Accounts for the time since the last step of any process of the container. `process` is the caller's index in
 * work_until. Returns the part of the time that is charged: others may have had work at the same time. */
uint64_t lag_step(struct vgpu_turn *turn, const struct view *view, const struct span *span, int process);

/* Whether another container wants the GPU, or a ceiling applies. */
bool lag_contended(const struct vgpu_turn *turn, const struct view *view);

/* How long the container's work may go on, by what is known now, until it gives the turn away or is at its ceiling. */
uint64_t lag_rest(const struct vgpu_turn *turn, const struct vgpu_turn *own, const struct view *view);

/* Whether the container is at its ceiling. */
bool lag_capped(const struct vgpu_turn *turn, const struct vgpu_turn *own, const struct view *view);

/* Whether the container may launch. turn: the container's words; own: this process's account. Both
 * must permit it. */
bool lag_may_go(struct vgpu_turn *turn, const struct vgpu_turn *own, const struct view *view);

/* After a refusal: whether the container may use the gaps in the turn of another one. Of those that wait, only the one that is
 * next may. */
bool lag_may_fill(const struct vgpu_turn *turn, const struct vgpu_turn *own, const struct view *view);

/* After a refusal: how long it lasts at least, if what is known now goes on. It can end a little earlier, so look again in time. */
uint64_t lag_refused_for(const struct vgpu_turn *turn, const struct vgpu_turn *own, const struct view *view);

#endif
