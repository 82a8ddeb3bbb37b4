#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static atomic_bool came;

static void *call(void *ctx)
{
	CUdeviceptr p;

	FINE(cuCtxSetCurrent(ctx));
	FINE(cuMemAlloc_v2(&p, MIB));
	FINE(cuMemFree_v2(p));
	atomic_store(&came, true);
	return NULL;
}

static int state_of(int pid)
{
	int state = -1;

	FINE(cuCheckpointProcessGetState(pid, &state));
	return state;
}

static CUfunction one_second(void)
{
	CUmodule module;
	CUfunction f;

	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&f, module, "second"));
	return f;
}

/* Of this process itself: its memory leaves the GPU and comes back, with what is in it. */
void check_checkpoint(void)
{
	CUcheckpointLockArgs soon = {.timeoutMs = 1};
	int pid = (int)getpid(), tid;
	CUcontext ctx = start();
	CUfunction f = one_second();
	unsigned char value = 0;
	pthread_t thread;
	CUdeviceptr p;

	FINE(cuMemAlloc_v2(&p, 64 * MIB));
	FINE(cuMemsetD8_v2(p, 9, 64 * MIB));
	CHECK(state_of(pid) == CU_PROCESS_STATE_RUNNING);
	FINE(cuCheckpointProcessGetRestoreThreadId(pid, &tid));
	GIVES(cuCheckpointProcessLock(1, NULL), CUDA_ERROR_INVALID_VALUE); /* has no GPU */
	GIVES(cuCheckpointProcessCheckpoint(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
	GIVES(cuCheckpointProcessRestore(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
	GIVES(cuCheckpointProcessUnlock(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
	FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	GIVES(cuCheckpointProcessLock(pid, &soon), CUDA_ERROR_NOT_READY);
	CHECK(state_of(pid) == CU_PROCESS_STATE_RUNNING);
	FINE(cuCheckpointProcessLock(pid, NULL)); /* waits for the kernel */
	GIVES(cuCheckpointProcessLock(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
	CHECK(!pthread_create(&thread, NULL, call, ctx));
	FINE(cuCheckpointProcessCheckpoint(pid, NULL));
	CHECK(state_of(pid) == CU_PROCESS_STATE_CHECKPOINTED && !atomic_load(&came));
	GIVES(cuCheckpointProcessUnlock(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
	FINE(cuCheckpointProcessRestore(pid, NULL));
	CHECK(state_of(pid) == CU_PROCESS_STATE_LOCKED && !atomic_load(&came));
	FINE(cuCheckpointProcessUnlock(pid, NULL));
	CHECK(!pthread_join(thread, NULL));
	FINE(cuMemcpyDtoH_v2(&value, p + 64 * MIB - 1, 1));
	CHECK(value == 9);
	FINE(cuMemFree_v2(p));
}

/* Another process is taken from the GPU. The test gives its PID, and looks at the GPU in between. */
void check_checkpoint_other(void)
{
	char line[64];
	int pid;

	start();
	CHECK(fgets(line, sizeof(line), stdin));
	pid = atoi(line);
	FINE(cuCheckpointProcessLock(pid, NULL));
	FINE(cuCheckpointProcessCheckpoint(pid, NULL));
	printf("checkpointed=%d\n", state_of(pid));
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin));
	FINE(cuCheckpointProcessRestore(pid, NULL));
	FINE(cuCheckpointProcessUnlock(pid, NULL));
	printf("running=%d\n", state_of(pid));
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin));
}
