/* NVML: what monitoring programs ask of the hardware. It is healthy, at full speed, and has no fans, encoders or decoders at work. */
#include "nvml.h"

#include <string.h>

#define SAMPLING_US 167000u
#define LINK_WIDTH 16u

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO, CLOCKS };
enum { ARCHITECTURE_AMPERE = 7, ARCHITECTURE_HOPPER = 9 };

static unsigned link_generation(const struct gpu *c)
{
	return c->architecture >= ARCHITECTURE_HOPPER ? 5 : c->architecture >= ARCHITECTURE_AMPERE ? 4 : 3;
}

static nvmlReturn_t clock_of(nvmlDevice_t device, int type, unsigned *mhz)
{
	struct gpu *c;
	nvmlReturn_t r = nvml_find(device, &c);

	if (r)
		return r;
	if (!mhz || type < 0 || type >= CLOCKS)
		return NVML_ERROR_INVALID_ARGUMENT;
	*mhz = (type == CLOCK_MEMORY ? c->memory_clock_khz : c->clock_khz) / 1000;
	return NVML_SUCCESS;
}

#define CLOCK(name)                                                                     \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, int type, unsigned int *mhz)      \
	{                                                                               \
		ENTER();                                                                \
		return clock_of(device, type, mhz);                                     \
	}

CLOCK(nvmlDeviceGetClockInfo)
CLOCK(nvmlDeviceGetMaxClockInfo)
CLOCK(nvmlDeviceGetApplicationsClock)
CLOCK(nvmlDeviceGetDefaultApplicationsClock)

NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, link_generation(c))
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, link_generation(c))
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, link_generation(c))
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, c ? LINK_WIDTH : 0)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, c ? LINK_WIDTH : 0)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int, c ? 0 : 1)
NUMBER(nvmlDeviceGetBusType, int, c ? 2 : 0) /* PCIe */
NUMBER(nvmlDeviceGetDisplayMode, int, c ? 0 : 1)
NUMBER(nvmlDeviceGetPerformanceState, int, c ? 0 : 1)
NUMBER(nvmlDeviceGetPowerState, int, c ? 0 : 1)
NUMBER(nvmlDeviceGetPowerManagementMode, int, c ? 1 : 0)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, c->power_mw)
NUMBER(nvmlDeviceGetVirtualizationMode, int, c ? 0 : 1)
NUMBER(nvmlDeviceGetAccountingMode, int, c ? 0 : 1)
NUMBER(nvmlDeviceGetNumFans, unsigned int, c ? 0 : 1)
NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned int, c ? 0 : 1)
NUMBER(nvmlDeviceGetBoardId, unsigned int, c->pci_bus << 8)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, int, c ? 0 : 1)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlU64, c ? 0 : 1)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, nvmlU64, c ? 0 : 1)
NUMBER(nvmlDeviceGetDefaultEccMode, int, c ? 1 : 0)

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *current, int *pending)
{
	GPU_OR_RETURN(c, device);
	(void)c;
	if (!current || !pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	*current = *pending = 1;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, nvmlU64 *count)
{
	GPU_OR_RETURN(c, device);
	(void)c;
	if (!count || type < 0 || type > 1 || counter < 0 || counter > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, int type, int counter, int location, nvmlU64 *count)
{
	GPU_OR_RETURN(c, device);
	(void)c, (void)location;
	if (!count || type < 0 || type > 1 || counter < 0 || counter > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

/* Since Ampere; before, pages are retired. */
EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
					      unsigned int *pending, unsigned int *failed)
{
	GPU_OR_RETURN(c, device);
	if (!correctable || !uncorrectable || !pending || !failed)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (c->architecture < ARCHITECTURE_AMPERE)
		return NVML_ERROR_NOT_SUPPORTED;
	*correctable = *uncorrectable = *pending = *failed = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device)
{
	GPU_OR_RETURN(c, device);
	(void)c;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least, unsigned int *most)
{
	GPU_OR_RETURN(c, device);
	if (!least || !most)
		return NVML_ERROR_INVALID_ARGUMENT;
	*least = c->power_mw / 2;
	*most = c->power_mw;
	return NVML_SUCCESS;
}

/* Shutdown, slowdown, memory, GPU; in degrees as on data centre GPUs. */
EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, int type, unsigned int *degrees)
{
	static const unsigned thresholds[] = {95, 92, 95, 87};

	GPU_OR_RETURN(c, device);
	(void)c;
	if (!degrees || type < 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((size_t)type >= sizeof(thresholds) / sizeof(thresholds[0]))
		return NVML_ERROR_NOT_SUPPORTED;
	*degrees = thresholds[type];
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned int *kib_per_second)
{
	GPU_OR_RETURN(c, device);
	(void)c;
	if (!kib_per_second || counter < 0 || counter > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	*kib_per_second = 0;
	return NVML_SUCCESS;
}

/* Data centre GPUs have none. */
EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *percent)
{
	GPU_OR_RETURN(c, device);
	(void)c;
	return percent ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *percent)
{
	GPU_OR_RETURN(c, device);
	(void)c, (void)fan;
	return percent ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t engine_idle(nvmlDevice_t device, unsigned *percent, unsigned *period)
{
	struct gpu *c;
	nvmlReturn_t r = nvml_find(device, &c);

	if (r)
		return r;
	if (!percent || !period)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (atomic_load(&c->mig_enabled))
		return NVML_ERROR_NOT_SUPPORTED;
	*percent = 0;
	*period = SAMPLING_US;
	return NVML_SUCCESS;
}

#define ENGINE(name)                                                                                     \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *percent, unsigned int *period)       \
	{                                                                                                \
		ENTER();                                                                                 \
		return engine_idle(device, percent, period);                                             \
	}

ENGINE(nvmlDeviceGetEncoderUtilization)
ENGINE(nvmlDeviceGetDecoderUtilization)
ENGINE(nvmlDeviceGetJpgUtilization)
ENGINE(nvmlDeviceGetOfaUtilization)

/* All memory is in BAR1, which has a power of two as size. */
EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	nvmlU64 total = 1;

	GPU_OR_RETURN(c, device);
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	while (total < c->memory_bytes)
		total *= 2;
	memory->total = total;
	memory->used = 1ull << 20;
	memory->free = total - memory->used;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device, nvmlDevice_t other, int *same)
{
	GPU_OR_RETURN(c, device);
	if (!same || !nvml_gpu(other))
		return NVML_ERROR_INVALID_ARGUMENT;
	*same = c->pci_board == nvml_gpu(other)->pci_board;
	return NVML_SUCCESS;
}

/* Each field has a result of its own: none is known. */
EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	GPU_OR_RETURN(c, device);
	(void)c;
	if (count <= 0 || !values)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < count; i++)
		values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

static nvmlReturn_t none(unsigned *count)
{
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

/* These don't need an initialised library. */
EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *count)
{
	return none(count);
}

EXPORT nvmlReturn_t nvmlGetBlacklistDeviceCount(unsigned int *count)
{
	return none(count);
}

EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned int *count)
{
	ENTER();
	return none(count);
}
