/* What marking a slot does to one that has changed since it was found. */
#include <linux/futex.h>
#include <stdio.h>

#include "suspend.h"

static void try(const char *what, uint32_t owner, uint64_t start_time)
{
	static struct vgpu_slot s;
	struct suspended set = { .count = 1, .of[0] = { &s, 100, 7 } };

	s.owner = owner;
	s.start_time = start_time;
	suspend_mark_all(&set);
	printf("%s %d\n", what, suspended(&s));
	suspend_unmark_all(&set);
	if (s.owner != owner)
		puts("the owner is another");
}

int main(void)
{
	try("same", 100, 7);
	try("other thread", 101, 7);
	try("other start", 100, 8);
	try("free", 0, 7);
	try("dead", FUTEX_OWNER_DIED, 7);
	return 0;
}
