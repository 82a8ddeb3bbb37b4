/* What the host allows, read from the limits file. */
#ifndef GPUSLICE_LIMITS_H
#define GPUSLICE_LIMITS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Maps and checks the file, once in a process. False: the process may not use CUDA, and one line
 * on stderr has reported the reason. */
bool limits_ready(void);

/* The cell (record index) of a GPU. -1: the GPU is not granted, and one line on stderr has reported
 * it. ordinal is the driver's number of the GPU; it is only used in a process that has no limits
 * file and takes its limits from the environment. */
int limits_cell(const uint8_t uuid[16], int ordinal);

/* The memory limit of a cell now, in bytes. */
uint64_t limits_bytes(int cell);

/* The bytes that the host now expects one context on the GPU of a cell to take; 0: it does not
 * know, and nothing is charged. */
uint64_t limits_context_bytes(int cell);

/* The bytes that this container has on the GPU of a cell beyond what is charged here, as the host
 * measured them: modules, the growth of contexts, allocations of libraries that bypass the
 * limiter. */
uint64_t limits_residue_bytes(int cell);
/* The bytes of a cell that can be charged: the limit without the residue. */
uint64_t limits_room(int cell);

/* How the driver takes memory of the GPU of a cell: in whole pages, but allocations of up to `small`
 * bytes share pages. page 0: to the byte. */
struct limits_pages {
	uint64_t page, small;
};
struct limits_pages limits_pages(int cell);

/* The bytes of the limit that may lie on the GPU, where the node grants more memory than its
 * GPUs have; the rest may be in the host's memory. 0: all of the limit may lie on the GPU. */
uint64_t limits_physical_bytes(int cell);

/* At the first use of memory that can't be moved to the host's: one line on stderr if part of the
 * cell's limit may only be in the host's. */
void limits_warn_unmovable(int cell);

/* The compute share of a cell now, in percent. */
struct limits_share {
	uint8_t percent;      /* 0: none */
	uint8_t soft_percent; /* 0: none */
	bool force, disabled; /* the policy */
};
struct limits_share limits_share(int cell);
/* The container's name in the tables of turns; 0: it has none. */
uint64_t limits_turn_id(void);
/* The counter that the host increments after each rewrite; NULL: there is no file. */
const _Atomic uint64_t *limits_generation(void);

/* Whether there is no file and the environment has the limits; then nothing is shared with other
 * processes unless a usage file is named. */
bool limits_from_environment(void);

/* Whether no agent measures what the driver takes of a cell's GPU beyond the charges. */
bool limits_unmeasured(int cell);
/* Whether a process measures that itself before its first allocation in a context. */
bool limits_measured_first(int cell);
/* The UUID of the GPU of a cell of the file, as text. */
const char *limits_name(int cell);

/* Whether the container has MIG devices, and so no whole GPU. */
bool limits_mig(void);

/* Whether cell i, 0 to VGPU_MAX_DEVICES - 1, is of a GPU that is granted. */
bool limits_granted(int cell);

/* The number of records in the file, and the UUID of the GPU of a cell. */
int limits_count(void);
const uint8_t *limits_uuid(int cell);

#endif
