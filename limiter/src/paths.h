/* Where the two files are. */
#ifndef GPUSLICE_PATHS_H
#define GPUSLICE_PATHS_H

#include <stdbool.h>

#define VGPU_DIR "/.gpuslice"
#define VGPU_LIMITS_FILE VGPU_DIR "/limits"
#define VGPU_USAGE_FILE VGPU_DIR "/usage"

/* The path to use: the fixed one. A variable of that name may redirect it only
 * where the fixed directory does not exist, which in a container it always does, and
 * never in a setuid program. */
const char *path_or(const char *fixed, const char *variable);

bool path_missing(const char *path);

#endif
