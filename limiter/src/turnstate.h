/* What a process knows of its container's turn on each GPU, and how it accounts for its work. */
#ifndef GPUSLICE_TURNSTATE_H
#define GPUSLICE_TURNSTATE_H

#include "ceiling.h"
#include "flight.h"
#include "gaps.h"
#include "lag.h"
#include "least.h"
#include "peers.h"
#include "table.h"

extern struct flight *turn_flights; /* VGPU_MAX_DEVICES; NULL: turn_start() was not called */

/* Once for a process. The state is not in the library's own data: programs without CUDA would pay for it. False: no memory. */
bool turn_start(void);

/* Follows a change of the limits. Whether launches on the cell take part: the container has a share, or
 * another one has, for which this one's words matter. */
bool turn_refresh(int cell);

/* The cells on which launches have ever taken part, as bits: there the driver's streams and contexts may be known. */
extern _Atomic uint32_t turn_used;
static inline bool turn_ever_used(void) /* one load */
{
	/* Relaxed: what a thread has launched itself it has seen. */
	return __builtin_expect(atomic_load_explicit(&turn_used, memory_order_relaxed) != 0, 0);
}

struct turn {
	_Atomic uint64_t busy;  /* a lock: the thread that looks (lock_self()); 0: none. Waited for LOCK_WAIT_NS at most */
	_Atomic uint32_t used;  /* launches take part */
	struct vgpu_turn *words; /* of the container; own: it has none */
	struct vgpu_turn own;   /* of this process: another program of the container can overwrite its words */
	int process;            /* its place in words->work_until */
	bool limited;           /* false: it only publishes */
	double ceiling;
	struct shares shares;
	struct peers peers;
	_Atomic uint64_t looked; /* the last look; queries read it without the lock */
	struct span span;       /* with work since then */
	uint64_t launched;      /* flight_total() by then */
	uint64_t permitted;     /* the last permitted launch */
	uint64_t expected;      /* when the work under way ends */
	uint64_t saw;           /* a thread saw the end of work */
	_Atomic uint64_t seen;  /* a thread saw that work was still under way */
	_Atomic uint64_t queried; /* since when work is queried again and again; 0: it is not */
	uint64_t taken;         /* the turn, at the last time */
	bool refused;           /* by the last look */
	uint64_t nap;           /* until the next look of one that waits */
	bool rests;             /* it is at its ceiling */
	struct ceiling_own shown; /* to the other processes, where there are no turn files */
	struct gaps gaps;       /* in its turn */
	bool fills;             /* its work is in gaps of another container's turn */
	_Atomic uint64_t counted; /* launches that are in the usage file */
};

static const uint64_t NAP_NS = 150000, FORESIGHT_NS = 100000000, LOOK_NS = 250000, AGAIN_NS = 50000,
	GRACE_NS = 300000;

struct turn *turn_of(int cell);
int turn_cell(const struct turn *turn);
struct flight *turn_flight(const struct turn *turn);
/* The next turn of which launches take part; NULL: there is none. And the next one of which they ever did. */
struct turn *turn_next(struct turn *turn);
struct turn *turn_next_known(struct turn *turn);

bool turn_lock(struct turn *turn);
/* It may stay locked in a forked child, and while a thread of this process is stopped. False at once: this thread holds it, and
 * the caller is in a signal handler. */
bool turn_lock_soon(struct turn *turn);
void turn_unlock(struct turn *turn);
/* Whether this thread holds a turn: the caller is in a signal handler. */
bool turn_any_mine(void);

/* With the lock. */

/* The GPU as the container sees it now. */
void turn_see(struct turn *turn, struct view *view, uint64_t now);
/* Shows until when the container wants the GPU. */
void turn_want(struct turn *turn, uint64_t until);
/* Shows until when others may use the gaps in its turn; 0: they may not. */
void turn_show_gaps(struct turn *turn, uint64_t until);
/* Whether other processes of the container have work. */
bool turn_others_work(const struct turn *turn, uint64_t now);
/* Shows that the process has work until then. */
void turn_publish(struct turn *turn, uint64_t now, uint64_t until);
/* Launches that needed no look have begun since the last work ended. */
void turn_begin(struct turn *turn, uint64_t now);
/* The work that has begun was under way until then. */
void turn_cover(struct turn *turn, uint64_t until);
/* A short pause in its turn, until its next work or now. */
void turn_add_pause(struct turn *turn, uint64_t until);
/* The launches since the last look, one after the other. */
void turn_expect(struct turn *turn);
/* Charges what was covered. */
void turn_account(struct turn *turn, struct view *view);
/* When the work ended that was under way at the last look: after it was last seen; as expected; or, if it took longer already,
 * after as much time again, but not later than half-way. */
uint64_t turn_probable_end(const struct turn *turn, uint64_t now);

#endif
