/* In front of the limiter's sources of turns: the clock, the driver and the limits are played (play.c). */
#define GPUSLICE_CLOCK_H
#define GPUSLICE_HOOKS_H
#define GPUSLICE_CAPTURE_H
#define GPUSLICE_LIMITS_H
#define GPUSLICE_PROCESS_H
#define GPUSLICE_DEVICE_H
#define GPUSLICE_POOL_H
#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "api.h"
#include "paths.h"

/* The variables count, whatever other tests create on this machine. */
#undef VGPU_DIR
#define VGPU_DIR "/played"

uint64_t play_clock(void);
void play_nap(uint64_t ns);
#define clock_ns play_clock
#define clock_nap_ns play_nap

#define REAL(name) play_##name
CUresult play_cuCtxGetCurrent(CUcontext *ctx), play_cuCtxPushCurrent_v2(CUcontext ctx), play_cuCtxPopCurrent_v2(CUcontext *ctx);
CUresult play_cuStreamGetCtx(CUstream stream, CUcontext *ctx);
CUresult play_cuEventCreate(CUevent *event, unsigned flags), play_cuEventDestroy_v2(CUevent event);
CUresult play_cuEventRecord(CUevent event, CUstream stream), play_cuEventQuery(CUevent event);
CUresult play_cuEventSynchronize(CUevent event);

#define play_cuEventRecord_ptsz play_cuEventRecord
#define play_cuEventDestroy play_cuEventDestroy_v2
#define play_cuEventRecordWithFlags(event, stream, flags) (flags ? play_cuEventRecord(event, stream) : play_cuEventRecord(event, stream))
#define play_cuEventRecordWithFlags_ptsz play_cuEventRecordWithFlags
/* Not played. */
#define play_cuCtxRecordEvent(ctx, event) ((ctx) && (event) ? 1 : 801)
#define play_cuGreenCtxRecordEvent play_cuCtxRecordEvent
#define play_cuIpcGetEventHandle play_cuCtxRecordEvent
#define play_cuIpcOpenEventHandle(event, handle) ((event) && (handle).reserved[0] ? 1 : 801)

static inline bool capture_any(void) { return false; }
static inline bool capture_of(CUstream stream) { return stream == NULL; }
static inline bool capture_stay_away(void) { return true; }
static inline void capture_leave(void) {}
static inline int capture_relax(int mode) { return mode; }

struct limits_share {
	uint8_t percent, soft_percent;
	bool force, disabled;
};
struct limits_share limits_share(int cell);
uint64_t limits_turn_id(void);
int process_slot(void);

static inline void pools_may_have_shrunk(void) {}

struct here {
	CUcontext context;
	int cell;
};
static inline CUresult device_here(struct here *out) { return out->cell = -1; }
