/* The memory with an IPC record that this process has open. */
#ifndef GPUSLICE_IPCHELD_H
#define GPUSLICE_IPCHELD_H

#include <stdint.h>

#include "layout.h"
#include "ledger.h"
#include "lock.h"

struct process;

struct ipcheld { /* fresh zeroed memory: nothing is open */
	lock_t noting; /* of what ipc.c does with the ledger; before its locks */
	lock_t lock;   /* of the rest; after them: an entry ends under one */
	uint32_t uses[VGPU_IPC_RECORDS]; /* how often this process has a record's memory open */
};

/* Before the driver opens a handle: keeps its memory charged. Returns its record; -1: it has none. */
int ipcheld_begin(struct process *p, uint64_t key);
/* It was closed, or not opened. */
void ipcheld_end(struct process *p, int record);
/* An entry with a record has left the ledger, and the driver has done so: this process has freed memory that it
 * made, or closed some that it had open. Before its charge ends. */
void ipcheld_ended(struct process *p, const struct ledger_entry *entry);

#endif
