#include "usage.c"

#include "creaders.h"

void creaders_forget_usage(void)
{
	struct vgpu_usage *u = atomic_exchange(&mapped, NULL);

	if (u)
		munmap(u, VGPU_USAGE_BYTES);
}
