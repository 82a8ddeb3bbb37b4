/* What this process has from the driver: for each address or handle its size in bytes, its GPU and
 * its context. Private memory, takes constant time, grows. */
#ifndef GPUSLICE_LEDGER_H
#define GPUSLICE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "lock.h"

enum ledger_kind { LEDGER_LINEAR = 1, LEDGER_ARRAY, LEDGER_MIPMAP, LEDGER_CONTEXT, LEDGER_VMM, LEDGER_GRAPH, LEDGER_GRAPH_RUN, LEDGER_SPILLED, LEDGER_MANAGED, LEDGER_GROWTH, LEDGER_GREEN, LEDGER_IPC };

/* In place of a cell: every GPU that is granted. */
enum { LEDGER_EVERY_CELL = 255 };

/* In a size: of a piece in a shared page (pages.h); and 1 + the IPC record of the memory, 0: it has none. */
#define LEDGER_SMALL ((uint64_t)1 << 63)
#define LEDGER_RECORD_BIT 52
#define LEDGER_RECORD ((uint64_t)1023 << LEDGER_RECORD_BIT)
#define LEDGER_BYTES (((uint64_t)1 << LEDGER_RECORD_BIT) - 1)

struct ledger_entry {
	uint64_t key; /* address or handle, unique within its kind */
	uint64_t size;
	uint64_t context;
	uint64_t stamp : 48; /* rises with each entry; see ledger_drop */
	uint64_t kind : 8;   /* 0: this place is empty */
	uint64_t cell : 8; /* or LEDGER_EVERY_CELL */
};

enum { LEDGER_SHARDS = 64, LEDGER_FIRST_PLACES = 32 };

struct ledger_shard {
	lock_t lock;
	uint32_t count;
	uint64_t places; /* a power of two; 0: `first` is used */
	struct ledger_entry *entries;
	struct ledger_entry first[LEDGER_FIRST_PLACES];
};

struct ledger { /* fresh zeroed memory is an empty ledger */
	_Atomic uint64_t stamp;
	_Atomic bool displaced; /* an entry may be in another shard than its own */
	struct ledger_shard shards[LEDGER_SHARDS];
};

/* Adds an entry and sets its stamp. False: there is no memory for it. */
bool ledger_put(struct ledger *ledger, struct ledger_entry entry);
/* Removes the entry of a key and copies it to *out. False: there is none. */
bool ledger_take(struct ledger *ledger, enum ledger_kind kind, uint64_t key, struct ledger_entry *out);

/* Copies the entry of a key to *out. False: there is none. */
bool ledger_find(struct ledger *ledger, enum ledger_kind kind, uint64_t key, struct ledger_entry *out);

/* The stamp of the newest entry. */
uint64_t ledger_stamp(struct ledger *ledger);
/* Removes all entries of a context that are not newer than stamp, and calls each for every one. */
void ledger_drop(struct ledger *ledger, uint64_t context, uint64_t stamp,
                 void (*each)(const struct ledger_entry *, void *), void *data);

#endif
