#include "rate.h"

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* The percentage that applies now; 0, or 100 and more: not limited.
 *
 *                     no other    contended
 *   default           -           hard
 *   force             hard        hard
 *   with a soft one   soft        what the host has found room for, hard to soft
 *   no share          -           what shares leave, as the host has measured it; 0: - */
static uint32_t percent_of(const struct vgpu_record *r)
{
	uint32_t hard = r->core_percent, soft = least(r->core_soft_percent, 100), elastic = r->core_elastic_percent;
	int contended = (r->flags & VGPU_RECORD_CONTENDED) != 0;

	if (r->policy == 2 || hard >= 100)
		return 0;
	if (hard == 0)
		return contended ? least(elastic, 100) : 0;
	if (soft > hard)
		return !contended ? soft : elastic > hard ? least(elastic, soft) : hard;
	return r->policy == 1 || contended ? hard : 0;
}

/* A blocked container gets what containers of higher priority leave, as the host has measured it,
 * and at least one percent: a launch that never returned would block every process that waits for
 * it, and if the host dies after it has set the flag, no process may stop for ever. */
uint32_t rate_of(const struct vgpu_record *r)
{
	uint32_t percent = percent_of(r), thousandths = r->core_correction ? r->core_correction : 1000;

	if (r->flags & VGPU_RECORD_BLOCKED)
		return RATE_ONE / 100 * (r->core_elastic_percent ? least(r->core_elastic_percent, 100) : 1);
	if (percent == 0 || percent >= 100)
		return 0;
	thousandths = thousandths < 250 ? 250 : least(thousandths, 4000);
	return (uint32_t)((uint64_t)RATE_ONE * percent * thousandths / 100000);
}
