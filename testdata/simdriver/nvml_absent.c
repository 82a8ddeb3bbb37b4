/* NVML: the functions of real drivers that nothing here answers. */
#include "nvml.h"

static nvmlReturn_t absent(struct miss_row *row, const char *symbol)
{
	nvmlReturn_t r = nvml_enter(symbol);

	if (r)
		return r;
	miss(&nvml.view, row, symbol);
	return NVML_ERROR_NOT_SUPPORTED;
}

#define NVML(name)                                \
	EXPORT nvmlReturn_t name(void);           \
	nvmlReturn_t name(void)                   \
	{                                         \
		static struct miss_row row;       \
		return absent(&row, #name);       \
	}
#include "nvml_absent.def"
