/* Plays containers that share a GPU, on a played clock: the same each time, and faster than it is.
 *
 *   play <box.so> <directory> <seconds> <stalls> <container>...
 *
 * A container is share:us[,us...][:word...], a word of
 *
 *   sync     waits for each launch       sN      N streams            gN     pauses N us after each wait
 *   iN       N in flight, and waits for the program's own events behind them
 *   bP/W     each P us works W us; with gN: works, waits, pauses         pN      N processes
 *   force, disable, low, soft=N          from=S  begins after S s
 *   opens    claims, too, that others may use the gaps in its turn
 *   owes     with lies: claims the greatest debt, and work without an end
 *   event    waits, by its own event     poll     looks whether it has ended, every 20 us
 *   tricks   records its events again in a stream without work, destroys them, and asks for them after each launch
 *   data     all lengths are one function's      lies   claims all the time that it wants the GPU, and has no work
 *   wN       begins with 50 launches of N us each, and waits for each
 *   earlier  has no turn file, and no work       blind  has no turn file, and does not know the others
 *
 * PLAY_GPU=h100 in the environment: what takes time besides kernels takes what it does on an H100
 * (docs/measurements/2026-11-26-h100.md), else nothing does but a launch.
 * stalls: how often a process stands still for 1 to 31 ms, in 1/100000 for each step.
 * Prints for each container its part of the GPU, in percent.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "crc32.h"
#include "play.h"

enum { DRIVER_QUEUE = 1024, WARM_LAUNCHES = 50, EVENT_LAUNCHES = 8, MOST_IN_FLIGHT = 64 };
static const uint64_t STALLS_STEP_NS = 5000, TICK_NS = 1000000, BEAT_NS = 10000000, STACK = 1 << 18;

static const struct costs none = { .step = 5000, .wake_more = 60000 },
	h100 = { 200, 140000, 3600, 7400, 30000, 60000, 1900, 1300 };
struct costs costs;

struct process processes[MOST], *self;
int process_count;
uint64_t now = 1000000000000;
static struct container containers[MOST];
static int container_count;
static ucontext_t scheduler;
static unsigned seed = 12345;

static unsigned chance(void)
{
	seed = seed * 1103515245u + 12345u;
	return seed >> 8;
}

void fail(const char *what)
{
	fprintf(stderr, "play: %s\n", what);
	exit(1);
}

void nap(uint64_t ns)
{
	self->wakes = now + ns;
	swapcontext(&self->context, &scheduler);
}

void pay(uint64_t ns)
{
	if (ns)
		nap(ns);
}

uint64_t play_clock(void) { return now; }
void play_nap(uint64_t ns) { nap(ns + costs.wake + chance() % costs.wake_more); }
uint64_t play_id(void) { return self->of->blind ? 0 : (uint64_t)(self->of - containers) + 1; }
struct vgpu_compute *play_compute(void) { return &self->of->compute; }
int play_slot(void) { return self->slot; }

struct limits_share play_share(void)
{
	const struct container *c = self->of;

	return (struct limits_share){ (uint8_t)c->share, (uint8_t)c->soft, c->policy == 1, c->policy == 2 };
}

/* Aligned, as the driver's are. */
static CUstream handle_of(int stream)
{
	return (CUstream)(uintptr_t)(16 * (STREAMS + stream));
}

static void launch(struct process *p, int stream, int length, uint64_t ns)
{
	struct container *c = p->of;
	struct pace pace;

	p->begin(&pace, &c->ns[c->data ? 0 : length], handle_of(stream));
	while (p->streams[stream].tail - p->streams[stream].head > DRIVER_QUEUE)
		nap(20000);
	pay(costs.launch);
	push(&p->streams[stream], ns, 0);
	p->end(&pace);
	if (!costs.launch && chance() % 4 == 0)
		nap(10000);
}

static void wait_for_event(struct process *p, CUevent event)
{
	if (!p->of->poll)
		p->synchronize(event);
	else
		while (p->query(event) == CUDA_ERROR_NOT_READY)
			nap(20000);
}

static CUevent new_event(void)
{
	CUevent event;

	play_cuEventCreate(&event, 0);
	return event;
}

