#include "usage.c"

#include "creaders.h"

struct usage_sum creaders_sum(struct vgpu_usage *usage, int cell)
{
	struct ipcleft left = { 0 };

	usage_sum(usage, &left, cell);
	return usage_sum(usage, &left, cell);
}

void creaders_forget_usage(void)
{
	struct vgpu_usage *u = atomic_exchange(&mapped, NULL);

	if (u)
		munmap(u, VGPU_USAGE_BYTES);
}
