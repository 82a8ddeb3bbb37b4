/* flightmarks.c on a played driver with two contexts: prints which work is known after a case.
 *
 *   flights <case>
 *
 * The driver records which event was recorded where, and refuses what a real one refuses: a stream or an event of another
 * context. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "duration.h"
#include "flight.h"

enum { MOST = 256 };

static CUcontext const A = (CUcontext)0xa0, B = (CUcontext)0xb0;
static CUstream const OF_B = (CUstream)0xb00, OF_A = (CUstream)0xa00;
static __thread CUcontext stack[4] = { (CUcontext)0xa0 };
static __thread int depth;
static __thread char own; /* its address stands for the thread's own stream */

static struct event { CUcontext context; void *stream; bool live, recorded; } events[MOST];
static int event_count, refused, queries;
static bool broken; /* a kernel has failed, and each call fails */
static void *busy[8]; /* streams with work that has not ended */
static struct flight flight;

CUresult play_cuCtxGetCurrent(CUcontext *ctx) { *ctx = stack[depth]; return 0; }
CUresult play_cuCtxPushCurrent_v2(CUcontext ctx) { stack[++depth] = ctx; return 0; }
CUresult play_cuCtxPopCurrent_v2(CUcontext *ctx) { *ctx = stack[depth--]; return 0; }

static CUcontext context_of(CUstream stream)
{
	return (uintptr_t)stream > 2 ? (CUcontext)((uintptr_t)stream >> 4) : stack[depth];
}

CUresult play_cuStreamGetCtx(CUstream stream, CUcontext *ctx) { *ctx = context_of(stream); return 0; }

CUresult play_cuEventCreate(CUevent *event, unsigned flags)
{
	events[++event_count] = (struct event){ .context = stack[depth], .live = true };
	*event = (CUevent)(uintptr_t)event_count;
	return flags != CU_EVENT_DISABLE_TIMING || event_count == MOST - 1;
}

CUresult play_cuEventDestroy_v2(CUevent event)
{
	events[(uintptr_t)event].live = false;
	return 0;
}

/* The driver's own object for a stream. */
static void *object(CUstream stream)
{
	return stream == CU_STREAM_PER_THREAD ? (void *)&own
	       : stream == CU_STREAM_LEGACY   ? (void *)stack[depth] : (void *)stream;
}

CUresult play_cuEventRecord(CUevent event, CUstream stream)
{
	struct event *e = &events[(uintptr_t)event];

	if (broken)
		return 700;
	if (!e->live || context_of(stream) != e->context) {
		refused++;
		return 400;
	}
	e->stream = object(stream);
	e->recorded = true;
	return 0;
}

CUresult play_cuEventQuery(CUevent event)
{
	struct event *e = &events[(uintptr_t)event];

	queries++;
	for (int i = 0; i < 8; i++)
		if (e->recorded && busy[i] == e->stream)
			return CUDA_ERROR_NOT_READY;
	return 0;
}

static void launch(CUstream stream)
{
	static int at;

	busy[at++ % 8] = object(stream);
	flight_launched(&flight, 1, flight_name(stream));
}

static void end(void)
{
	memset(busy, 0, sizeof(busy));
}

static void *in_another_thread(void (*what)(void))
{
	pthread_t thread;

	pthread_create(&thread, NULL, (void *(*)(void *))(void (*)(void))what, NULL);
	pthread_join(thread, NULL);
	return NULL;
}

static uint64_t now = 1000000000;

/* What a look knows. */
static void show(const char *what)
{
	struct under_way all = flight_poll(&flight, NULL, now += 1000000);

	printf("%s: events %d, without %d\n", what, all.marks, flight_any_loose(&flight));
}

static void look(const char *what)
{
	flight_mark(&flight, now += 1000000);
	show(what);
}

/* A thread has noted its launch and not yet counted it. */
static void counts(void)
{
	flight_permit(&flight, 1000, 0, now);
	launch(OF_A);
	flight.launches--;
	flight_ended(&flight, OF_A, NULL, now += 1000000);
	show("none more");
	launch(OF_A);
	flight.counted = flight.launches + 1;
	flight_ended(&flight, OF_A, NULL, now += 1000000);
	show("fewer");
	launch(OF_A);
	flight.counted = flight.launches + 1;
	look("fewer, look");
	printf("launches %d\n", (int)flight_poll(&flight, NULL, now).launches);
}

