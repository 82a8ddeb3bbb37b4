/* Symbols are looked up in objects in the order in which they were loaded. A driver's
 * library in front of this one (LD_PRELOAD goes before /etc/ld.so.preload) would answer
 * all calls of the program itself, and the limiter would never run. So the constructor, which does
 * nothing else, checks the few objects before this one, and ends the process if one of them is
 * the driver. */
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loader.h"
#include "log.h"

static void refuse(const char *path)
{
	static _Atomic unsigned once;

	log_line(&once, "%s is loaded before the limiter, so the program would pass the limits of this container: the process ends. "
	    "Remove it from LD_PRELOAD", path);
	syscall(SYS_exit_group, 127);
}

__attribute__((constructor)) static void check_order(void)
{
	const char *driver = loader_driver_in_front();

	if (driver)
		refuse(driver);
}
