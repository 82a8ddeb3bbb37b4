/* Open addressing with linear probing and backward-shift deletion: no tombstones,
 * so its cost does not grow with its history. Sharded by hash, with one lock per shard.
 * A signal handler that has interrupted its thread under the lock of a shard uses the next ones. */
#include "ledger.h"

#include <string.h>
#include <sys/mman.h>

static uint64_t hash_of(uint64_t kind, uint64_t key)
{
	uint64_t h = (key ^ kind << 56) * 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio */

	return h ^ h >> 29;
}

/* The i-th shard to look for a hash in; the first is its own. */
static struct ledger_shard *shard_of(struct ledger *ledger, uint64_t hash, int i)
{
	return &ledger->shards[((hash >> 58) + (uint64_t)i) % LEDGER_SHARDS];
}

static uint64_t places(const struct ledger_shard *s)
{
	return s->places ? s->places : LEDGER_FIRST_PLACES;
}

static struct ledger_entry *entries(struct ledger_shard *s)
{
	return s->places ? s->entries : s->first;
}

static uint64_t home(const struct ledger_entry *e, uint64_t mask)
{
	return hash_of(e->kind, e->key) & mask;
}

static void insert(struct ledger_entry *table, uint64_t mask, const struct ledger_entry *entry)
{
	uint64_t i = home(entry, mask);

	while (table[i].kind)
		i = (i + 1) & mask;
	table[i] = *entry;
}

static bool grow(struct ledger_shard *s)
{
	uint64_t old = places(s), new = old * 4;
	struct ledger_entry *from = entries(s);
	struct ledger_entry *to = mmap(NULL, new * sizeof(*to), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (to == MAP_FAILED)
		return false;
	for (uint64_t i = 0; i < old; i++)
		if (from[i].kind)
			insert(to, new - 1, &from[i]);
	if (s->places)
		munmap(from, old * sizeof(*from));
	s->entries = to;
	s->places = new;
	return true;
}

static struct ledger_shard *shard_for(struct ledger *ledger, uint64_t hash)
{
	struct ledger_shard *s = shard_of(ledger, hash, 0);

	for (int i = 1; __builtin_expect(lock_mine(&s->lock), 0); i++) {
		if (i == LEDGER_SHARDS)
			return NULL;
		/* Relaxed: the lock of the shard orders it for a thread that got the key from this one. */
		atomic_store_explicit(&ledger->displaced, true, memory_order_relaxed);
		s = shard_of(ledger, hash, i);
	}
	return s;
}

bool ledger_put(struct ledger *ledger, struct ledger_entry entry)
{
	struct ledger_shard *s = shard_for(ledger, hash_of(entry.kind, entry.key));

	if (!s)
		return false;

	/* Relaxed: stamps need only be distinct and rising. */
	entry.stamp = atomic_fetch_add_explicit(&ledger->stamp, 1, memory_order_relaxed) + 1;
	lock_take(&s->lock);
	bool room = ((uint64_t)s->count + 1) * 4 <= places(s) * 3 || grow(s);
	if (room) {
		insert(entries(s), places(s) - 1, &entry);
		s->count++;
	}
	lock_give(&s->lock);
	return room;
}

/* Empties place i and closes the gap: a later entry of the same run moves in if
 * its home is not behind the gap. */
static void erase(struct ledger_shard *s, uint64_t i)
{
	struct ledger_entry *table = entries(s);
	uint64_t mask = places(s) - 1;

	for (uint64_t j = (i + 1) & mask; table[j].kind; j = (j + 1) & mask) {
		if (((j - home(&table[j], mask)) & mask) < ((j - i) & mask))
			continue;
		table[i] = table[j];
		i = j;
	}
	memset(&table[i], 0, sizeof(table[i]));
	s->count--;
}

static bool seek_in(struct ledger_shard *s, enum ledger_kind kind, uint64_t key, struct ledger_entry *out, bool take)
{
	uint64_t hash = hash_of(kind, key);
	bool found = false;

	if (__builtin_expect(lock_mine(&s->lock), 0))
		return false; /* if it is here, it stays charged */
	lock_take(&s->lock);
	struct ledger_entry *table = entries(s);
	uint64_t mask = places(s) - 1;
	for (uint64_t i = hash & mask; table[i].kind && !found; i = (i + 1) & mask) {
		if (table[i].key != key || table[i].kind != kind)
			continue;
		*out = table[i];
		if (take)
			erase(s, i);
		found = true;
		break;
	}
	lock_give(&s->lock);
	return found;
}

static bool seek(struct ledger *ledger, enum ledger_kind kind, uint64_t key, struct ledger_entry *out, bool take)
{
	uint64_t hash = hash_of(kind, key);
	bool found = seek_in(shard_of(ledger, hash, 0), kind, key, out, take);

	if (__builtin_expect(found || !atomic_load_explicit(&ledger->displaced, memory_order_relaxed), 1))
		return found;
	for (int i = 1; i < LEDGER_SHARDS && !found; i++)
		found = seek_in(shard_of(ledger, hash, i), kind, key, out, take);
	return found;
}

bool ledger_take(struct ledger *ledger, enum ledger_kind kind, uint64_t key, struct ledger_entry *out)
{
	return seek(ledger, kind, key, out, true);
}

bool ledger_find(struct ledger *ledger, enum ledger_kind kind, uint64_t key, struct ledger_entry *out)
{
	return seek(ledger, kind, key, out, false);
}

uint64_t ledger_stamp(struct ledger *ledger)
{
	return atomic_load_explicit(&ledger->stamp, memory_order_relaxed);
}

static void drop_in_shard(struct ledger_shard *s, uint64_t context, uint64_t stamp,
                          void (*each)(const struct ledger_entry *, void *), void *data)
{
	struct ledger_entry *table = entries(s);

	for (uint64_t i = 0; i < places(s);) {
		if (!table[i].kind || table[i].context != context || table[i].stamp > stamp) {
			i++;
			continue;
		}
		each(&table[i], data);
		erase(s, i); /* another entry may be here now: check this place again */
	}
}

void ledger_drop(struct ledger *ledger, uint64_t context, uint64_t stamp,
                 void (*each)(const struct ledger_entry *, void *), void *data)
{
	for (int i = 0; i < LEDGER_SHARDS; i++) {
		struct ledger_shard *s = &ledger->shards[i];

		if (lock_mine(&s->lock))
			continue;
		lock_take(&s->lock);
		drop_in_shard(s, context, stamp, each, data);
		lock_give(&s->lock);
	}
}
