/* The properties of a device. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult cuDeviceGetCount(int *count)
{
	ENTER();
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = (int)process.device_count;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	ENTER();
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

static CUresult copy_text(char *out, int len, const char *text)
{
	if (!out || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(out, (size_t)len, "%s", text);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	char text[DEVICE_NAME];

	ENTER();
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	instance_name(device_gpu(dev), device_instance(dev), text);
	return copy_text(name, len, text);
}

/* The GPU's, also of a MIG device. */
static CUresult get_uuid(CUuuid *uuid, CUdevice dev)
{
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	memcpy(uuid->bytes, device_gpu(dev)->uuid, sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	ENTER();
	return get_uuid(uuid, dev);
}

/* The MIG device's own, where it is one. */
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	CUresult r;

	ENTER();
	r = get_uuid(uuid, dev);
	if (!r && device_instance(dev))
		instance_uuid(device_gpu(dev), device_instance(dev), (uint8_t *)uuid->bytes);
	return r;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	ENTER();
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = device_capacity(dev);
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	ENTER();
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = device_capacity(dev) > UINT32_MAX ? UINT32_MAX : (unsigned)device_capacity(dev);
	return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	ENTER();
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*major = (int)device_gpu(dev)->cc_major;
	*minor = (int)device_gpu(dev)->cc_minor;
	return CUDA_SUCCESS;
}

/*
 * Numbers of CUdevice_attribute. Attributes in neither table are 0: features that need peers are not supported in this
 * version.
 */
#define LAST_ATTRIBUTE 149

static const struct {
	int which, value;
} fixed[] = {
	{1, 1024},	  /* MAX_THREADS_PER_BLOCK */
	{2, 1024},	  /* MAX_BLOCK_DIM_X */
	{3, 1024},	  /* MAX_BLOCK_DIM_Y */
	{4, 64},	  /* MAX_BLOCK_DIM_Z */
	{5, 2147483647},  /* MAX_GRID_DIM_X */
	{6, 65535},	  /* MAX_GRID_DIM_Y */
	{7, 65535},	  /* MAX_GRID_DIM_Z */
	{8, 49152},	  /* MAX_SHARED_MEMORY_PER_BLOCK */
	{9, 65536},	  /* TOTAL_CONSTANT_MEMORY */
	{10, 32},	  /* WARP_SIZE */
	{11, 2147483647}, /* MAX_PITCH */
	{12, 65536},	  /* MAX_REGISTERS_PER_BLOCK */
	{14, 512},	  /* TEXTURE_ALIGNMENT */
	{15, 1},	  /* GPU_OVERLAP */
	{19, 1},	  /* CAN_MAP_HOST_MEMORY */
	{31, 1},	  /* CONCURRENT_KERNELS */
	{32, 1},	  /* ECC_ENABLED */
	{40, 3},	  /* ASYNC_ENGINE_COUNT */
	{41, 1},	  /* UNIFIED_ADDRESSING */
	{78, 1},	  /* STREAM_PRIORITIES_SUPPORTED */
	{79, 1},	  /* GLOBAL_L1_CACHE_SUPPORTED */
	{80, 1},	  /* LOCAL_L1_CACHE_SUPPORTED */
	{82, 65536},	  /* MAX_REGISTERS_PER_MULTIPROCESSOR */
	{83, 1},	  /* MANAGED_MEMORY */
	{89, 1},	  /* CONCURRENT_MANAGED_ACCESS */
	{90, 1},	  /* COMPUTE_PREEMPTION_SUPPORTED */
	{91, 1},	  /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
	{95, 1},	  /* COOPERATIVE_LAUNCH */
	{99, 1},	  /* HOST_REGISTER_SUPPORTED */
	{102, 1},	  /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
	{103, 1},	  /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
	{115, 1},	  /* MEMORY_POOLS_SUPPORTED */
	{119, 1},	  /* MEMPOOL_SUPPORTED_HANDLE_TYPES: a file descriptor */
	{112, 1},	  /* SPARSE_CUDA_ARRAY_SUPPORTED */
	{121, 1},	  /* DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED */
};

