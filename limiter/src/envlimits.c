#include "envlimits.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "layout.h"
#include "log.h"

static _Atomic uint64_t limits[VGPU_MAX_DEVICES];

/* The size in bytes; 0: the text is not a positive size below 2^56. */
static uint64_t parse_size(const char *text)
{
	uint64_t size = 0;
	unsigned shift = 0;

	for (; *text >= '0' && *text <= '9'; text++) {
		size = size * 10 + (uint64_t)(*text - '0');
		if (size >> 56)
			return 0;
	}
	switch (*text | 0x20) {
	case 'k': shift = 10; break;
	case 'm': shift = 20; break;
	case 'g': shift = 30; break;
	}
	if (shift)
		text++;
	return *text || size >> (56 - shift) ? 0 : size << shift;
}

static uint64_t read_variable(const char *name, uint64_t otherwise)
{
	static _Atomic unsigned once;
	const char *text = secure_getenv(name);

	if (!text)
		return otherwise;
	uint64_t size = parse_size(text);
	if (!size)
		log_line(&once, "%s=%s is not a size such as 4000m; the GPU is denied", name, text);
	return size;
}

bool envlimits_read(void)
{
	uint64_t all = read_variable("CUDA_DEVICE_MEMORY_LIMIT", 0);
	bool any = false;

	for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
		char name[40];

		snprintf(name, sizeof(name), "CUDA_DEVICE_MEMORY_LIMIT_%d", i);
		uint64_t limit = read_variable(name, all);
		/* Relaxed: every thread that reads the variables stores the same. */
		atomic_store_explicit(&limits[i], limit, memory_order_relaxed);
		any = any || limit;
	}
	return any;
}

uint64_t envlimits_bytes(int ordinal)
{
	return atomic_load_explicit(&limits[ordinal], memory_order_relaxed);
}
