/* What linkers see of a front: every name of the driver's. No loader finds one of these (the
 * Makefile empties the table that it would look in). Should something call one all the same,
 * by reading the ELF file itself, it gets 3: CUDA_ERROR_NOT_INITIALIZED, or NVML_ERROR_NOT_SUPPORTED. */
__attribute__((used)) static int not_here(void)
{
	return 3;
}

#define NAME(name) int name(void) __attribute__((alias("not_here")));
#include NAMES
