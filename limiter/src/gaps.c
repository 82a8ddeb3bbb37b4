/* Gaps are open on trial. Launches that wait for others' work take longer, so the container compares how often it launches with closed
 * and with open gaps. What it has less is the price of the gaps, and is charged to those that use them: so it has its part of what it
 * has by itself in any case. One that uses gaps compares how often it launches there and in its own turn: if that is not more than the
 * price, it waits for its turn. */
#include "gaps.h"

#include "least.h"

enum { LOOKS = 32, FEW_LOOKS = 8, SOME = 1, PART = 10, PART_OF_LOOKS = 6, FEW_LAUNCHES = 4, ENOUGH_LAUNCHES = 16 };
static const double PAUSE_NS = 300000; /* in longer pauses between two launches the container does not want the GPU */
static const double WINDOW_NS = 4000000, SHORT_NS = 1000000, TOO_MUCH = 0.7, UNKNOWN_PRICE = 0.5;
static const uint64_t SETTLE_NS = 3000000, FRESH_NS = 500000000, PENALTY_NS = 20000000, PENALTY_MOST_NS = 1000000000;

static double rate(const struct gaps_sums *s)
{
	return s->launches / s->ns;
}

static void begin(struct gaps *g, bool open, uint64_t now)
{
	g->open = open;
	g->phase = (struct gaps_sums){ 0 };
	g->settles = now + SETTLE_NS;
	g->looks = g->idle = 0;
	g->idle_ns = 0;
}

static uint64_t longer(uint64_t penalty)
{
	return penalty ? least(2 * penalty, PENALTY_MOST_NS) : PENALTY_NS;
}

static void shut(struct gaps *g, uint64_t now)
{
	g->penalty = longer(g->penalty);
	g->closed_until = now + g->penalty;
	begin(g, false, now);
}

static bool is_enough(const struct gaps_sums *s)
{
	return s->ns >= WINDOW_NS && s->launches >= ENOUGH_LAUNCHES;
}

static void look_open(struct gaps *g, uint64_t now)
{
	if (g->phase.ns < SHORT_NS || g->phase.launches < FEW_LAUNCHES)
		return;
	double left = rate(&g->phase) / rate(&g->closed), less = left < 1 ? 1 - left : 0;
	if (less > TOO_MUCH) {
		shut(g, now);
		return;
	}
	if (!is_enough(&g->phase))
		return;
	if (less * g->phase.ns < g->phase.shared)
		g->price = less * g->phase.ns / g->phase.shared;
	if (now - g->measured < FRESH_NS)
		return;
	g->penalty = 0;
	begin(g, false, now);
}

static void look_closed(struct gaps *g, uint64_t now, bool idle, uint64_t since)
{
	if (!is_enough(&g->phase))
		return;
	if (!g->looks++)
		g->looks_from = now;
	else if (idle && since)
		g->idle_ns += now - since;
	else
		g->idle += idle;
	if (g->looks < LOOKS && (g->looks < FEW_LOOKS || (double)(now - g->looks_from) < SHORT_NS))
		return;
	g->closed.ns = g->closed.ns / 2 + g->phase.ns;
	g->closed.launches = g->closed.launches / 2 + g->phase.launches;
	bool some = g->idle >= SOME + g->looks / PART_OF_LOOKS || g->idle_ns >= (now - g->looks_from) / PART;
	if (!some || g->phase.ns > PAUSE_NS * g->phase.launches) {
		shut(g, now);
		return;
	}
	g->measured = now;
	g->price = g->price > 0 ? g->price : UNKNOWN_PRICE;
	begin(g, true, now);
}

static void add(struct gaps *g, struct gaps_sums *to, uint64_t now, uint64_t launches, uint64_t shared, bool filling)
{
	if (g->looked && g->looked_filling == filling && g->looked >= g->settles) {
		to->ns += (double)(now - g->looked);
		to->launches += (double)(launches - g->launches);
		to->shared += (double)(shared - g->shared);
	}
	g->looked = now;
	g->looked_filling = filling;
	g->launches = launches;
	g->shared = shared;
}

bool gaps_look(struct gaps *g, uint64_t now, uint64_t launches, uint64_t shared, bool idle, uint64_t since)
{
	if (now < g->closed_until)
		return false;
	add(g, &g->phase, now, launches, shared, false);
	if (g->open)
		look_open(g, now);
	else
		look_closed(g, now, idle, since);
	return !g->open && g->looks > 0;
}

void gaps_fill(struct gaps *g, uint64_t now, uint64_t launches, uint64_t shared, double price)
{
	add(g, &g->fill, now, launches, shared, true);
	if (!is_enough(&g->fill))
		return;
	if (rate(&g->fill) < rate(&g->closed) * price) {
		g->fill_penalty = longer(g->fill_penalty);
		g->no_fill_until = now + g->fill_penalty;
	} else {
		g->fill_penalty = 0;
	}
	g->fill = (struct gaps_sums){ 0 };
}

bool gaps_may_fill(const struct gaps *g, uint64_t now)
{
	return g->closed.ns > 0 && now >= g->no_fill_until;
}

void gaps_pass(struct gaps *g)
{
	g->looked = 0;
	g->looks = g->idle = 0;
	g->idle_ns = 0;
}

void gaps_reset(struct gaps *g)
{
	g->looked = 0;
	begin(g, false, 0);
}
