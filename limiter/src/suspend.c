#include "suspend.h"

void suspend_unmark(struct vgpu_slot *s)
{
	atomic_fetch_and(&s->owner, ~VGPU_OWNER_SUSPENDED);
}

void suspend_unmark_all(const struct suspended *set)
{
	for (int i = 0; i < set->count; i++)
		suspend_unmark(set->of[i].slot);
}

static void mark(struct vgpu_slot *s, uint32_t owner, uint64_t start_time)
{
	if (atomic_load(&s->start_time) != start_time ||
	    !atomic_compare_exchange_strong(&s->owner, &owner, owner | VGPU_OWNER_SUSPENDED))
		return;
	/* In between the slot can have become that of another process, with the same TID. */
	if (atomic_load(&s->start_time) != start_time)
		suspend_unmark(s);
}

void suspend_mark_all(const struct suspended *set)
{
	for (int i = 0; i < set->count; i++)
		mark(set->of[i].slot, set->of[i].owner, set->of[i].start_time);
}
