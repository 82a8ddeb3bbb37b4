/* In the place of box.c: the limiter before turns, a bucket of GPU time that a launch is charged to, with one process a container.
 * A launch costs the least of the last event pairs around its function, and a launch waits while its container's bucket is empty
 * and others use the GPU. Once a second the host compares what the driver shows with what was charged:
 *
 *   DEBT=0  a factor of 0.25 to 4 on all prices
 *   DEBT=1  the difference is a debt or a credit of the bucket, whatever it is; an ended launch is charged what the streams
 *           together took, one that runs for more than 300 ms is charged while it runs, and work in flight is always bounded
 *
 * The host sees the driver's time exactly and at once. */
#include "play.h"

enum { PAIRS = 4096, FUNCTIONS = 8, KEPT = 16 };
static const uint64_t SECOND_NS = 1000000000, BURST_NS = 50000000, QUEUE_NS = 300000000, WAIT_NS = 200000;

static struct pair { CUevent before, after; unsigned function; int64_t charged; bool open; } pairs[PAIRS];
static unsigned pair_head, pair_tail;
static struct { const void *what; uint64_t last[KEPT]; unsigned count; } functions[FUNCTIONS];
static int64_t bucket, credit, charged, in_flight;
static uint64_t refilled, second, seen;
static double factor = 1;
static bool contended;

static void charge(int64_t ns)
{
	bucket -= ns;
	charged += ns;
}

static uint64_t others(void)
{
	uint64_t sum = 0;

	for (int i = 0; i < process_count; i++)
		sum += processes[i].of == self->of ? 0 : processes[i].of->had;
	return sum;
}

static void host(void)
{
	static uint64_t others_had;
	int64_t had = (int64_t)(self->of->had - seen);

	contended = others() != others_had;
	others_had = others();
	if (DEBT)
		credit += charged - had;
	else
		factor *= charged > 0 ? (double)had / (double)charged : 1;
	factor = factor < 0.25 ? 0.25 : factor > 4 ? 4 : factor;
	seen = self->of->had;
	charged = 0;
	second = now;
}

static uint64_t covered;

/* What the streams together took from the begin of a pair to its end, or to now. */
static int64_t took(const struct pair *p, uint64_t end)
{
	uint64_t begin = play_happened(p->before);

	begin = begin > covered ? begin : covered;
	covered = end > covered ? end : covered;
	return end > begin ? (int64_t)(end - begin) : 0;
}

static void ended(struct pair *p)
{
	uint64_t begin = play_happened(p->before), end = play_happened(p->after);

	functions[p->function].last[functions[p->function].count++ % KEPT] = end - begin;
	in_flight -= p->charged;
	if (DEBT)
		charge(took(p, end) - p->charged);
}

static void look(void)
{
	int64_t most = (int64_t)(BURST_NS * (uint64_t)self->of->share / 100);

	for (; pair_tail != pair_head; pair_tail++) {
		struct pair *p = &pairs[pair_tail % PAIRS];

		if (p->open || is_pending((uintptr_t)p->after)) {
			if (DEBT && !is_pending((uintptr_t)p->before) && now - play_happened(p->before) > QUEUE_NS)
				charge(took(p, now));
			break;
		}
		ended(p);
	}
	bucket += (int64_t)(now - refilled) * self->of->share / 100;
	bucket = bucket > most || !contended ? most : bucket;
	refilled = now;
	if (now - second >= SECOND_NS)
		host();
}

static unsigned function_of(const void *what)
{
	unsigned i = 0;

	while (functions[i].what && functions[i].what != what)
		i++;
	functions[i].what = what;
	return i;
}

static int64_t price(unsigned function)
{
	uint64_t least = 0;

	for (unsigned i = 0; i < KEPT && i < functions[function].count; i++)
		if (!least || functions[function].last[i] < least)
			least = functions[function].last[i];
	return (int64_t)((double)least * factor);
}

static bool must_wait(unsigned function)
{
	bool full = in_flight > (int64_t)QUEUE_NS || pair_head - pair_tail == PAIRS;

	if (DEBT && (full || (!price(function) && pair_head != pair_tail)))
		return true;
	return contended && (full || bucket + credit <= 0);
}

#define SEEN __attribute__((visibility("default")))

SEEN void box_start(void) { refilled = second = now; }
SEEN void box_beat(void) { look(); }

SEEN void box_begin(struct pace *pace, const void *what, CUstream stream)
{
	struct pair *p;

	for (look(); must_wait(function_of(what)); look())
		play_nap(WAIT_NS);
	pace->cell = (int)(pair_head % PAIRS);
	pace->stream = stream;
	p = &pairs[pair_head++ % PAIRS];
	if (!p->before) {
		play_cuEventCreate(&p->before, 0);
		play_cuEventCreate(&p->after, 0);
	}
	p->open = true;
	p->function = function_of(what);
	p->charged = price(p->function);
	in_flight += p->charged;
	charge(p->charged);
	play_cuEventRecord(p->before, stream);
}

SEEN void box_end(struct pace *pace)
{
	play_cuEventRecord(pairs[pace->cell].after, pace->stream);
	pairs[pace->cell].open = false;
}

SEEN void box_wait_begin(void) {}
SEEN void box_wait_end(CUstream stream) { (void)stream; }
SEEN void box_poll(bool done) { (void)done; }
SEEN CUresult box_record(CUevent event, CUstream stream) { return play_cuEventRecord(event, stream); }
SEEN CUresult box_synchronize(CUevent event) { return play_cuEventSynchronize(event); }
SEEN CUresult box_query(CUevent event) { return play_cuEventQuery(event); }
SEEN CUresult box_destroy(CUevent event) { return play_cuEventDestroy_v2(event); }