static void wait_for(struct process *p, int stream)
{
	struct stream *s = &p->streams[stream];

	if (p->of->event) {
		p->event = p->event ? p->event : new_event();
		p->record(p->event, handle_of(stream));
		wait_for_event(p, p->event);
		return;
	}
	if (p->of->poll) {
		for (settle(p); s->head != s->tail; settle(p))
			p->poll(false), nap(20000);
		p->poll(true);
		return;
	}
	p->wait_begin();
	p->waits = s;
	nap(0);
	pay(costs.see);
	p->wait_end(handle_of(stream));
}

/* So many are in flight: an event of the program is behind each, or in one stream behind each eighth of them, and is waited for
 * before the next ones take their place. */
static void keep_in_flight(struct process *p)
{
	struct container *c = p->of;
	unsigned group = c->streams > 1 || c->flight < EVENT_LAUNCHES ? 1 : c->flight / EVENT_LAUNCHES, groups = c->flight / group;
	CUevent ends[MOST_IN_FLIGHT] = { NULL };

	for (unsigned n = 0, i = 0;; i = (i + 1) % groups) {
		int stream = (int)(i % (unsigned)c->streams);

		if (ends[i])
			wait_for_event(p, ends[i]);
		else
			ends[i] = new_event();
		for (unsigned k = 0; k < group; k++, n++)
			launch(p, stream, (int)(n % (unsigned)c->lengths), c->ns[n % (unsigned)c->lengths]);
		p->record(ends[i], handle_of(stream));
	}
}

/* After a launch in the first stream, of which none of the answers is the end. */
static void play_tricks(struct process *p)
{
	static unsigned n;
	CUevent event = p->event = p->event ? p->event : new_event();
	CUstream first = handle_of(0), idle = handle_of(1);

	if (p->query(event) != CUDA_SUCCESS || n++ % 4 == 0)
		p->record(event, idle);
	p->record(event, first);
	if (n % 2)
		p->record(event, idle);
	else
		p->destroy(event); /* another one has its handle now */
	p->synchronize(p->event);
	p->query(event);
}

static void lie(struct container *c)
{
	for (;; nap(1000000)) {
		c->words->words.want_until = now + 5000000000;
		c->words->words.hold_until = now + 5000000000;
		c->words->words.lag = c->owes ? INT64_MIN : INT64_MAX;
		c->words->words.credit = INT64_MAX;
		c->words->words.busy = c->owes ? now : chance();
		c->words->words.looked = c->owes ? now : 0;
		c->words->words.work_until = c->owes ? now + 5000000000 : UINT64_MAX;
		c->words->words.gaps_until = c->opens ? now + 5000000000 : 0;
	}
}

static void body(int index)
{
	struct process *p = &processes[index];
	struct container *c = p->of;

	nap(c->from);
	p->start();
	if (c->lies)
		lie(c);
	for (int i = 0; c->warm && i < WARM_LAUNCHES; i++)
		launch(p, 0, 0, c->warm), wait_for(p, 0);
	if (c->flight)
		keep_in_flight(p);
	for (unsigned n = 0;; n++) {
		if (c->period) {
			for (uint64_t done = 0; done < c->work; done += c->ns[0])
				launch(p, 0, 0, c->ns[0]);
			wait_for(p, 0);
			nap(c->pause ? c->pause : c->period - now % c->period);
			continue;
		}
		int stream = (int)(n % (unsigned)c->streams);
		launch(p, stream, (int)(n % (unsigned)c->lengths), c->ns[n % (unsigned)c->lengths]);
		if (c->sync)
			wait_for(p, stream);
		if (c->tricks)
			play_tricks(p);
		if (c->pause)
			nap(c->pause);
	}
}

