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
 * What differs with the architecture, as NVIDIA's CUDA programming guide has it in its tables of compute capabilities. A GPU has
 * the newest row that is not newer than itself.
 */
static const struct architecture {
	unsigned capability;	    /* 10 * major + minor */
	int float_to_double;	    /* throughput of FP32 to that of FP64 */
	int blocks_per_sm;
	int reserved_shared;	    /* bytes of each block's shared memory that the system takes */
	int compression;	    /* compressible memory, and L2 that can be set aside */
	int clusters, tensor_maps;
	int sync_domains;
} architectures[] = {
	{70, 2, 32, 0, 0, 0, 0, 1},	{75, 32, 16, 0, 0, 0, 0, 1},	{80, 2, 32, 1024, 1, 0, 0, 1},
	{86, 64, 16, 1024, 1, 0, 0, 1}, {89, 64, 24, 1024, 1, 0, 0, 1}, {90, 2, 32, 1024, 1, 1, 1, 4},
	{100, 2, 32, 1024, 1, 1, 1, 4}, {120, 64, 24, 1024, 1, 1, 1, 4},
};

static const struct architecture *architecture_of(const struct gpu *c)
{
	size_t i = sizeof(architectures) / sizeof(architectures[0]) - 1;

	while (i > 0 && architectures[i].capability > c->cc_major * 10 + c->cc_minor)
		i--;
	return &architectures[i];
}

/* Numbers of CUdevice_attribute. Attributes in no table are 0: what needs peers, graphics or MPS is not there. */
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
	{21, 131072},	  /* MAXIMUM_TEXTURE1D_WIDTH */
	{22, 131072},	  /* MAXIMUM_TEXTURE2D_WIDTH */
	{23, 65536},	  /* …_HEIGHT */
	{24, 16384},	  /* MAXIMUM_TEXTURE3D_WIDTH */
	{25, 16384},	  /* …_HEIGHT */
	{26, 16384},	  /* …_DEPTH */
	{27, 32768},	  /* MAXIMUM_TEXTURE2D_LAYERED_WIDTH */
	{28, 32768},	  /* …_HEIGHT */
	{29, 2048},	  /* …_LAYERS */
	{30, 512},	  /* SURFACE_ALIGNMENT */
	{31, 1},	  /* CONCURRENT_KERNELS */
	{32, 1},	  /* ECC_ENABLED */
	{40, 3},	  /* ASYNC_ENGINE_COUNT */
	{41, 1},	  /* UNIFIED_ADDRESSING */
	{42, 32768},	  /* MAXIMUM_TEXTURE1D_LAYERED_WIDTH */
	{43, 2048},	  /* …_LAYERS */
	{44, 1},	  /* CAN_TEX2D_GATHER */
	{45, 32768},	  /* MAXIMUM_TEXTURE2D_GATHER_WIDTH */
	{46, 32768},	  /* …_HEIGHT */
	{47, 8192},	  /* MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE */
	{48, 8192},	  /* …_HEIGHT_ALTERNATE */
	{49, 32768},	  /* …_DEPTH_ALTERNATE */
	{51, 32},	  /* TEXTURE_PITCH_ALIGNMENT */
	{52, 32768},	  /* MAXIMUM_TEXTURECUBEMAP_WIDTH */
	{53, 32768},	  /* MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH */
	{54, 2046},	  /* …_LAYERS */
	{55, 32768},	  /* MAXIMUM_SURFACE1D_WIDTH */
	{56, 131072},	  /* MAXIMUM_SURFACE2D_WIDTH */
	{57, 65536},	  /* …_HEIGHT */
	{58, 16384},	  /* MAXIMUM_SURFACE3D_WIDTH */
	{59, 16384},	  /* …_HEIGHT */
	{60, 16384},	  /* …_DEPTH */
	{61, 32768},	  /* MAXIMUM_SURFACE1D_LAYERED_WIDTH */
	{62, 2048},	  /* …_LAYERS */
	{63, 32768},	  /* MAXIMUM_SURFACE2D_LAYERED_WIDTH */
	{64, 32768},	  /* …_HEIGHT */
	{65, 2048},	  /* …_LAYERS */
	{66, 32768},	  /* MAXIMUM_SURFACECUBEMAP_WIDTH */
	{67, 32768},	  /* MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH */
	{68, 2046},	  /* …_LAYERS */
	{69, 268435456},  /* MAXIMUM_TEXTURE1D_LINEAR_WIDTH */
	{70, 131072},	  /* MAXIMUM_TEXTURE2D_LINEAR_WIDTH */
	{71, 65000},	  /* …_HEIGHT */
	{72, 2097120},	  /* …_PITCH */
	{73, 32768},	  /* MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH */
	{74, 32768},	  /* …_HEIGHT */
	{77, 32768},	  /* MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH */
	{78, 1},	  /* STREAM_PRIORITIES_SUPPORTED */
	{79, 1},	  /* GLOBAL_L1_CACHE_SUPPORTED */
	{80, 1},	  /* LOCAL_L1_CACHE_SUPPORTED */
	{82, 65536},	  /* MAX_REGISTERS_PER_MULTIPROCESSOR */
	{83, 1},	  /* MANAGED_MEMORY */
	{89, 1},	  /* CONCURRENT_MANAGED_ACCESS */
	{90, 1},	  /* COMPUTE_PREEMPTION_SUPPORTED */
	{91, 1},	  /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
	{92, 1},	  /* CAN_USE_STREAM_MEM_OPS_V1 */
	{93, 1},	  /* CAN_USE_64_BIT_STREAM_MEM_OPS_V1 */
	{94, 1},	  /* CAN_USE_STREAM_WAIT_VALUE_NOR_V1 */
	{95, 1},	  /* COOPERATIVE_LAUNCH */
	{99, 1},	  /* HOST_REGISTER_SUPPORTED */
	{102, 1},	  /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
	{103, 1},	  /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
	{115, 1},	  /* MEMORY_POOLS_SUPPORTED */
	{119, 1},	  /* MEMPOOL_SUPPORTED_HANDLE_TYPES: a file descriptor */
	{112, 1},	  /* SPARSE_CUDA_ARRAY_SUPPORTED */
	{121, 1},	  /* DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED */
	{122, 1},	  /* CAN_USE_64_BIT_STREAM_MEM_OPS */
	{123, 1},	  /* CAN_USE_STREAM_WAIT_VALUE_NOR */
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

