#ifndef GPUSLICE_CRC32_H
#define GPUSLICE_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32 (IEEE 802.3) of bytes. The first argument is 0, or the result for the preceding bytes. */
uint32_t crc32_add(uint32_t crc, const void *bytes, size_t size);

#endif