static void parse(char *text)
{
	struct container *c = &containers[container_count++];
	char *rest, *word = strtok_r(text, ":", &rest), *save;

	c->share = atoi(word);
	c->streams = c->processes = 1;
	word = strtok_r(NULL, ":", &rest);
	for (char *one = strtok_r(word, ",", &save); one; one = strtok_r(NULL, ",", &save))
		c->ns[c->lengths++] = (uint64_t)(atof(one) * 1000);
	while ((word = strtok_r(NULL, ":", &rest))) {
		uint64_t number = (uint64_t)(atof(word + strcspn(word, "0123456789")) * 1000);

		if (!strcmp(word, "sync")) c->sync = true;
		else if (!strcmp(word, "event")) c->event = true;
		else if (!strcmp(word, "poll")) c->poll = true;
		else if (!strcmp(word, "tricks")) c->tricks = true;
		else if (!strcmp(word, "data")) c->data = true;
		else if (!strcmp(word, "lies")) c->lies = true;
		else if (!strcmp(word, "opens")) c->opens = true;
		else if (!strcmp(word, "owes")) c->owes = true;
		else if (!strcmp(word, "earlier")) c->earlier = true;
		else if (!strcmp(word, "blind")) c->blind = true;
		else if (!strcmp(word, "force")) c->policy = 1;
		else if (!strcmp(word, "disable")) c->policy = 2;
		else if (!strcmp(word, "low")) c->priority = 1;
		else if (!strncmp(word, "soft=", 5)) c->soft = (int)(number / 1000);
		else if (!strncmp(word, "from=", 5)) c->from = number * 1000000;
		else if (*word == 's') c->streams = (int)(number / 1000);
		else if (*word == 'i') c->flight = (unsigned)(number / 1000);
		else if (*word == 'p') c->processes = (int)(number / 1000);
		else if (*word == 'g') c->pause = number;
		else if (*word == 'w') c->warm = number;
		else if (*word == 'b') {
			c->period = number;
			c->work = (uint64_t)(atof(strchr(word, '/') + 1) * 1000);
		} else fail(word);
	}
}

static void *map_new(const char *dir, const char *name, size_t size)
{
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/0/%s", dir, name);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
	if (fd < 0 || ftruncate(fd, (off_t)size))
		fail(path);
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED)
		fail(path);
	return at;
}

static void write_files(const char *dir)
{
	char name[64];

	snprintf(name, sizeof(name), "%s/0", dir);
	mkdir(name, 0755);
	struct vgpu_table *table = map_new(dir, "table", sizeof(*table));
	memcpy(table->magic, VGPU_TABLE_MAGIC, 8);
	table->count = (uint32_t)container_count;
	table->floor_percent = 1;
	for (int i = 0; i < container_count; i++) {
		struct container *c = &containers[i];

		table->shares[i] = (struct vgpu_share){ .id = (uint64_t)i + 1, .core_percent = (uint16_t)c->share, .soft_percent = (uint16_t)c->soft,
			.policy = (uint8_t)c->policy, .priority = (uint8_t)c->priority };
		if (c->earlier)
			continue;
		snprintf(name, sizeof(name), "%016x", i + 1);
		c->words = map_new(dir, name, sizeof(*c->words));
		memcpy(c->words->words.magic, VGPU_TURN_MAGIC, 8);
		c->words->words.id = (uint64_t)i + 1;
	}
	table->crc32 = crc32_add(0, &table->count, sizeof(*table) - offsetof(struct vgpu_table, count));
	table->sequence = 2;
}

static void *function(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		fail(name);
	return found;
}

