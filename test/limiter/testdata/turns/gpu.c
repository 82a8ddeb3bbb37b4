/* The played GPU and its driver. It runs the kernels of one process for 2 ms, then those of the next one that has some; those of
 * one process in several streams run at the same time. */
#include "play.h"

enum { EVENTS = 1 << 16 };
static const uint64_t SLICE_NS = 2000000;

static int running = -1, loaded = -1;
static uint64_t slice_left, switch_left;
static bool pending[EVENTS];
static uint64_t happened[EVENTS], into_step;
static uintptr_t event_count;

CUresult play_cuCtxGetCurrent(CUcontext *ctx) { *ctx = (CUcontext)1; return 0; }
CUresult play_cuCtxPushCurrent_v2(CUcontext ctx) { return ctx == NULL; }
CUresult play_cuCtxPopCurrent_v2(CUcontext *ctx) { *ctx = NULL; return 0; }
CUresult play_cuStreamGetCtx(CUstream stream, CUcontext *ctx) { *ctx = (CUcontext)1; return stream == NULL; }
CUresult play_cuEventDestroy_v2(CUevent event) { return pending[(uintptr_t)event] = false; }

CUresult play_cuEventCreate(CUevent *event, unsigned flags)
{
	if (++event_count == EVENTS)
		fail("too many events");
	*event = (CUevent)event_count;
	return flags == 0;
}

CUresult play_cuEventQuery(CUevent event)
{
	return pending[(uintptr_t)event] ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult play_cuEventSynchronize(CUevent event)
{
	self->waits_event = pending[(uintptr_t)event] ? (uintptr_t)event : 0;
	nap(0);
	pay(costs.see);
	return CUDA_SUCCESS;
}

uint64_t play_happened(CUevent event)
{
	return happened[(uintptr_t)event];
}

bool is_pending(uintptr_t event)
{
	return pending[event];
}

void push(struct stream *s, uint64_t ns, uintptr_t event)
{
	if (s->tail - s->head == QUEUE)
		fail("the driver's queue overflows");
	s->queue[s->tail++ % QUEUE] = (struct item){ ns, event };
	s->kernels += !event;
}

CUresult play_cuEventRecord(CUevent event, CUstream stream)
{
	pay(costs.record);
	pending[(uintptr_t)event] = true;
	push(&self->streams[(uintptr_t)stream / 16 % STREAMS], costs.event, (uintptr_t)event);
	return 0;
}

struct item *head_of(struct stream *s)
{
	return s->head != s->tail ? &s->queue[s->head % QUEUE] : NULL;
}

bool settle(struct process *p)
{
	bool some = false;

	for (int i = 0; i < STREAMS; i++) {
		struct stream *s = &p->streams[i];

		for (struct item *item; (item = head_of(s)) && !item->left; s->head++) {
			pending[item->event] = false;
			happened[item->event] = now + into_step;
			s->kernels -= !item->event;
		}
		some |= s->kernels > 0;
	}
	return some;
}

/* Events behind which no kernel is under way happen whatever process has the GPU. */
static void run_events(struct process *p, uint64_t ns)
{
	for (int i = 0; i < STREAMS; i++) {
		struct item *item = head_of(&p->streams[i]);

		if (item && item->event)
			item->left -= ns < item->left ? ns : item->left;
	}
	settle(p);
}

void choose(void)
{
	if (running >= 0 && slice_left && settle(&processes[running]))
		return;
	for (int k = 1; k <= process_count; k++) {
		int i = (running + k + process_count) % process_count;

		if (settle(&processes[i])) {
			running = i;
			slice_left = SLICE_NS;
			if (loaded != i)
				switch_left = loaded < 0 ? 0 : costs.change;
			loaded = i;
			return;
		}
	}
	running = -1;
}

uint64_t same_for(uint64_t ns)
{
	struct process *p = running >= 0 ? &processes[running] : NULL;

	if (p && switch_left)
		return ns < switch_left ? ns : switch_left;
	ns = p && slice_left < ns ? slice_left : ns;
	for (int i = 0; p && i < STREAMS; i++) {
		const struct item *item = head_of(&p->streams[i]);

		if (item && item->left < ns)
			ns = item->left;
	}
	return ns;
}

void run_gpu(uint64_t ns)
{
	for (uint64_t part; ns; ns -= part) {
		bool works = false;

		choose();
		part = same_for(ns);
		into_step += part;
		for (int i = 0; i < process_count; i++)
			if (i != running || switch_left)
				run_events(&processes[i], part);
		if (running < 0)
			continue;
		if (switch_left) {
			switch_left -= part;
			continue;
		}
		struct process *p = &processes[running];
		for (int i = 0; i < STREAMS; i++) {
			struct item *item = head_of(&p->streams[i]);

			if (!item)
				continue;
			item->left -= part;
			works |= !item->event;
		}
		settle(p);
		p->of->had += works ? part : 0;
		slice_left -= part;
	}
	into_step = 0;
}
