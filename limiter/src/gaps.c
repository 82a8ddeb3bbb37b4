/* Gaps are open on trial. Launches that wait for others' work take longer, so the container compares: if one launch takes a tenth
 * more time than while the gaps were closed, or has work under way for longer, it closes them, and tries again later and later. */
#include "gaps.h"

#include "least.h"

enum { LOOKS = 4, TENTH = 10 };
/* Between slower launches the container does not want the GPU. */
static const uint64_t PAUSE_NS = 300000;
static const uint64_t WINDOW_NS = 4000000, FRESH_NS = 200000000, PENALTY_NS = 20000000, PENALTY_MOST_NS = 1000000000;

static bool is_more(uint64_t than, uint64_t is)
{
	return is > than + than / TENTH;
}

/* The window is long enough: what a launch took in it. */
static void measure(struct gaps *g, const struct gaps_sums *s)
{
	uint64_t launches = most(1, s->launches - g->from.launches), busy = (s->busy - g->from.busy) / launches;
	uint64_t interval = (s->now - g->from.now) / launches;

	g->from = *s;
	if (!g->open) {
		g->closed = interval < PAUSE_NS ? interval : 0;
		g->busy = busy;
		g->measured = s->now;
	} else if (is_more(g->closed, interval) || is_more(g->busy, busy)) {
		gaps_close(g, s->now);
	} else if (s->now - g->measured > FRESH_NS) {
		g->open = false;
		g->closed = g->penalty = 0;
		g->looks = 0;
	}
}

bool gaps_look(struct gaps *g, const struct gaps_sums *s, bool idle, bool at_once)
{
	if (s->now < g->closed_until)
		return false;
	if (!at_once || !g->from.now)
		g->from = *s;
	else if (s->now - g->from.now >= WINDOW_NS)
		measure(g, s);
	if (g->open || !g->closed || s->now < g->closed_until)
		return false;
	g->looks = at_once ? g->looks + 1 : 1;
	if (g->looks > 1 && !idle)
		gaps_close(g, s->now);
	else if (g->looks >= LOOKS) {
		g->open = true;
		g->from = *s;
	}
	return !g->open && g->looks > 0;
}

void gaps_wait(struct gaps *g, uint64_t now)
{
	if (!g->open && g->looks)
		gaps_close(g, now);
}

void gaps_close(struct gaps *g, uint64_t now)
{
	g->penalty = g->penalty ? least(2 * g->penalty, PENALTY_MOST_NS) : PENALTY_NS;
	g->closed_until = now + g->penalty;
	g->open = false;
	g->closed = 0;
	g->looks = 0;
	g->from.now = 0;
}

void gaps_reset(struct gaps *g)
{
	g->open = false;
	g->looks = 0;
	g->from.now = 0;
}