static const struct {
	int which;
	size_t offset; /* of a 32-bit field of struct GPU */
} of_gpu[] = {
	{13, offsetof(struct gpu, clock_khz)},
	{16, offsetof(struct gpu, sm_count)},
	{33, offsetof(struct gpu, pci_bus)},
	{34, offsetof(struct gpu, pci_device)},
	{36, offsetof(struct gpu, memory_clock_khz)},
	{37, offsetof(struct gpu, bus_width)},
	{38, offsetof(struct gpu, l2_bytes)},
	{39, offsetof(struct gpu, threads_per_sm)},
	{50, offsetof(struct gpu, pci_domain)},
	{75, offsetof(struct gpu, cc_major)},
	{76, offsetof(struct gpu, cc_minor)},
	{81, offsetof(struct gpu, shared_per_sm)},
	{85, offsetof(struct gpu, minor)}, /* MULTI_GPU_BOARD_GROUP_ID */
	{97, offsetof(struct gpu, shared_optin)},
	{134, offsetof(struct gpu, numa_node)},
};

/* What a MIG device has less of than its GPU; -1: nothing. An eighth of the memory comes with an eighth of cache and bus. */
static int instance_attribute(const struct gpu *c, const struct instance *in, int which)
{
	switch (which) {
	case 16:
		return (int)in->profile.sm_count;
	case 37:
		return (int)(c->bus_width * in->profile.size / 8);
	case 38:
		return (int)(c->l2_bytes / 8 * in->profile.size);
	case 40:
		return (int)in->profile.copy_engines;
	default:
		return -1;
	}
}

static int attribute(const struct gpu *c, const struct instance *in, int which)
{
	int value = in ? instance_attribute(c, in, which) : -1;

	if (value >= 0)
		return value;
	if (which == 106) /* MAX_BLOCKS_PER_MULTIPROCESSOR */
		return c->threads_per_sm >= 2048 ? 32 : 16;
	for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++) {
		if (fixed[i].which == which)
			return fixed[i].value;
	}
	for (size_t i = 0; i < sizeof(of_gpu) / sizeof(of_gpu[0]); i++) {
		if (of_gpu[i].which != which)
			continue;
		memcpy(&value, (const char *)c + of_gpu[i].offset, sizeof(value));
		return value;
	}
	return 0;
}

CUresult cuDeviceGetAttribute(int *value, int which, CUdevice dev)
{
	ENTER();
	if (!value || which < 1 || which > LAST_ATTRIBUTE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*value = attribute(device_gpu(dev), device_instance(dev), which);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
	const struct gpu *c;
	char text[32];

	ENTER();
	c = device_gpu(dev);
	if (!c)
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(text, sizeof(text), "%04x:%02x:%02x.0", c->pci_domain & 0xffff, c->pci_bus & 0xff, c->pci_device & 0x1f);
	return copy_text(id, len, text);
}

/* Documented forms: [domain]:[bus]:[device].[function], [domain]:[bus]:[device], [bus]:[device].[function]; all hex. */
CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *id)
{
	unsigned domain = 0, bus, device;

	ENTER();
	if (!dev || !id)
		return CUDA_ERROR_INVALID_VALUE;
	if (sscanf(id, "%x:%x:%x", &domain, &bus, &device) != 3) {
		domain = 0;
		if (sscanf(id, "%x:%x", &bus, &device) != 2)
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (unsigned i = 0; i < process.device_count; i++) {
		const struct gpu *c = device_gpu((CUdevice)i);

		if (c->pci_domain == domain && c->pci_bus == bus && c->pci_device == device) {
			*dev = (CUdevice)i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	ENTER();
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev) || !device_gpu(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = 0;
	return CUDA_SUCCESS;
}
