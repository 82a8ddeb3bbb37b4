/* The questions that only a GPU answers: see main.c. */
#ifndef GPU_PROBE_H
#define GPU_PROBE_H

#include "../../../testdata/simdriver/nvml_api.h"
#include "../../../testdata/workloads/common.h"

#include <stdio.h>
#include <sys/types.h>

#define MIB ((size_t)1 << 20)
#define COUNT(a) ((int)(sizeof(a) / sizeof(*(a))))

/* Beside those of common.h. NULL where a driver has none. */
#define MORE_CALLS(F)                                                                                    \
	F(cuArrayCreate_v2) F(cuArrayDestroy) F(cuCtxCreate_v2) F(cuCtxDestroy_v2) F(cuCtxSetLimit)      \
	F(cuDeviceGetAttribute) F(cuEventDestroy_v2) F(cuIpcCloseMemHandle) F(cuIpcGetMemHandle)         \
	F(cuIpcOpenMemHandle_v2) F(cuMemGetAddressRange_v2)                                              \
	F(cuMemAddressReserve) F(cuMemAllocAsync) F(cuMemCreate) F(cuMemExportToShareableHandle)         \
	F(cuMemFreeAsync) F(cuMemGetAllocationGranularity) F(cuMemImportFromShareableHandle) F(cuMemMap) \
	F(cuMemRelease) F(cuMemSetAccess) F(cuModuleUnload) F(cuStreamCreate) F(cuStreamDestroy_v2)      \
	F(cuStreamSynchronize)

struct more {
#define FIELD(name) __typeof__(&name) name;
	MORE_CALLS(FIELD)
#undef FIELD
};
extern struct more more;
extern double measured_seconds;

/* Finds the driver and makes the first device's primary context current. */
void begin(void);
/* Prints KEY=VALUE. */
__attribute__((format(printf, 2, 3))) void answer(const char *key, const char *format, ...);
double median(double *values, int count);
double free_bytes(void);
/* A kernel that takes so long where no other process has the GPU. The first call, before anything is busy, measures how many
 * iterations that are. */
CUfunction spin_kernel(long us);
void launch_spin(CUfunction f, long us, unsigned blocks, unsigned threads, CUstream stream);

/* Another process: this program, or pace beside it. Its output is read by lines, lines are sent to its standard input. */
struct other {
	pid_t pid;
	FILE *out, *in;
};
struct other start(const char *program, char *const *arguments);
/* The value of the next line KEY=VALUE; ends the program where the other one ends first. */
double receive(struct other *o, const char *key);
void send_line(struct other *o, const char *word);
void finish(struct other *o);

void nvml_begin(void);
void nvml_versions(void);
double nvml_used_mib(void);
double nvml_reserved_mib(void);
/* Of one process, -1: not listed, or without a figure. */
double nvml_process_mib(pid_t pid);

void ask_pages(void);
void ask_context(void);
void ask_events(void);
void ask_slices(void);
void ask_nvml(void);
void ask_inside(void);
void ask_streams(void);
void ask_export(void);
int export_owner(int socket);
void ipc_owner(void);

#endif
