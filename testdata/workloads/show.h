/* What meminfo and meminfo-direct print of one device. */
#ifndef WORKLOADS_SHOW_H
#define WORKLOADS_SHOW_H

#include "../simdriver/cuda_api.h"

struct device_facts {
	char name[96];
	CUuuid uuid;
	size_t total, info_free, info_total;
};

void show_device(int ordinal, const struct device_facts *f);
/* Prints what NVML reports of all devices; nothing if there is no NVML. */
void show_nvml(void);

#endif
