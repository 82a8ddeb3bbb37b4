/* One process: the limiter's sources as they are. Each process of play.c loads a copy of its own. */
#include <stdlib.h>

#include "pace.h"
#include "cores.h"
#include "turn.h"
#include "turnends.h"
#include "turnstate.h"

struct cores cores = { .cells = 1, .limited = 1 };

uint32_t cores_refresh(void)
{
	return 1;
}

struct limits_share play_share(void);
uint64_t play_id(void);
int play_slot(void);
struct vgpu_compute *play_compute(void);

struct limits_share limits_share(int cell)
{
	return cell == 0 ? play_share() : (struct limits_share){ .disabled = true };
}

uint64_t limits_turn_id(void)
{
	return play_id();
}

int process_slot(void)
{
	return play_slot();
}

static const _Atomic uint64_t generation;

__attribute__((visibility("default"))) void box_start(void)
{
	if (!turn_start())
		abort();
	cores.generation = &generation;
	cores.compute = play_compute();
	cores.limited = turn_refresh(0);
}

__attribute__((visibility("default"))) void box_begin(struct pace *pace, const void *what, CUstream stream)
{
	pace->cell = -1;
	if (cores_limited())
		pace_begin(pace, cores_limited(), what, 1, stream);
}

__attribute__((visibility("default"))) void box_end(struct pace *pace)
{
	pace_end(pace, CUDA_SUCCESS);
}

__attribute__((visibility("default"))) void box_wait_begin(void)
{
	turn_wait_begin();
}

__attribute__((visibility("default"))) void box_wait_end(CUstream stream)
{
	turn_ended(stream, NULL);
	turn_wait_end();
}

__attribute__((visibility("default"))) void box_poll(bool done)
{
	if (done)
		turn_saw_end(false);
	else
		turn_saw_work();
}

__attribute__((visibility("default"))) void box_beat(void)
{
	if (turn_beating)
		turn_beat();
}

__attribute__((visibility("default"))) CUresult box_record(CUevent event, CUstream stream)
{
	return cuEventRecord(event, stream);
}

__attribute__((visibility("default"))) CUresult box_synchronize(CUevent event)
{
	return cuEventSynchronize(event);
}

__attribute__((visibility("default"))) CUresult box_query(CUevent event)
{
	return cuEventQuery(event);
}

__attribute__((visibility("default"))) CUresult box_destroy(CUevent event)
{
	return cuEventDestroy_v2(event);
}
