/*
 * This process's queue on each GPU, and waiting for what is in it. To the engine it is two numbers, see client_gpu in state.h;
 * which of its kernels run at the same time only this process knows.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define YIELD_NS 20000ull      /* shorter waits give the processor away again and again; a timer would take as long */
#define KILLED_NS 10000000ull  /* a wait looks that often whether the processes that it waits behind are still there */
#define TIMER_SLACK_NS 1000ul

/* Or until the word is no longer that. */
static void wait_until_or(uint64_t ns, atomic_uint *word, unsigned is)
{
	static _Thread_local bool exact;
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
	uint64_t now;

	while ((now = now_ns()) < ns && atomic_load(word) == is) {
		if (ns - now < YIELD_NS) {
			sched_yield();
			continue;
		}
		if (!exact)
			exact = !prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
		syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, is, &t, NULL, FUTEX_BITSET_MATCH_ANY); /* until that monotonic time */
	}
}

void wait_until(uint64_t ns)
{
	static atomic_uint never;

	wait_until_or(ns, &never, 0);
}

struct queue *queue_of(CUcontext ctx)
{
	struct queue *q = &process.queues[ctx->gpu];
	struct client *self = &process.view.s->clients[process.view.self];

	if (!q->engine) {
		q->gpu = ctx->gpu;
		q->mine = &self->gpus[ctx->gpu];
		q->engine = engine_of(process.view.s, self, ctx->gpu);
	}
	return q;
}

/* The time at which the GPU had spent v on the queue. Where no segments are left, it is interpolated. Lock held. */
static uint64_t time_at(const struct queue *q, uint64_t v)
{
	uint64_t busy = q->busy_ns - q->dropped_ns;
	const struct client_gpu *mine = q->mine;
	uint64_t kept = mine->segment_count < SEGMENTS ? mine->segment_count : SEGMENTS;
	struct segment s = {0};

	for (uint64_t i = 1; i <= kept; i++) {
		s = mine->segments[(mine->segment_count - i) % SEGMENTS];
		if (s.v_begin < v)
			break;
	}
	if (s.v_begin >= v) {
		s.v_end = s.v_begin;
		s.t_end = s.t_begin;
		s.v_begin = busy;
		s.t_begin = q->looked_at;
	}
	if (v >= s.v_end || s.v_end <= s.v_begin || s.t_end <= s.t_begin)
		return s.t_end;
	if (s.t_end - s.t_begin == s.v_end - s.v_begin)
		return s.t_begin + (v - s.v_begin);
	return s.t_begin + (uint64_t)((double)(v - s.v_begin) * (double)(s.t_end - s.t_begin) / (double)(s.v_end - s.v_begin));
}

void queue_unmark(CUevent event)
{
	if (!event->waits)
		return;
	*event->link = event->next;
	if (event->next)
		event->next->link = event->link;
	event->waits = false;
}

/* Engine lock held. */
static void look(struct queue *q)
{
	uint64_t busy;
	CUevent next;

	engine_advance(&process.view, q->gpu, q->engine);
	busy = atomic_load_explicit(&q->mine->busy_ns, memory_order_relaxed) + q->dropped_ns;
	for (CUevent e = q->pending; e; e = next) {
		next = e->next;
		if (e->tail > busy)
			continue;
		e->time = time_at(q, e->tail - q->dropped_ns);
		queue_unmark(e);
	}
	q->busy_ns = busy;
	q->looked_at = q->engine->clock;
}

static bool lock_and_look(struct queue *q)
{
	if (engine_lock(&process.view, q->gpu))
		return false;
	look(q);
	return true;
}

static void unlock(struct queue *q)
{
	engine_unlock(&process.view, q->gpu);
}

/* Even without other processes on the GPU it would not be that far yet. */
static bool surely_before(const struct queue *q, uint64_t tail)
{
	uint64_t now = now_ns();

	return tail > q->busy_ns && (now <= q->looked_at || tail - q->busy_ns > now - q->looked_at);
}

