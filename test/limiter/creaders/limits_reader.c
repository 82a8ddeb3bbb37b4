#include "clock.h"
/* A record that stays half-written is looked at a thousand times: without the naps. */
#define clock_nap_ns(ns) ((void)(ns))

#include "limits.c"

#include "creaders.h"

void creaders_forget(void)
{
	const struct vgpu_limits *l = atomic_exchange(&mapped, NULL);

	creaders_forget_usage();
	if (l)
		munmap((void *)l, VGPU_LIMITS_BYTES);
	atomic_store(&from_environment, false);
	for (int i = 0; i < VGPU_MAX_DEVICES; i++)
		atomic_store(&checked[i], 0);
}
