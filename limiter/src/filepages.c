#include "filepages.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Errors other than a full file system, such as a seccomp filter without fallocate, are ignored. */
bool filepages_allocate(int fd, uint64_t at, uint64_t bytes)
{
	do {
		if (syscall(SYS_fallocate, fd, 1 /* FALLOC_FL_KEEP_SIZE */, (long)at, (long)bytes) == 0)
			return true;
	} while (errno == EINTR);
	return errno != ENOSPC && errno != EDQUOT;
}
