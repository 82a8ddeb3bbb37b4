#include "filelock.h"

#include <fcntl.h>
#include <unistd.h>

#include "clock.h"

#ifndef F_OFD_SETLK /* glibc before 2.20 */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

static struct flock one_byte(int64_t byte, short type)
{
	return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
}

bool filelock_try(int fd, int64_t byte)
{
	struct flock lock = one_byte(byte, F_WRLCK);

	return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

bool filelock_share(int fd, int64_t byte)
{
	struct flock lock = one_byte(byte, F_RDLCK);

	return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

void filelock_give(int fd, int64_t byte)
{
	struct flock lock = one_byte(byte, F_UNLCK);

	fcntl(fd, F_OFD_SETLK, &lock);
}

bool filelock_wait(int fd, int64_t byte, long microseconds)
{
	uint64_t until = clock_us() + (uint64_t)microseconds;

	while (!filelock_try(fd, byte)) {
		if (clock_us() > until)
			return false;
		clock_sleep_us(50);
	}
	return true;
}

bool filelock_taken(int fd, int64_t byte)
{
	struct flock lock = one_byte(byte, F_WRLCK);

	return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}
