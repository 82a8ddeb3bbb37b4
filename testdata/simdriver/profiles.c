/*
 * The GPUs that simctl knows by name. Sizes and counts are those of NVIDIA's data sheets and of nvidia-smi on such GPUs;
 * reserved and context memory vary with driver and program and are typical values, as are the times of a switch and of an
 * event: the sources are with TestReal… in test/simdriver. The H100's are measured: docs/measurements/2026-11-26-h100.md.
 */
#include "simctl.h"

#include <string.h>
#include <strings.h>

#define MIB (1ull << 20)
#define NVIDIA_VENDOR 0x10deu

struct profile {
	const char *id;
	struct gpu gpu;
};

static const struct profile profiles[] = {
	{"H200",
	 {.name = "NVIDIA H200", .memory_bytes = 143771 * MIB, .reserved_bytes = 606 * MIB, .context_bytes = 520 * MIB,
	  .pci_device_id = 0x2335u << 16 | NVIDIA_VENDOR, .pci_subsystem_id = 0x18be10deu, .sm_count = 132,
	  .cores_per_sm = 128, .cc_major = 9, .threads_per_sm = 2048, .shared_per_sm = 233472, .shared_optin = 232448,
	  .clock_khz = 1980000, .memory_clock_khz = 3201000, .bus_width = 6144, .l2_bytes = 62914560, .architecture = 9,
	  .brand = 14, .power_mw = 700000, .max_mig = 7}},
	{"H100",
	 {.name = "NVIDIA H100 80GB HBM3", .memory_bytes = 81559 * MIB, .reserved_bytes = 480 * MIB,
	  .context_bytes = 524 * MIB, .unlisted_bytes = 6 * MIB, .init_bytes = 3 * MIB, .pci_device_id = 0x2330u << 16 | NVIDIA_VENDOR, .pci_subsystem_id = 0x16c110deu,
	  .sm_count = 132, .cores_per_sm = 128, .cc_major = 9, .threads_per_sm = 2048, .shared_per_sm = 233472,
	  .shared_optin = 232448, .clock_khz = 1980000, .memory_clock_khz = 2619000, .bus_width = 5120,
	  .l2_bytes = 52428800, .architecture = 9, .brand = 14, .power_mw = 700000, .max_mig = 7, .switch_ns = 140000,
	  .gap_ns = 1800, .start_ns = 5000, .event_ns = 1300, .sample_ms = 200, .utilization_delay_ms = 70}},
	{"A100-80GB",
	 {.name = "NVIDIA A100-SXM4-80GB", .memory_bytes = 81920 * MIB, .reserved_bytes = 640 * MIB,
	  .context_bytes = 420 * MIB, .pci_device_id = 0x20b2u << 16 | NVIDIA_VENDOR, .pci_subsystem_id = 0x146310deu,
	  .sm_count = 108, .cores_per_sm = 64, .cc_major = 8, .threads_per_sm = 2048, .shared_per_sm = 167936,
	  .shared_optin = 166912, .clock_khz = 1410000, .memory_clock_khz = 1593000, .bus_width = 5120,
	  .l2_bytes = 41943040, .architecture = 7, .brand = 14, .power_mw = 400000, .max_mig = 7}},
	{"A100-40GB",
	 {.name = "NVIDIA A100-SXM4-40GB", .memory_bytes = 40960 * MIB, .reserved_bytes = 424 * MIB,
	  .context_bytes = 420 * MIB, .pci_device_id = 0x20b0u << 16 | NVIDIA_VENDOR, .pci_subsystem_id = 0x134f10deu,
	  .sm_count = 108, .cores_per_sm = 64, .cc_major = 8, .threads_per_sm = 2048, .shared_per_sm = 167936,
	  .shared_optin = 166912, .clock_khz = 1410000, .memory_clock_khz = 1215000, .bus_width = 5120,
	  .l2_bytes = 41943040, .architecture = 7, .brand = 14, .power_mw = 400000, .max_mig = 7}},
	{"T4",
	 {.name = "Tesla T4", .memory_bytes = 15360 * MIB, .reserved_bytes = 430 * MIB, .context_bytes = 105 * MIB,
	  .pci_device_id = 0x1eb8u << 16 | NVIDIA_VENDOR, .pci_subsystem_id = 0x12a210deu, .sm_count = 40,
	  .cores_per_sm = 64, .cc_major = 7, .cc_minor = 5, .threads_per_sm = 1024, .shared_per_sm = 65536,
	  .shared_optin = 65536, .clock_khz = 1590000, .memory_clock_khz = 5001000, .bus_width = 256, .l2_bytes = 4194304,
	  .architecture = 6, .brand = 14, .power_mw = 70000}},
	{"L40S",
	 {.name = "NVIDIA L40S", .memory_bytes = 46068 * MIB, .reserved_bytes = 550 * MIB, .context_bytes = 420 * MIB,
	  .pci_device_id = 0x26b9u << 16 | NVIDIA_VENDOR, .pci_subsystem_id = 0x185110deu, .sm_count = 142,
	  .cores_per_sm = 128, .cc_major = 8, .cc_minor = 9, .threads_per_sm = 1536, .shared_per_sm = 102400,
	  .shared_optin = 101376, .clock_khz = 2520000, .memory_clock_khz = 9001000, .bus_width = 384,
	  .l2_bytes = 100663296, .architecture = 8, .brand = 14, .power_mw = 350000}},
	{"B200",
	 {.name = "NVIDIA B200", .memory_bytes = 183359 * MIB, .reserved_bytes = 720 * MIB, .context_bytes = 560 * MIB,
	  .pci_device_id = 0x2901u << 16 | NVIDIA_VENDOR, .pci_subsystem_id = 0x199910deu, .sm_count = 148,
	  .cores_per_sm = 128, .cc_major = 10, .threads_per_sm = 2048, .shared_per_sm = 233472, .shared_optin = 232448,
	  .clock_khz = 1965000, .memory_clock_khz = 3996000, .bus_width = 8192, .l2_bytes = 132644864,
	  .architecture = 10, .brand = 14, .power_mw = 1000000, .max_mig = 7, .process_utilization = UTILIZATION_INFO}},
	{"GB200", /* of machines with arm64 CPUs */
	 {.name = "NVIDIA GB200", .memory_bytes = 189471 * MIB, .reserved_bytes = 760 * MIB, .context_bytes = 560 * MIB,
	  .pci_device_id = 0x2941u << 16 | NVIDIA_VENDOR, .pci_subsystem_id = 0x204610deu, .sm_count = 152,
	  .cores_per_sm = 128, .cc_major = 10, .threads_per_sm = 2048, .shared_per_sm = 233472, .shared_optin = 232448,
	  .clock_khz = 2062000, .memory_clock_khz = 3996000, .bus_width = 8192, .l2_bytes = 132644864,
	  .architecture = 10, .brand = 14, .power_mw = 1200000, .max_mig = 7, .process_utilization = UTILIZATION_INFO}},
	{"RTX-PRO-6000",
	 {.name = "NVIDIA RTX PRO 6000 Blackwell Server Edition", .memory_bytes = 97887 * MIB, .reserved_bytes = 640 * MIB,
	  .context_bytes = 560 * MIB, .pci_device_id = 0x2bb5u << 16 | NVIDIA_VENDOR, .pci_subsystem_id = 0x204e10deu,
	  .sm_count = 188, .cores_per_sm = 128, .cc_major = 12, .threads_per_sm = 1536, .shared_per_sm = 102400,
	  .shared_optin = 101376, .clock_khz = 2430000, .memory_clock_khz = 12481000, .bus_width = 512,
	  .l2_bytes = 134217728, .architecture = 10, .brand = 14, .power_mw = 600000, .max_mig = 4,
	  .process_utilization = UTILIZATION_INFO}},
};

