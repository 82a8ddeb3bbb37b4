#include "rate.h"

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* The percentage that holds now; 0 or 100 and more: none does.
 *
 *                     alone       contended
 *   default           -           hard
 *   force             hard        hard
 *   with a soft one   soft        what the host has found room for, hard to soft
 *   no share          -           what the host says that shares leave; nothing: - */
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

/* A blocked container has what the host has found that those of higher priority leave, and
 * keeps one percent: a launch that never returned would hang whoever waits for that
 * process, and a host that died after it had set the flag must not stop anybody for ever. */
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
