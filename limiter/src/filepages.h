/* Pages of the usage file, which is sparse: if its file system is full, the first access to a page is a SIGBUS. */
#ifndef GPUSLICE_FILEPAGES_H
#define GPUSLICE_FILEPAGES_H

#include <stdbool.h>
#include <stdint.h>

/* Allocates the pages of a part of the file. False: the file system is full. */
bool filepages_allocate(int fd, uint64_t at, uint64_t bytes);

#endif