/* Launches for which no look was possible count, once, whatever is permitted after them. */
static void passes(void)
{
	flight_permit(&flight, 1000, 5000, now);
	atomic_fetch_sub(&flight.quota, 2000);
	launch(OF_A);
	printf("permitted: %d\n", (int)flight_loose(&flight));
	flight_pass(&flight, 300);
	flight_pass(&flight, 0);
	printf("passed: %d of %d\n", (int)flight_loose(&flight), (int)flight_total(&flight));
	flight_permit(&flight, 1000, 0, now);
	printf("one more: %d\n", (int)flight_total(&flight));
	look("look");
	printf("marked: %d, without: %d\n", (int)flight_poll(&flight, NULL, now).ns, (int)flight_loose(&flight));
}

static void launch_own(void)
{
	stack[0] = A;
	launch(CU_STREAM_PER_THREAD);
}

static void own_streams(void)
{
	in_another_thread(launch_own);
	look("another thread's");
	flight_ended(&flight, flight_name(CU_STREAM_PER_THREAD), A, now += 1000000);
	show("this one's has ended");
	launch(CU_STREAM_PER_THREAD);
	look("both");
	flight_ended(&flight, flight_name(CU_STREAM_PER_THREAD), A, now += 1000000);
	show("this one's has ended again");
	flight_ended(&flight, NULL, A, now += 1000000);
	show("all have ended");
	in_another_thread(launch_own);
	look("another thread's");
	flight_ended(&flight, CU_STREAM_LEGACY, A, now += 1000000);
	show("the legacy stream has ended");
	in_another_thread(launch_own);
	look("another thread's");
	now += 200000000;
	look("0.2 s later");
	now += 200000000;
	look("0.4 s later");
}

static void contexts(void)
{
	flight_context(&flight, A);
	flight_context(&flight, B);
	launch(CU_STREAM_LEGACY);
	stack[0] = B;
	launch(CU_STREAM_LEGACY);
	look("two legacy streams");
	flight_ended(&flight, CU_STREAM_LEGACY, B, now += 1000000);
	show("one has ended");
	end();
	show("both");
}

static void handles(void)
{
	launch(OF_B); /* the current context is A */
	look("a stream of another context");
	printf("refused %d\n", refused);
}

static void pool_of_events(void)
{
	for (int i = 0; i < FLIGHT_MARKS; i++) {
		launch(OF_A);
		flight_mark(&flight, now += 1000000);
	}
	end();
	show("all events are of a context");
	launch(OF_B);
	look("another one");
}

/* A stream's events happen in their order. */
static void asked(void)
{
	for (int i = 0; i < 4; i++) {
		launch(OF_A);
		launch(OF_B);
		flight_mark(&flight, now += 1000000);
	}
	show("two streams");
	printf("queries %d, pending %d\n", queries, flight_pending(&flight, now).marks);
	busy[0] = busy[2] = busy[4] = busy[6] = NULL;
	show("one has ended");
	printf("queries %d, pending %d\n", queries - 2, flight_pending(&flight, now).marks);
}

static void ends(void)
{
	launch(OF_A);
	look("one");
	launch(OF_B);
	flight_close(&flight, B);
	look("the other context may be ending");
	flight_closed(&flight, B, false);
	look("it has not ended");
	flight_close(&flight, B);
	look("it may be ending again");
	flight_closed(&flight, B, true);
	look("it has ended");
	flight_close(&flight, A);
	look("the first one may be ending");
	flight_closed(&flight, A, true);
	look("and has");
	launch(OF_A);
	flight_mark(&flight, now += 1000000);
	flight_forget_stream(&flight, OF_A);
	flight_close(&flight, A);
	look("a stream that was destroyed");
}

static uint64_t calls;

