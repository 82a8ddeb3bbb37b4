/* Taking bytes of a cell from the container's limit, and giving them back. */
#ifndef GPUSLICE_RESERVE_H
#define GPUSLICE_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "process.h"

/* True: the bytes are this process's; they fit with what everybody has. cell may
 * be LEDGER_EVERY_CELL: then they are so on every granted GPU, or on none. */
bool reserve(struct process *p, int cell, uint64_t bytes);
/* The same for memory that may lie in the host's: only the limit counts, not what may
 * be on the GPU. Whoever has it says so with reserve_spilled, and takes that back
 * before he undoes it. */
bool reserve_spilling(struct process *p, int cell, uint64_t bytes);
void reserve_spilled(struct process *p, int cell, uint64_t bytes);
void reserve_spilled_undo(struct process *p, int cell, uint64_t bytes);
/* The same of one cell, whether they fit or not: the driver has taken them already. */
void reserve_force(struct process *p, int cell, uint64_t bytes);
void reserve_undo(struct process *p, int cell, uint64_t bytes);
/* Counts an allocation that the program is refused for it, for people. */
void reserve_refused(struct process *p, int cell);

#endif