static void load(struct container *c, int slot, const char *box, const char *dir)
{
	struct process *p = &processes[process_count];
	char copy[512], command[1200];

	snprintf(copy, sizeof(copy), "%s/box%d.so", dir, process_count);
	snprintf(command, sizeof(command), "cp '%s' '%s'", box, copy);
	if (system(command))
		fail(command);
	void *library = dlopen(copy, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		fail(dlerror());
	p->of = c;
	p->slot = slot;
	p->start = function(library, "box_start");
	p->begin = function(library, "box_begin");
	p->end = function(library, "box_end");
	p->wait_begin = function(library, "box_wait_begin");
	p->wait_end = function(library, "box_wait_end");
	p->poll = function(library, "box_poll");
	p->beat = function(library, "box_beat");
	p->record = function(library, "box_record");
	p->synchronize = function(library, "box_synchronize");
	p->query = function(library, "box_query");
	p->destroy = function(library, "box_destroy");
	getcontext(&p->context);
	p->context.uc_stack.ss_sp = malloc(STACK);
	p->context.uc_stack.ss_size = STACK;
	makecontext(&p->context, (void (*)(void))body, 1, process_count++);
}

static bool waits(struct process *p)
{
	if (p->waits && (settle(p), p->waits->head == p->waits->tail))
		p->waits = NULL;
	if (p->waits_event && (settle(p), !is_pending(p->waits_event)))
		p->waits_event = 0;
	return p->waits || p->waits_event;
}

/* How long nothing happens but on the GPU: until a process goes on, or one that waits can. */
static uint64_t quiet(uint64_t end)
{
	uint64_t until = (now / TICK_NS + 1) * TICK_NS;
	bool some = false;

	for (int i = 0; i < process_count; i++) {
		if (waits(&processes[i]))
			some = true;
		else if (processes[i].wakes < until)
			until = processes[i].wakes;
	}
	choose();
	if (some)
		until = now + same_for(until > now ? until - now : 0);
	for (int k = 0; some && k < process_count; k++)
		for (int i = 0; i < STREAMS; i++) {
			const struct item *item = head_of(&processes[k].streams[i]);

			if (item && item->event && now + item->left < until)
				until = now + item->left;
		}
	if (end < until)
		until = end;
	return until <= now + costs.step ? costs.step : (until - now + costs.step - 1) / costs.step * costs.step;
}

static void step(unsigned stalls, uint64_t end)
{
	int first = (int)(chance() % (unsigned)process_count);

	for (int k = 0; k < process_count; k++) {
		self = &processes[(first + k) % process_count];
		if (waits(self))
			continue;
		if (stalls && self->stalled <= now && chance() % 100000 < stalls)
			self->stalled = now + 1000000 + chance() % 30000000;
		if (self->wakes <= now && self->stalled <= now)
			swapcontext(&scheduler, &self->context);
	}
	if (now % BEAT_NS == 0)
		for (int i = 0; i < process_count; i++) {
			self = &processes[i];
			if (self->stalled <= now)
				self->beat();
		}
	uint64_t ns = stalls ? STALLS_STEP_NS : quiet(end);
	run_gpu(ns);
	now += ns;
}

int main(int argc, char **argv)
{
	uint64_t begin = now + 1000000000, end = begin + (uint64_t)(atof(argv[3]) * 1e9);

	for (int i = 5; i < argc; i++)
		parse(argv[i]);
	costs = getenv("PLAY_GPU") ? h100 : none;
	setenv("VGPU_TURNS_PATH", argv[2], 1);
	write_files(argv[2]);
	for (int i = 0; i < container_count; i++)
		for (int k = 0; k < containers[i].processes && !containers[i].earlier; k++)
			load(&containers[i], k, argv[1], argv[2]);
	while (now < end) {
		if (now == begin)
			for (int i = 0; i < container_count; i++)
				containers[i].before = containers[i].had;
		step((unsigned)atoi(argv[4]), end);
		if (getenv("PLAY_TRACE") && now % (uint64_t)(atof(getenv("PLAY_TRACE")) * 1e6) == 0)
			for (int i = 0; i < container_count; i++) {
				if (containers[i].earlier)
					continue;
				struct vgpu_turn_words *w = &containers[i].words->words;
				fprintf(stderr, "%.3f %d lag %.2f cap %.2f had %.2f busy %.2f want %.2f hold %.2f work %.2f gaps %.2f\n", (double)(now % 1000000000000) / 1e6, i, (double)w->lag / 1e6, (double)w->cap / 1e6, (double)containers[i].had / 1e6, (double)w->busy / 1e6, (double)(int64_t)(w->want_until - now) / 1e6, (double)(int64_t)(w->hold_until - now) / 1e6, (double)(int64_t)(w->work_until - now) / 1e6, w->gaps_until ? (double)(int64_t)(w->gaps_until - now) / 1e6 : -99);
			}
	}
	for (int i = 0; i < container_count; i++)
		printf("%.2f ", 100. * (double)(containers[i].had - containers[i].before) / (double)(end - begin));
	printf("\n");
	return 0;
}
