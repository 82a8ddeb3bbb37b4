/* Two containers that look at the same moment both take the turn: prints which may go on, then and with their next look. */
#include <stdio.h>

#include "lag.h"

static struct vgpu_turn turns[2], own[2];
static uint64_t now = 1000000000000;

static bool may_go(int i, uint64_t others_hold)
{
	struct view v = { .now = now, .weight = 0.5, .count = 1, .taken = turns[i].words.hold_until ? turns[i].words.hold_until - 3000000 : 0 };

	v.peers[0] = (struct peer){ .id = turns[1 - i].words.id, .weight = 0.5, .want_until = now + 1000000, .hold_until = others_hold,
		.processes = 1, .lag = turns[1 - i].words.lag };
	return lag_may_go(&turns[i], &own[i], &v);
}

int main(void)
{
	turns[0].words.id = 1;
	turns[1].words.id = 2;
	for (int round = 0; round < 3; round++, now += 500000) {
		uint64_t hold[2] = { turns[0].words.hold_until, turns[1].words.hold_until };
		bool first = may_go(0, hold[1]), second = may_go(1, hold[0]);

		printf("%d %d\n", first, second);
		if (round == 0)
			turns[0].words.hold_until = turns[1].words.hold_until = now + 3000000;
	}
	return 0;
}
