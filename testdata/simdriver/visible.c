/* Which cards a process may see, and the text form of their UUIDs. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* The node exists and the devices cgroup lets us open it. That no driver stands behind it (ENXIO) is as it should be. */
static bool node_allowed(const char *path, unsigned minor_number)
{
	struct stat st;
	int fd;

	if (stat(path, &st) || !S_ISCHR(st.st_mode))
		return false;
	if (major(st.st_rdev) != NVIDIA_MAJOR || minor(st.st_rdev) != minor_number)
		return false;
	fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd >= 0 || errno == ENXIO || errno == ENODEV;
}

bool card_visible(const struct card *c)
{
	const char *dir = getenv("SIMGPU_DEV_DIR");
	const char *state = getenv("SIMGPU_STATE");
	char path[512];

	if (!dir && state && *state)
		return true;
	snprintf(path, sizeof(path), "%s/nvidia%u", dir ? dir : "/dev", c->minor);
	return node_allowed(path, c->minor);
}

unsigned nvlinks_between(const struct state *s, unsigned a, unsigned b)
{
	return a == b ? 0 : (unsigned)s->cards[a].nvlinks[b] + s->cards[b].nvlinks[a];
}

void uuid_format(const uint8_t u[16], char text[UUID_TEXT])
{
	char *at = text + sprintf(text, "GPU-");

	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		at += sprintf(at, "%02x", u[i]);
	}
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

bool uuid_parse(const char *text, uint8_t uuid[16])
{
	if (strlen(text) != UUID_TEXT - 1 || strncmp(text, "GPU-", 4) != 0)
		return false;
	text += 4;
	for (int i = 0; i < 16; i++, text += 2) {
		if (i == 4 || i == 6 || i == 8 || i == 10) {
			if (*text++ != '-')
				return false;
		}
		if (hex(text[0]) < 0 || hex(text[1]) < 0)
			return false;
		uuid[i] = (uint8_t)(hex(text[0]) * 16 + hex(text[1]));
	}
	return true;
}
