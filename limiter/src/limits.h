/* What the host allows, read from the limits file. */
#ifndef GPUSLICE_LIMITS_H
#define GPUSLICE_LIMITS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Maps and checks the file, once in a process. False: everything is denied, and
 * one line on stderr has said why. */
bool limits_ready(void);

/* The cell (record index) of a GPU, or -1: not granted, which has been said.
 * ordinal is the driver's number of the GPU; it counts only in a process that
 * has no limits file and takes its limits from the environment. */
int limits_cell(const uint8_t uuid[16], int ordinal);

/* The memory limit of a cell as it is now. */
uint64_t limits_bytes(int cell);

/* What one context on the GPU of a cell takes, as the host expects it now; 0:
 * it does not know, and nothing is charged. */
uint64_t limits_context_bytes(int cell);

/* What the host sees this container have of the GPU beyond what is charged here:
 * modules, what contexts grow by, what libraries take without us. */
uint64_t limits_residue_bytes(int cell);
/* What may be charged: the limit without that. */
uint64_t limits_room(int cell);

/* Of the limit, what may lie on the GPU, where the node grants more memory than its
 * GPUs have; the rest may be in the host's memory. 0: all of it is the GPU's. */
uint64_t limits_physical_bytes(int cell);

/* The share of compute time of a cell as it is now (cores.h); 0: not limited. */
uint32_t limits_core_rate(int cell);
/* What the host counts up after each rewrite; NULL: there is no file. */
const _Atomic uint64_t *limits_generation(void);

/* Whether there is no file and the environment is used; then nothing is shared
 * with other processes unless a usage file is named. */
bool limits_from_environment(void);

/* Whether the container has MIG devices, and so no whole GPU. */
bool limits_mig(void);

/* Whether cell i, 0 to VGPU_MAX_DEVICES - 1, is of a GPU that is granted. */
bool limits_granted(int cell);

/* How many records the file has, and of which GPU record i is. */
int limits_count(void);
const uint8_t *limits_uuid(int cell);

#endif