#define PROFILE_COUNT (sizeof(profiles) / sizeof(profiles[0]))

void list_profiles(FILE *out)
{
	for (size_t i = 0; i < PROFILE_COUNT; i++)
		fprintf(out, "%s%s", i ? ", " : "", profiles[i].id);
}

/* GPU-0000000n-5151-4000-8000-00000000000n for minor n - 1: easy to name in a test, distinct in its first digits. */
static void default_uuid(uint8_t uuid[16], unsigned n)
{
	static const uint8_t middle[6] = {0x51, 0x51, 0x40, 0x00, 0x80, 0x00};

	memset(uuid, 0, 16);
	memcpy(uuid + 4, middle, sizeof(middle));
	uuid[3] = uuid[15] = (uint8_t)(n + 1);
}

bool gpu_from_profile(struct gpu *c, const char *id, unsigned position)
{
	for (size_t i = 0; i < PROFILE_COUNT; i++) {
		if (strcasecmp(profiles[i].id, id) != 0)
			continue;
		memcpy(c, &profiles[i].gpu, sizeof(*c));
		snprintf(c->profile, sizeof(c->profile), "%s", profiles[i].id);
		c->kernel_ns = 10000;
		c->slice_ns = 2000000;
		c->switch_ns = c->switch_ns ? c->switch_ns : 20000;
		c->event_ns = c->event_ns ? c->event_ns : 2500;
		c->queue_depth = 1024;
		c->sample_ms = c->sample_ms ? c->sample_ms : 167;
		c->page_bytes = 2 << 20;
		c->small_bytes = 1 << 20;
		c->minor = position;
		c->pci_bus = 0x10 + position;
		c->pci_root = c->pci_upper = c->pci_switch = c->pci_board = position;
		default_uuid(c->uuid, position);
		return true;
	}
	return false;
}
