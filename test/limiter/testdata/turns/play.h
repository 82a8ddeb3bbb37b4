/* What play.c and gpu.c share: the processes of the containers, and the GPU that they share. */
#ifndef PLAY_H
#define PLAY_H

#include <ucontext.h>

#include "layout.h"
#include "pace.h"
#include "played.h"

enum { MOST = 96, STREAMS = 16, LENGTHS = 8, QUEUE = 4096 };

struct item { uint64_t left; uintptr_t event; };
struct stream { struct item queue[QUEUE]; unsigned head, tail, kernels; };

struct container {
	int share, soft, policy, priority, streams, lengths, processes;
	uint64_t ns[LENGTHS], pause, period, work, warm, from, had, before;
	unsigned flight; /* kernels; 0: as many as the driver takes */
	bool sync, event, poll, tricks, data, lies, opens, owes, earlier, blind;
	struct vgpu_turn *words;
	struct vgpu_compute compute;
};

struct process {
	struct container *of;
	int slot;
	ucontext_t context;
	struct stream streams[STREAMS];
	uint64_t wakes, stalled;
	const struct stream *waits; /* until it is empty */
	CUevent event;
	uintptr_t waits_event;      /* until it has happened; 0: for none */
	void (*start)(void), (*begin)(struct pace *, const void *, CUstream), (*end)(struct pace *);
	void (*wait_begin)(void), (*wait_end)(CUstream), (*poll)(bool), (*beat)(void);
	CUresult (*record)(CUevent, CUstream), (*synchronize)(CUevent), (*query)(CUevent), (*destroy)(CUevent);
};
extern struct process processes[MOST], *self;
extern int process_count;
extern uint64_t now;


/* What takes time besides kernels, in ns: the GPU goes to another process, a launch, a thread sees the end of what it waits for, a sleep
 * is longer and by how much more at most, an event on the GPU, and a thread records one. */
struct costs { uint64_t step, change, launch, see, wake, wake_more, event, record; };
extern struct costs costs;

void fail(const char *what);
/* Time of the process that runs now. */
void nap(uint64_t ns);
void pay(uint64_t ns);

void push(struct stream *s, uint64_t ns, uintptr_t event);
struct item *head_of(struct stream *s);
/* Whether the process has kernels. */
bool settle(struct process *p);
bool is_pending(uintptr_t event);
/* When an event happened that is not pending. */
uint64_t play_happened(CUevent event);
/* The process that has the GPU. */
void choose(void);
/* How long nothing changes on the GPU, but at most so long. */
uint64_t same_for(uint64_t ns);
void run_gpu(uint64_t ns);

#endif
