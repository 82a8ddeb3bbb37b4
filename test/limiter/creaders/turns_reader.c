#include "peers.c"
#include "table.c"
#include "lag.c"

#include "creaders.h"

void creaders_table(const void *file, uint64_t id, struct shares *out)
{
	static struct vgpu_table table;

	memcpy((void *)&table, file, sizeof(table));
	atomic_store(&tables[0], &table);
	*out = (struct shares){ .valid = false };
	table_read(0, id, out);
}

void creaders_turn(struct vgpu_turn *turn, const void *peer, struct creaders_turn *t)
{
	struct view v = { .now = t->now, .weight = 0.3, .ceiling = t->ceiling, .low = t->low, .count = 1 };
	struct vgpu_turn own = { .words.looked = t->now };
	struct vgpu_turn_words words;
	struct span span = { t->from, t->to, t->ns };

	memcpy((void *)&words, peer, sizeof(words));
	v.peers[0] = (struct peer){ .id = 2, .weight = 0.7, .low = t->peer_low };
	fill(&v.peers[0], &words, v.now);
	lag_weigh(turn, &v);
	t->charged = lag_step(turn, &v, &span, t->process);
	t->contended = lag_contended(turn, &v);
	t->may_go = lag_may_go(turn, &own, &v);
}
