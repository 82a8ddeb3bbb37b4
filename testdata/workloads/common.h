/*
 * Shared by the workloads: finding the driver as real programs do, printing results, waiting.
 *
 * Every program prints `key=value` lines on stdout and complaints on stderr. Exit status: 0 fine, 2 usage, 3 a CUDA call
 * failed where none should, 4 no driver or a function of it is missing.
 */
#ifndef WORKLOADS_COMMON_H
#define WORKLOADS_COMMON_H

#include "../simdriver/cuda_api.h"

#include <stdbool.h>

enum { EXIT_FINE = 0, EXIT_USAGE = 2, EXIT_CUDA = 3, EXIT_DRIVER = 4 };

/* Exported name, name for cuGetProcAddress, the CUDA version that introduced this variant. */
#define CUDA_CALLS(F)                                              \
	F(cuInit, cuInit, 2000)                                    \
	F(cuDriverGetVersion, cuDriverGetVersion, 2020)            \
	F(cuGetErrorName, cuGetErrorName, 6000)                    \
	F(cuDeviceGet, cuDeviceGet, 2000)                          \
	F(cuDeviceGetCount, cuDeviceGetCount, 2000)                \
	F(cuDeviceGetName, cuDeviceGetName, 2000)                  \
	F(cuDeviceGetUuid, cuDeviceGetUuid, 9020)                  \
	F(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020)             \
	F(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000) \
	F(cuCtxSetCurrent, cuCtxSetCurrent, 4000)                  \
	F(cuCtxSynchronize, cuCtxSynchronize, 2000)                \
	F(cuMemGetInfo_v2, cuMemGetInfo, 3020)                     \
	F(cuMemAlloc_v2, cuMemAlloc, 3020)                         \
	F(cuMemAllocManaged, cuMemAllocManaged, 6000)              \
	F(cuMemAllocPitch_v2, cuMemAllocPitch, 3020)               \
	F(cuMemFree_v2, cuMemFree, 3020)                           \
	F(cuModuleLoadData, cuModuleLoadData, 2000)                \
	F(cuModuleGetFunction, cuModuleGetFunction, 2000)          \
	F(cuLaunchKernel, cuLaunchKernel, 4000)                    \
	F(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000) \
	F(cuStreamCreate, cuStreamCreate, 2000)                    \
	F(cuEventCreate, cuEventCreate, 2000)                      \
	F(cuEventRecord, cuEventRecord, 2000)                      \
	F(cuEventSynchronize, cuEventSynchronize, 2000)            \
	F(cuEventElapsedTime, cuEventElapsedTime, 2000)

/* Not every driver has these: NULL there, found when they are needed. */
#define CUDA_OPTIONAL_CALLS(F)                                     \
	F(cuLaunchKernelEx, cuLaunchKernelEx, 11060)               \
	F(cuFuncSetBlockShape, cuFuncSetBlockShape, 2000)          \
	F(cuParamSetSize, cuParamSetSize, 2000)                    \
	F(cuParamSetv, cuParamSetv, 2000)                          \
	F(cuLaunchGridAsync, cuLaunchGridAsync, 2000)

struct cuda {
#define FIELD(name, base, version) __typeof__(&name) name;
	CUDA_CALLS(FIELD)
	CUDA_OPTIONAL_CALLS(FIELD)
#undef FIELD
};

extern struct cuda cu;

/* --lookup: dlsym, getproc (cuGetProcAddress) or getproc_v2. Exits with 4 if it can't. */
void cuda_load(const char *lookup);
/* cuInit, and the primary context of that device made current. Exits with 3 if it can't. */
void cuda_start(int device);
/* Exits with 3 unless r is success. */
void must(CUresult r, const char *what);
const char *error_name(CUresult r);

/* Parses `--name value` and `--name=value`; exits with 2 on anything unknown, with 0 after --help. */
struct option_def {
	const char *name;
	const char **value; /* NULL: a flag */
	bool *flag;
	const char *help;
};
void parse_options(int argc, char **argv, const char *what, const struct option_def *defs);
long number(const char *name, const char *text, long min, long max);
double seconds_of(const char *name, const char *text);

double monotonic(void);
/* From here on SIGTERM and SIGINT end a wait and not the process. */
void catch_term(void);
bool terminated(void);
/* Returns after that many seconds (0: never) or SIGTERM. */
void wait_for(double seconds);

#endif