/* -1: it is the same for all architectures. */
static int architecture_attribute(const struct gpu *c, int which)
{
	const struct architecture *a = architecture_of(c);

	switch (which) {
	case 87: /* SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO */
		return a->float_to_double;
	case 106: /* MAX_BLOCKS_PER_MULTIPROCESSOR */
		return a->blocks_per_sm;
	case 107: /* GENERIC_COMPRESSION_SUPPORTED */
		return a->compression;
	case 108: /* MAX_PERSISTING_L2_CACHE_SIZE */
		return a->compression ? (int)(c->l2_bytes / 8 * (c->cc_major == 8 ? 6 : 5)) : 0;
	case 109: /* MAX_ACCESS_POLICY_WINDOW_SIZE */
		return a->compression ? 134213632 : 0;
	case 111: /* RESERVED_SHARED_MEMORY_PER_BLOCK */
		return a->reserved_shared;
	case 120: /* CLUSTER_LAUNCH */
		return a->clusters;
	case 126: /* MEM_SYNC_DOMAIN_COUNT */
		return a->sync_domains;
	case 127: /* TENSOR_MAP_ACCESS_SUPPORTED */
		return a->tensor_maps;
	default:
		return -1;
	}
}

static int attribute(const struct gpu *c, const struct instance *in, int which)
{
	int value = in ? instance_attribute(c, in, which) : -1;

	if (value >= 0)
		return value;
	value = architecture_attribute(c, which);
	if (value >= 0)
		return value;
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