/* The program records its event. known: the limiter can rely on it. */
static void record(CUevent event, CUstream stream, bool known)
{
	flight_forget_event(&flight, event);
	int mark = flight_record_begin(&flight, event, flight_name(stream), ++calls, now += 1000);
	if (known && mark >= 0)
		flight_record_end(&flight, mark, calls);
}

static void answer(CUevent event, const char *what)
{
	printf("%s: %d, ", what, flight_answered(&flight, event, flight_asked(), true, now += 1000));
	show("then");
}

static CUevent const E = (CUevent)0xe0, F = (CUevent)0xf0;

static void answers(void)
{
	launch(OF_A);
	record(E, OF_A, true);
	answer(E, "its event");
	answer(E, "again");
	launch(OF_A);
	record(E, OF_A, true);
	launch(OF_A);
	record(F, OF_A, true);
	launch(OF_A);
	answer(F, "the second event");
	flight_mark_all(&flight, now += 1000);
	show("the launch behind it");
	end();
	launch(OF_A);
	record(E, OF_A, true);
	launch(OF_B);
	record(F, OF_B, true);
	answer(E, "one of two streams");
	flight_ended(&flight, OF_B, NULL, now += 1000);
	show("the other was waited for");
}

/* None shows the end of what is in the first stream. */
static void forged(void)
{
	launch(OF_A);
	record(E, OF_A, true);
	record(E, OF_B, true);
	answer(E, "recorded again elsewhere");
	launch(OF_A);
	record(E, OF_A, true);
	flight_forget_event(&flight, E);
	answer(E, "destroyed");
	uint64_t asked = flight_asked();
	launch(OF_A);
	record(E, OF_A, true);
	printf("asked before: %d\n", flight_answered(&flight, E, asked, true, now));
	launch(OF_A);
	record(F, OF_A, false);
	answer(F, "recorded by two threads at once");
	launch(OF_A);
	record(F, OF_B, true);
	answer(F, "recorded in a stream without work");
	flight_mark_all(&flight, now += 1000);
	int events = event_count;
	flight_mark_all(&flight, now += 1000);
	printf("events %d, then %d\n", events, event_count - events);
	show("with the limiter's");
	end();
	show("all have ended");
}

static void given_up(void)
{
	stack[0] = A;
	launch(OF_A);
	record(E, OF_A, true);
	flight_mark_all(&flight, now += 1000);
	flight_forget_stream(&flight, OF_A);
	answer(E, "its stream was destroyed");
	end();
	show("it has ended");
	launch(OF_A);
	record(E, OF_A, true);
	flight_close(&flight, A);
	answer(E, "its context may be ending");
	flight_closed(&flight, A, true);
	show("it has ended");
}

/* Work of a broken context isn't under way for ever. */
static void broken_context(void)
{
	launch(OF_A);
	record(E, OF_A, true);
	launch(OF_A);
	record(F, OF_A, true);
	broken = true;
	flight_mark_all(&flight, now += 1000);
	show("no event can be recorded");
	printf("launches %d, marked %d\n", (int)(flight.launches - flight.counted), (int)flight.marked);
	flight_mark_all(&flight, now += 1000);
	show("again");
	broken = false;
	flight_mark_all(&flight, now += 1000);
	show("it can");
	end();
	show("it has ended");
}

static void record_own(void)
{
	launch_own();
	record(E, CU_STREAM_PER_THREAD, true);
}

static void threads(void)
{
	in_another_thread(record_own);
	flight_mark_all(&flight, now += 1000);
	show("another thread's own stream");
	answer(E, "its event");
	in_another_thread(record_own);
	now += 400000000;
	show("0.4 s later");
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*play)(void); } cases[] = {
		{ "counts", counts }, { "passes", passes }, { "own", own_streams }, { "contexts", contexts }, { "handles", handles },
		{ "events", pool_of_events }, { "ends", ends }, { "asked", asked },
		{ "answers", answers }, { "forged", forged }, { "given", given_up }, { "broken", broken_context }, { "threads", threads },
	};

	durations = calloc(DURATION_PLACES, sizeof(*durations));
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (argc == 2 && !strcmp(argv[1], cases[i].name))
			cases[i].play();
	return 0;
}
