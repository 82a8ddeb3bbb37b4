/* Where the files are. */
#ifndef GPUSLICE_PATHS_H
#define GPUSLICE_PATHS_H

#include <stdbool.h>

#define VGPU_DIR "/.gpuslice"
#define VGPU_LIMITS_FILE VGPU_DIR "/limits"
#define VGPU_USAGE_FILE VGPU_DIR "/usage"
#define VGPU_TURNS_DIR VGPU_DIR "/turns"

/* Returns the fixed path; or the value of the variable, if the fixed directory does not exist and
 * the program is not setuid. In a container the directory always exists. */
const char *path_or(const char *fixed, const char *variable);

/* Whether the path does not exist. */
bool path_missing(const char *path);

#endif
