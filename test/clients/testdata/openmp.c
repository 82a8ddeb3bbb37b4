/* Whether a region runs on the GPU, and how much memory can be had of it. */
#include <omp.h>
#include <stdio.h>

int main(void)
{
	int on_host = 1, gib = 0;

	printf("devices %d\n", omp_get_num_devices());
#pragma omp target map(from : on_host)
	on_host = omp_is_initial_device();
	printf("on host %d\n", on_host);
	while (omp_target_alloc((size_t)1 << 30, 0))
		gib++;
	printf("GiB %d\n", gib);
	return 0;
}
