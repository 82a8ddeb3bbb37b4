/* NVML's memory information, as nvidia-smi and monitors read it: the slice.
 * It needs no CUDA, takes no process slot and starts no thread. */
#include <stdbool.h>

#include "hooks.h"
#include "limits.h"
#include "usage.h"

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The 16 bytes of "GPU-8-4-4-4-12" or "MIG-…" in hexadecimal. */
static bool parse_uuid(const char *text, uint8_t out[16])
{
	int digits = 0;

	for (text += 4; *text; text++) {
		int value = digit(*text);

		if (*text == '-')
			continue;
		if (value < 0 || digits == 32)
			return false;
		out[digits / 2] = (uint8_t)(digits % 2 ? out[digits / 2] | value : value << 4);
		digits++;
	}
	return digits == 32;
}

struct slice { uint64_t total, free, used; };

static nvmlReturn_t slice_of(nvmlDevice_t device, uint64_t total, uint64_t free, struct slice *slice)
{
	char text[96] = "";
	uint8_t uuid[16];

	if (!limits_ready())
		return NVML_ERROR_UNINITIALIZED;
	nvmlReturn_t result = REAL(nvmlDeviceGetUUID)(device, text, sizeof(text));
	if (result != NVML_SUCCESS)
		return result;
	if (limits_mig() && text[0] == 'G') /* the MIG device's GPU, which nvidia-smi queries too; it is not this container's */
		return NVML_ERROR_NO_PERMISSION;
	int cell = text[0] && text[1] && text[2] && text[3] && parse_uuid(text, uuid) ? limits_cell(uuid, 0) : -1;
	if (cell < 0)
		return NVML_ERROR_NO_PERMISSION;
	uint64_t limit = limits_bytes(cell);
	bool beyond = limits_physical_bytes(cell) != 0;
	slice->total = limit < total || beyond ? limit : total;
	if (!usage_read(cell, &slice->used))
		return NVML_ERROR_UNINITIALIZED;
	slice->used += limits_residue_bytes(cell);
	slice->free = slice->used < slice->total ? slice->total - slice->used : 0;
	if (slice->free > free && !beyond)
		slice->free = free;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct slice slice;
	nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);

	if (result == NVML_SUCCESS && memory)
		result = slice_of(device, memory->total, memory->free, &slice);
	if (result != NVML_SUCCESS || !memory)
		return result;
	memory->total = slice.total;
	memory->free = slice.free;
	memory->used = slice.used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct slice slice;
	nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);

	if (result == NVML_SUCCESS && memory)
		result = slice_of(device, memory->total, memory->free, &slice);
	if (result != NVML_SUCCESS || !memory)
		return result;
	memory->total = slice.total;
	memory->reserved = 0; /* the driver's own share is not taken from the slice */
	memory->free = slice.free;
	memory->used = slice.used;
	return NVML_SUCCESS;
}
