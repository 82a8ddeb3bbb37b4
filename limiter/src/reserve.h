/* Charges bytes of a cell to the container's limit, and gives them back. */
#ifndef GPUSLICE_RESERVE_H
#define GPUSLICE_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "process.h"
#include "suspend.h"

/* Charges bytes of a cell to this process. With cell LEDGER_EVERY_CELL, charges them on every
 * granted GPU, or on none. False: they do not fit beside what all processes of the container
 * have, and nothing is charged. */
bool reserve(struct process *p, int cell, uint64_t bytes);
/* Charges bytes that may lie in the host's memory: they must fit the limit, but the part of the
 * limit that may lie on the GPU does not count. cell and the result: as for reserve. After it
 * returns true the caller calls reserve_spilled with the same cell and bytes, and it calls
 * reserve_spilled_undo before reserve_undo. */
bool reserve_spilling(struct process *p, int cell, uint64_t bytes);
/* Marks charged bytes as memory that may lie in the host's. */
void reserve_spilled(struct process *p, int cell, uint64_t bytes);
/* Removes that mark. */
void reserve_spilled_undo(struct process *p, int cell, uint64_t bytes);
/* Counts all bytes of slots of checkpointed processes again if they fit, on every granted GPU. False:
 * they do not, and are marked still. Waits as a reservation does. */
bool reserve_again(struct process *p, const struct suspended *set);
/* Charges bytes of one cell whether they fit or not, because the driver has taken them already. */
void reserve_force(struct process *p, int cell, uint64_t bytes);
/* Gives charged bytes of a cell, or of every granted GPU (LEDGER_EVERY_CELL), back. */
void reserve_undo(struct process *p, int cell, uint64_t bytes);
/* Holds bytes of a cell for some milliseconds without charging them: an allocation that they leave no room
 * for waits for their end. False: they do not fit. */
bool reserve_briefly(struct process *p, int cell, uint64_t bytes);
void reserve_briefly_undo(struct process *p, int cell, uint64_t bytes);
/* Counts an allocation that was refused for lack of room; the number is only displayed. */
void reserve_refused(struct process *p, int cell);

#endif
