/* One pool of nodes, hashed by kind and key into chains. Nodes are known by their
 * number, because the pool moves when it grows. */
#include "backing.h"

#include <sys/mman.h>

#include "exported.h"
#include "process.h"
#include "quiet.h"
#include "reserve.h"

enum { MEMORY = 0, FIRST_ROOM = 256, LARGEST_ROOM = 1 << 30 };

struct backing_node {
	uint64_t key;     /* handle, address or array */
	uint64_t size;
	uint32_t next;    /* in its bucket, in a caller's chain, or among the free */
	uint32_t of;      /* of a mapping: its memory; 0: it is not this process's */
	uint32_t uses;    /* of memory: handles, mappings, and calls under way */
	uint32_t handles; /* of memory: references by handle */
	uint32_t leaving; /* of memory: how many of `handles` are being released */
	uint32_t parked;  /* of memory that is parked: the next one */
	uint8_t kind;     /* MEMORY or a place */
	bool is_parked;
	bool exported;    /* its charge is kept when it ends here */
	uint8_t cell;     /* of memory */
	uint16_t from;    /* of an import that is charged elsewhere: 1 + the slot; 0: charged here */
};

static uint32_t *bucket(struct backing *b, int kind, uint64_t key)
{
	uint64_t h = (key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio */

	return &b->buckets[(h ^ h >> 29) >> 20 & (b->room - 1)];
}

/* At the head: of two with one key the newer is found. */
static void link_in(struct backing *b, uint32_t node)
{
	uint32_t *head = bucket(b, b->nodes[node].kind, b->nodes[node].key);

	b->nodes[node].next = *head;
	*head = node;
}

static void *fresh(uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

static bool grow_nodes(struct backing *b, uint64_t room)
{
	void *nodes = b->room ? mremap(b->nodes, b->room * sizeof(*b->nodes), room * sizeof(*b->nodes), MREMAP_MAYMOVE)
	                      : fresh(room * sizeof(*b->nodes));

	if (!nodes || nodes == MAP_FAILED)
		return false;
	b->nodes = nodes;
	return true;
}

static bool grow(struct backing *b)
{
	uint64_t old = b->room, room = old ? old * 2 : FIRST_ROOM;
	uint32_t *from = b->buckets, *to = room <= LARGEST_ROOM ? fresh(room * sizeof(*to)) : NULL;

	if (!to)
		return false;
	if (!grow_nodes(b, room)) {
		munmap(to, room * sizeof(*to));
		return false;
	}
	b->buckets = to;
	b->room = room;
	for (uint64_t i = 0; i < old; i++) {
		for (uint32_t node = from[i], next; node; node = next) {
			next = b->nodes[node].next;
			link_in(b, node);
		}
	}
	if (old)
		munmap(from, old * sizeof(*from));
	else
		b->used = 1; /* number 0 is no node */
	return true;
}

/* A node that is in no table; 0: no memory. */
static uint32_t new_node(struct backing *b)
{
	uint32_t node = b->free;

	if (node)
		b->free = b->nodes[node].next;
	else if (b->used < b->room || grow(b))
		node = (uint32_t)b->used++;
	if (node)
		b->nodes[node] = (struct backing_node){ 0 };
	return node;
}

static void free_node(struct backing *b, uint32_t node)
{
	b->nodes[node].next = b->free;
	b->free = node;
}

static void unlink_node(struct backing *b, uint32_t node)
{
	uint32_t *at = bucket(b, b->nodes[node].kind, b->nodes[node].key);

	while (*at != node)
		at = &b->nodes[*at].next;
	*at = b->nodes[node].next;
}

static uint32_t find(struct backing *b, int kind, uint64_t key)
{
	uint32_t node = b->room ? *bucket(b, kind, key) : 0;

	while (node && (b->nodes[node].key != key || b->nodes[node].kind != kind))
		node = b->nodes[node].next;
	return node;
}

/* Memory with a reference by handle that no call is releasing. */
static uint32_t find_live(struct backing *b, uint64_t handle)
{
	uint32_t node = find(b, MEMORY, handle);

	while (node && (b->nodes[node].key != handle || b->nodes[node].kind != MEMORY ||
	                b->nodes[node].handles <= b->nodes[node].leaving))
		node = b->nodes[node].next;
	return node;
}

/* Undoes charge_hold_vmm. Relaxed: this part of the total is only shown. */
static void discharge_memory(struct process *p, int cell, uint64_t size)
{
	atomic_fetch_sub_explicit(&p->owner.slot->cells[cell].vmm, size, memory_order_relaxed);
	reserve_undo(p, cell, size);
}

static void end_memory(struct process *p, uint32_t memory)
{
	struct backing *b = &p->backing;

	unlink_node(b, memory);
	if (b->nodes[memory].from)
		exported_import_end(p, b->nodes[memory].from - 1);
	else if (!b->nodes[memory].exported)
		discharge_memory(p, b->nodes[memory].cell, b->nodes[memory].size);
	free_node(b, memory);
}

/* A call that is under way may have got a reference before the last known one ended. Then it is
 * not known whether this use was the last, and the memory is parked until that call ends. */
static void drop_use(struct process *p, uint32_t memory)
{
	struct backing *b = &p->backing;
	struct backing_node *m = &b->nodes[memory];

	if (--m->uses || m->is_parked)
		return;
	if (!b->retaining) {
		end_memory(p, memory);
		return;
	}
	m->is_parked = true;
	m->parked = b->parked;
	b->parked = memory;
}

static void end_parked(struct process *p)
{
	struct backing *b = &p->backing;

	for (uint32_t memory = b->parked, next; memory; memory = next) {
		next = b->nodes[memory].parked;
		b->nodes[memory].is_parked = false;
		if (!b->nodes[memory].uses)
			end_memory(p, memory);
	}
	b->parked = 0;
}

static bool add(struct process *p, struct backing_node memory)
{
	struct backing *b = &p->backing;

	uint64_t before = quiet_take(&b->lock);
	uint32_t node = new_node(b);
	if (node) {
		b->nodes[node] = memory;
		link_in(b, node);
	}
	quiet_give(&b->lock, before);
	return node != 0;
}

bool backing_add(struct process *p, uint64_t handle, uint64_t size, int cell)
{
	return add(p, (struct backing_node){ .key = handle, .size = size, .uses = 1, .handles = 1, .kind = MEMORY, .cell = (uint8_t)cell });
}

bool backing_add_imported(struct process *p, uint64_t handle, int slot)
{
	return add(p, (struct backing_node){ .key = handle, .uses = 1, .handles = 1, .kind = MEMORY, .from = (uint16_t)(slot + 1) });
}

uint32_t backing_release_begin(struct process *p, uint64_t handle)
{
	struct backing *b = &p->backing;

	uint64_t before = quiet_take(&b->lock);
	uint32_t memory = find_live(b, handle);
	if (memory)
		b->nodes[memory].leaving++;
	quiet_give(&b->lock, before);
	return memory;
}

void backing_release_end(struct process *p, uint32_t memory, bool done)
{
	struct backing *b = &p->backing;

	if (!memory)
		return;
	uint64_t before = quiet_take(&b->lock);
	b->nodes[memory].leaving--;
	if (done) {
		b->nodes[memory].handles--;
		drop_use(p, memory);
	}
	quiet_give(&b->lock, before);
}

uint32_t backing_export_begin(struct process *p, uint64_t handle, uint32_t *slot)
{
	struct backing *b = &p->backing;

	uint64_t before = quiet_take(&b->lock);
	uint32_t memory = find_live(b, handle);
	if (memory) {
		struct backing_node *m = &b->nodes[memory];

		m->uses++;
		*slot = m->from ? m->from - 1u : (uint32_t)(p->owner.slot - p->usage->slots);
		exported_add(p, m->cell, m->size);
	}
	quiet_give(&b->lock, before);
	return memory;
}

void backing_export_end(struct process *p, uint32_t memory, bool done)
{
	struct backing *b = &p->backing;

	if (!memory)
		return;
	uint64_t before = quiet_take(&b->lock);
	struct backing_node *m = &b->nodes[memory];
	if (!done || m->exported) /* memory counts once, even if it is exported several times */
		exported_undo(p, m->cell, m->size);
	m->exported |= done;
	drop_use(p, memory);
	quiet_give(&b->lock, before);
}

bool backing_map_begin(struct process *p, uint64_t handle, uint32_t *mapping)
{
	struct backing *b = &p->backing;

	uint64_t before = quiet_take(&b->lock);
	uint32_t node = *mapping = new_node(b);
	if (node) {
		uint32_t memory = find_live(b, handle);
		/* A handle that is being released can still be mapped before the release. */
		b->nodes[node].of = memory ? memory : find(b, MEMORY, handle);
		if (b->nodes[node].of)
			b->nodes[b->nodes[node].of].uses++;
	}
	quiet_give(&b->lock, before);
	return node != 0;
}

static void end_mapping(struct process *p, uint32_t node)
{
	uint32_t memory = p->backing.nodes[node].of;

	free_node(&p->backing, node);
	if (memory)
		drop_use(p, memory);
}

/* Mappings of memory that is not charged here are in the table too: a range that is
 * unmapped may have both. */
void backing_map_end(struct process *p, uint32_t mapping, enum backing_place place, uint64_t at, uint64_t size, bool done)
{
	struct backing *b = &p->backing;

	uint64_t before = quiet_take(&b->lock);
	if (done) {
		struct backing_node *m = &b->nodes[mapping];

		m->key = at;
		m->size = size;
		m->kind = place;
		link_in(b, mapping);
	} else {
		end_mapping(p, mapping);
	}
	quiet_give(&b->lock, before);
}

/* The driver refuses a range that does not begin and end with mappings. So the loop ends at the
 * first address where no mapping begins. All mappings in an array have the same key. */
uint32_t backing_unmap_begin(struct process *p, enum backing_place place, uint64_t at, uint64_t size)
{
	struct backing *b = &p->backing;
	uint32_t chain = 0, node = 0;

	uint64_t before = quiet_take(&b->lock);
	for (uint64_t done = 0; done < size && (node = find(b, place, at)) != 0;) {
		struct backing_node *m = &b->nodes[node];

		unlink_node(b, node);
		m->next = chain;
		chain = node;
		if (place == BACKING_ARRAY)
			continue;
		at += m->size;
		done += m->size;
	}
	quiet_give(&b->lock, before);
	return chain;
}

void backing_unmap_end(struct process *p, uint32_t chain, bool done)
{
	struct backing *b = &p->backing;

	if (!chain)
		return;
	uint64_t before = quiet_take(&b->lock);
	for (uint32_t node = chain, next; node; node = next) {
		next = b->nodes[node].next;
		if (done)
			end_mapping(p, node);
		else
			link_in(b, node);
	}
	quiet_give(&b->lock, before);
}

void backing_retain_begin(struct process *p)
{
	uint64_t before = quiet_take(&p->backing.lock);
	p->backing.retaining++;
	quiet_give(&p->backing.lock, before);
}

void backing_retain_end(struct process *p, bool done, uint64_t handle)
{
	struct backing *b = &p->backing;

	uint64_t before = quiet_take(&b->lock);
	uint32_t memory = done ? find(b, MEMORY, handle) : 0;
	if (memory) {
		b->nodes[memory].handles++;
		b->nodes[memory].uses++;
	}
	if (!--b->retaining)
		end_parked(p);
	quiet_give(&b->lock, before);
}
