#include "crc32.h"

/* Bit by bit: it covers 28 and 120 bytes once in a process, no table is worth it. */
uint32_t crc32_add(uint32_t crc, const void *bytes, size_t size)
{
	const uint8_t *at = bytes;

	crc = ~crc;
	while (size--) {
		crc ^= *at++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0xedb88320u & -(crc & 1));
	}
	return ~crc;
}
