/* What a device says of itself. */
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
	if (!device_card(ordinal))
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
	ENTER();
	if (!device_card(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	return copy_text(name, len, device_card(dev)->name);
}

static CUresult get_uuid(CUuuid *uuid, CUdevice dev)
{
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_card(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	memcpy(uuid->bytes, device_card(dev)->uuid, sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	ENTER();
	return get_uuid(uuid, dev);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	ENTER();
	return get_uuid(uuid, dev);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	ENTER();
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_card(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = card_capacity(device_card(dev));
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	ENTER();
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_card(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = card_capacity(device_card(dev)) > UINT32_MAX ? UINT32_MAX : (unsigned)card_capacity(device_card(dev));
	return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	ENTER();
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_card(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*major = (int)device_card(dev)->cc_major;
	*minor = (int)device_card(dev)->cc_minor;
	return CUDA_SUCCESS;
}

/* Numbers of CUdevice_attribute. -1: not known. Everything that needs pools, VMM, IPC or graphs says no in this version. */
static int attribute(const struct card *c, int which)
{
	switch (which) {
	case 1: /* MAX_THREADS_PER_BLOCK */
	case 2: /* MAX_BLOCK_DIM_X */
	case 3: /* MAX_BLOCK_DIM_Y */
		return 1024;
	case 4: /* MAX_BLOCK_DIM_Z */
		return 64;
	case 5: /* MAX_GRID_DIM_X */
		return 2147483647;
	case 6: /* MAX_GRID_DIM_Y */
	case 7: /* MAX_GRID_DIM_Z */
		return 65535;
	case 8: /* MAX_SHARED_MEMORY_PER_BLOCK */
		return 49152;
	case 9: /* TOTAL_CONSTANT_MEMORY */
		return 65536;
	case 10: /* WARP_SIZE */
		return 32;
	case 11: /* MAX_PITCH */
		return 2147483647;
	case 12: /* MAX_REGISTERS_PER_BLOCK */
	case 82: /* MAX_REGISTERS_PER_MULTIPROCESSOR */
		return 65536;
	case 13: /* CLOCK_RATE */
		return (int)c->clock_khz;
	case 14: /* TEXTURE_ALIGNMENT */
		return 512;
	case 15: /* GPU_OVERLAP */
	case 19: /* CAN_MAP_HOST_MEMORY */
	case 31: /* CONCURRENT_KERNELS */
	case 32: /* ECC_ENABLED */
	case 41: /* UNIFIED_ADDRESSING */
	case 78: /* STREAM_PRIORITIES_SUPPORTED */
	case 79: /* GLOBAL_L1_CACHE_SUPPORTED */
	case 80: /* LOCAL_L1_CACHE_SUPPORTED */
	case 83: /* MANAGED_MEMORY */
	case 89: /* CONCURRENT_MANAGED_ACCESS */
	case 90: /* COMPUTE_PREEMPTION_SUPPORTED */
	case 91: /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
	case 95: /* COOPERATIVE_LAUNCH */
		return 1;
	case 16: /* MULTIPROCESSOR_COUNT */
		return (int)c->sm_count;
	case 17: /* KERNEL_EXEC_TIMEOUT */
	case 18: /* INTEGRATED */
	case 20: /* COMPUTE_MODE: default */
	case 35: /* TCC_DRIVER */
	case 84: /* MULTI_GPU_BOARD */
	case 86: /* HOST_NATIVE_ATOMIC_SUPPORTED */
	case 88: /* PAGEABLE_MEMORY_ACCESS */
	case 102: /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
	case 103: /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
	case 115: /* MEMORY_POOLS_SUPPORTED */
	case 116: /* GPU_DIRECT_RDMA_SUPPORTED */
	case 132: /* MULTICAST_SUPPORTED */
		return 0;
	case 33: /* PCI_BUS_ID */
		return (int)c->pci_bus;
	case 34: /* PCI_DEVICE_ID */
		return (int)c->pci_device;
	case 36: /* MEMORY_CLOCK_RATE */
		return (int)c->memory_clock_khz;
	case 37: /* GLOBAL_MEMORY_BUS_WIDTH */
		return (int)c->bus_width;
	case 38: /* L2_CACHE_SIZE */
		return (int)c->l2_bytes;
	case 39: /* MAX_THREADS_PER_MULTIPROCESSOR */
		return (int)c->threads_per_sm;
	case 40: /* ASYNC_ENGINE_COUNT */
		return 3;
	case 50: /* PCI_DOMAIN_ID */
		return (int)c->pci_domain;
	case 75: /* COMPUTE_CAPABILITY_MAJOR */
		return (int)c->cc_major;
	case 76: /* COMPUTE_CAPABILITY_MINOR */
		return (int)c->cc_minor;
	case 81: /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
		return (int)c->shared_per_sm;
	case 85: /* MULTI_GPU_BOARD_GROUP_ID */
		return (int)c->minor;
	case 97: /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
		return (int)c->shared_optin;
	case 106: /* MAX_BLOCKS_PER_MULTIPROCESSOR */
		return c->threads_per_sm >= 2048 ? 32 : 16;
	case 134: /* NUMA_ID of host memory */
		return c->numa_node;
	default:
		return which > 0 && which < 150 ? 0 : -1;
	}
}

CUresult cuDeviceGetAttribute(int *value, int which, CUdevice dev)
{
	int v;

	ENTER();
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_card(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	v = attribute(device_card(dev), which);
	if (v == -1 && which != 134)
		return CUDA_ERROR_INVALID_VALUE;
	*value = v;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
	const struct card *c;
	char text[32];

	ENTER();
	c = device_card(dev);
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
		const struct card *c = device_card((CUdevice)i);

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
	if (!device_card(dev) || !device_card(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = 0;
	return CUDA_SUCCESS;
}