static uint64_t add(struct queue *q, uint64_t from, struct load load)
{
	uint64_t end;

	overlap_forget(&q->overlap, q->busy_ns);
	end = overlap_put(&q->overlap, from > q->busy_ns ? from : q->busy_ns, load.ns, load.width);
	if (load.width && q->overlap.count && q->overlap.stretches[0].width) /* what runs now, all together */
		atomic_store_explicit(&q->mine->width, q->overlap.stretches[0].width, memory_order_relaxed);
	if (end <= q->queued_ns)
		return end;
	q->queued_ns = end;
	crash_point();
	atomic_store(&q->mine->queued_ns, end - q->dropped_ns);
	crash_point();
	return end;
}

/*
 * Behind what is surely not done, more is simply added. Else it must be known up to now what happened, so that the new work
 * doesn't begin before it was launched.
 */
uint64_t queue_put(struct queue *q, uint64_t ready, struct load load, unsigned launches)
{
	struct group_gpu *group = &process.view.s->groups[process.view.s->clients[process.view.self].group].gpus[q->gpu];
	uint64_t end = 0;

	if (launches) {
		atomic_fetch_add_explicit(&q->mine->launches, launches, memory_order_relaxed);
		atomic_fetch_add_explicit(&q->engine->launches, launches, memory_order_relaxed);
		atomic_fetch_add_explicit(&group->launches, launches, memory_order_relaxed);
	}
	if (!load.ns)
		return ready;
	if (surely_before(q, ready)) {
		end = add(q, ready, load);
		if (engine_waiting(q->engine, (unsigned)process.view.self))
			return end;
	}
	if (lock_and_look(q)) {
		if (!end)
			end = add(q, ready, load);
		engine_wake(q->engine, (unsigned)process.view.self);
		unlock(q);
	}
	return end;
}

void queue_drop(struct queue *q)
{
	if (!q->engine || !lock_and_look(q))
		return;
	q->dropped_ns += q->queued_ns - q->busy_ns;
	q->busy_ns = q->queued_ns;
	atomic_store(&q->mine->queued_ns, q->queued_ns - q->dropped_ns);
	overlap_free(&q->overlap);
	unlock(q);
	atomic_fetch_add(&q->drops, 1);
	syscall(SYS_futex, &q->drops, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

bool queue_done(struct queue *q, uint64_t tail)
{
	if (tail <= q->busy_ns)
		return true;
	if (surely_before(q, tail))
		return false;
	if (lock_and_look(q))
		unlock(q);
	return tail <= q->busy_ns;
}

/* An event without work before it happens when the process has the GPU next. */
void queue_mark(struct queue *q, CUevent event, uint64_t tail)
{
	queue_unmark(event);
	event->recorded = true;
	event->queue = q;
	event->tail = tail;
	if (!surely_before(q, tail) && lock_and_look(q)) {
		if (tail <= q->busy_ns) {
			event->time = engine_eta(process.view.s, q->gpu, q->engine, (unsigned)process.view.self, 0);
			unlock(q);
			return;
		}
		unlock(q);
	}
	event->waits = true;
	event->next = q->pending;
	event->link = &q->pending;
	if (q->pending)
		q->pending->link = &event->next;
	q->pending = event;
}

uint64_t queue_eta(struct queue *q, uint64_t tail)
{
	uint64_t eta = 0, patience;

	if (tail <= q->busy_ns || !lock_and_look(q))
		return 0;
	if (tail > q->busy_ns) {
		eta = engine_eta(process.view.s, q->gpu, q->engine, (unsigned)process.view.self, tail - q->dropped_ns);
		patience = tail - q->busy_ns;
		patience = q->looked_at + (patience > KILLED_NS ? patience : KILLED_NS);
		eta = eta < patience ? eta : patience;
	}
	unlock(q);
	return eta;
}

void queue_wait(struct queue *q, uint64_t tail)
{
	for (;;) {
		unsigned drops;
		uint64_t eta;

		process_lock();
		drops = atomic_load(&q->drops);
		eta = queue_eta(q, tail);
		process_unlock();
		if (!eta)
			return;
		wait_until_or(eta, &q->drops, drops);
	}
}
