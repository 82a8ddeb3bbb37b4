/*
 * The part of NVML that the simulated library answers: numbers and struct layouts as NVIDIA's public API reference gives
 * them (docs.nvidia.com/deploy/nvml-api).
 */
#ifndef SIMDRIVER_NVML_API_H
#define SIMDRIVER_NVML_API_H

#include <stddef.h>

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;
typedef unsigned long long nvmlU64;

#define NVML_RESULTS(R)                                            \
	R(0, SUCCESS, "Success")                                   \
	R(1, ERROR_UNINITIALIZED, "Uninitialized")                 \
	R(2, ERROR_INVALID_ARGUMENT, "Invalid Argument")           \
	R(3, ERROR_NOT_SUPPORTED, "Not Supported")                 \
	R(4, ERROR_NO_PERMISSION, "Insufficient Permissions")      \
	R(6, ERROR_NOT_FOUND, "Not Found")                         \
	R(7, ERROR_INSUFFICIENT_SIZE, "Insufficient Size")         \
	R(9, ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded")         \
	R(10, ERROR_TIMEOUT, "Timeout")                            \
	R(12, ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found") \
	R(13, ERROR_FUNCTION_NOT_FOUND, "Function Not Found")      \
	R(15, ERROR_GPU_IS_LOST, "GPU is lost")                    \
	R(17, ERROR_OPERATING_SYSTEM, "GPU access blocked by the operating system") \
	R(18, ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch") \
	R(19, ERROR_IN_USE, "In use by another client")            \
	R(20, ERROR_MEMORY, "Insufficient Memory")                 \
	R(23, ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources") \
	R(25, ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch") \
	R(999, ERROR_UNKNOWN, "Unknown Error")

#define NVML_RESULT_ENUM(number, name, text) NVML_##name = number,
typedef enum { NVML_RESULTS(NVML_RESULT_ENUM) NVML_RESULT_MAX = 0x7fffffff } nvmlReturn_t;

#define NVML_STRUCT_VERSION(type, version) ((unsigned)(sizeof(type) | ((version) << 24)))

typedef struct {
	nvmlU64 total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned int version;
	nvmlU64 total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
	char busIdLegacy[16];
	unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

typedef struct {
	unsigned int pid;
	nvmlU64 usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
	unsigned int pid;
	nvmlU64 usedGpuMemory;
	unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
	unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
	unsigned int pid;
	nvmlU64 timeStamp;
	unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
	nvmlU64 timeStamp;
	unsigned int pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
	unsigned int version, processSamplesCount;
	nvmlU64 lastSeenTimeStamp;
	nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;

typedef struct {
	unsigned int pid;
	nvmlU64 usedGpuMemory;
	unsigned int gpuInstanceId, computeInstanceId;
	nvmlU64 usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
	unsigned int version, mode, numProcArrayEntries;
	nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;

typedef struct {
	nvmlU64 timeStamp;
	union {
		double dVal;
		unsigned int uiVal;
		nvmlU64 ullVal;
	} sampleValue;
} nvmlSample_t;

typedef struct {
	unsigned int fieldId, scopeId;
	long long timestamp, latencyUsec;
	int valueType, nvmlReturn;
	nvmlU64 value;
} nvmlFieldValue_t;

typedef struct {
	unsigned int multiprocessorCount;
	unsigned int sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
	unsigned int gpuInstanceSliceCount, computeInstanceSliceCount;
	nvmlU64 memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
	unsigned int id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
	unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
	nvmlU64 memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
	unsigned int id, sliceCount, instanceCount, multiprocessorCount;
	unsigned int sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
	unsigned int version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
	unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
	nvmlU64 memorySizeMB;
	char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
	unsigned int version, id, sliceCount, instanceCount, multiprocessorCount;
	unsigned int sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
	char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;

_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v2_t) == 152 && sizeof(nvmlComputeInstanceProfileInfo_v2_t) == 136, "NVML's layout");

typedef struct {
	unsigned int start, size;
} nvmlInstancePlacement_t;

typedef struct {
	nvmlDevice_t device;
	unsigned int id, profileId;
	nvmlInstancePlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
	nvmlDevice_t device, gpuInstance;
	unsigned int id, profileId;
	nvmlInstancePlacement_t placement;
} nvmlComputeInstanceInfo_t;

_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_t) == 48 && sizeof(nvmlComputeInstanceProfileInfo_t) == 36, "NVML's layout");
_Static_assert(sizeof(nvmlGpuInstanceInfo_t) == 24 && sizeof(nvmlComputeInstanceInfo_t) == 32, "NVML's layout");

enum { NVML_GPU_INSTANCE_PROFILES = 18, NVML_COMPUTE_INSTANCE_PROFILES = 9 };

typedef struct {
	nvmlDevice_t device;
	nvmlU64 eventType, eventData;
	unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct {
	unsigned char clusterUuid[16];
	nvmlReturn_t status;
	unsigned int cliqueId;
	unsigned char state;
} nvmlGpuFabricInfo_t;

typedef struct {
	unsigned int version;
	unsigned char clusterUuid[16];
	nvmlReturn_t status;
	unsigned int cliqueId;
	unsigned char state;
	unsigned int healthMask;
	unsigned char healthSummary;
} nvmlGpuFabricInfo_v3_t;

_Static_assert(sizeof(nvmlGpuFabricInfo_t) == 28 && sizeof(nvmlGpuFabricInfo_v3_t) == 40, "NVML's layout");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "NVML's layout");
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "NVML's layout");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40 && sizeof(nvmlPciInfo_t) == 68, "NVML's layout");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24 && sizeof(nvmlProcessInfo_v1_t) == 16, "NVML's layout");
_Static_assert(sizeof(nvmlProcessUtilizationInfo_v1_t) == 40 && sizeof(nvmlProcessesUtilizationInfo_v1_t) == 24, "NVML's layout");
_Static_assert(sizeof(nvmlProcessDetail_v1_t) == 32 && sizeof(nvmlProcessDetailList_v1_t) == 24, "NVML's layout");
_Static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32 && sizeof(nvmlEventData_t) == 32, "NVML's layout");

enum {
	NVML_TOPOLOGY_INTERNAL = 0,
	NVML_TOPOLOGY_SINGLE = 10,
	NVML_TOPOLOGY_MULTIPLE = 20,
	NVML_TOPOLOGY_HOSTBRIDGE = 30,
	NVML_TOPOLOGY_NODE = 40,
	NVML_TOPOLOGY_SYSTEM = 50
};

enum { NVML_FABRIC_NOT_SUPPORTED = 0, NVML_FABRIC_COMPLETED = 3 };

enum { NVML_NVLINK_DEVICE_GPU = 0, NVML_NVLINK_DEVICE_SWITCH = 2 };

#define NO_INSTANCE 0xffffffffu /* as an id: MIG is off, or it concerns no instance */

#define NVML_EVENT_XID 8ull
#define NVML_EVENTS_SUPPORTED 0x1full /* ECC, P-state, XID, clock; only XID events ever come */

#endif
