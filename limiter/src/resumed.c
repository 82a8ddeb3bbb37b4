#include "resumed.h"

#include <unistd.h>

#include "clock.h"
#include "hooks.h"
#include "suspend.h"

enum { PAUSE_US = 5000 };

/* By the driver's word, not by the mark: while a restore looks for room the mark is gone for a moment. */
void resumed_wait(struct vgpu_slot *s)
{
	int state;

	while (REAL(cuCheckpointProcessGetState)(getpid(), &state) == CUDA_SUCCESS && state == CU_PROCESS_STATE_CHECKPOINTED)
		clock_sleep_us(PAUSE_US);
	suspend_unmark(s);
}
