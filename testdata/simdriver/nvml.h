/* Inside libnvidia-ml.so.1: what its files share. */
#ifndef SIMDRIVER_NVML_H
#define SIMDRIVER_NVML_H

#include "nvml_api.h"
#include "state.h"

#define EXPORT __attribute__((visibility("default")))

struct nvmlDevice_st {
	unsigned index; /* in order of PCI address, over the visible GPUs */
	unsigned gpu;
	uint32_t epoch; /* the GPU's when it was found */
	unsigned slot;  /* of a MIG device, from 1. Its handle stands for whatever the slot holds, as documented */
	nvmlDevice_t parent; /* of a MIG device */
};

struct nvml {
	struct view view;
	unsigned references; /* of nvmlInit */
	unsigned device_count;
	struct nvmlDevice_st devices[MAX_GPUS];
	struct nvmlDevice_st migs[MAX_GPUS][MAX_INSTANCES];
};

extern struct nvml nvml;

/* Start of nearly every call: initialised, no fault injected; in a forked child, the state opened again. */
nvmlReturn_t nvml_enter(const char *symbol);
#define ENTER()                                         \
	do {                                            \
		nvmlReturn_t r_ = nvml_enter(__func__); \
		if (r_)                                 \
			return r_;                      \
	} while (0)

/* Declares the GPU of a handle, or returns why there is none. Not for MIG devices. */
#define GPU_OR_RETURN(c, device)                       \
	struct gpu *c;                                 \
	nvmlReturn_t found_;                            \
	ENTER();                                        \
	found_ = nvml_find(device, &c);                 \
	if (found_)                                     \
	return found_

/* Declares the GPU and the MIG device of a handle, or returns why there is none. The MIG device is NULL for a whole GPU. */
#define GPU_AND_MIG_OR_RETURN(c, in, device)           \
	struct gpu *c;                                 \
	struct instance *in;                            \
	nvmlReturn_t found_;                            \
	ENTER();                                        \
	found_ = nvml_find_any(device, &c, &in);        \
	if (found_)                                     \
	return found_

/* Functions that give one number of a GPU. */
#define NUMBER(name, type, value)                                              \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, type *out)               \
	{                                                                      \
		GPU_OR_RETURN(c, device);                                     \
		if (!out)                                                      \
			return NVML_ERROR_INVALID_ARGUMENT;                    \
		*out = (type)(value);                                          \
		return NVML_SUCCESS;                                           \
	}

void fill_bus_id(const struct gpu *c, char legacy[16], char full[32]);

struct gpu *nvml_gpu(nvmlDevice_t device); /* NULL: not a GPU's handle of ours */
/* The GPU of a handle, or why there is none: INVALID_ARGUMENT, GPU_IS_LOST, NOT_SUPPORTED for a MIG device. */
nvmlReturn_t nvml_find(nvmlDevice_t device, struct gpu **gpu);
/* Also of a MIG device; INVALID_ARGUMENT when it was destroyed. */
nvmlReturn_t nvml_find_any(nvmlDevice_t device, struct gpu **gpu, struct instance **in);
bool nvml_is_mig(nvmlDevice_t device);
/* The MIG devices of a GPU that may be seen, in order of GPU instance id: their number and handles. */
unsigned nvml_migs(nvmlDevice_t parent, nvmlDevice_t migs[MAX_INSTANCES]);
/* A profile by its number, or by its kind; NULL: the GPU has none. */
const struct mig_profile *nvml_profile(const struct gpu *c, unsigned number, bool by_kind);
/* Of a GPU in MIG mode, for root only. */
nvmlReturn_t nvml_privileged(nvmlDevice_t device, struct gpu **c);
/* A GPU instance, also without a compute instance. */
nvmlReturn_t nvml_gpu_instance(nvmlDevice_t handle, struct gpu **c, struct instance **in);
/* The GPU instance, if this is the profile of a compute instance that has all of it. */
nvmlReturn_t nvml_whole(nvmlDevice_t instance, unsigned profile, unsigned engines, struct instance **in);
bool nvml_lost(const struct nvmlDevice_st *device);
nvmlReturn_t copy_out(char *out, unsigned room, const char *text);

#endif
