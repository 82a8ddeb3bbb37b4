#include "paths.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

bool path_missing(const char *path)
{
	return access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

const char *path_or(const char *fixed, const char *variable)
{
	const char *other = path_missing(VGPU_DIR) ? secure_getenv(variable) : NULL;

	return other && *other ? other : fixed;
}
