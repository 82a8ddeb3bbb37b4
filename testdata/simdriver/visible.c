/* Which GPUs and MIG devices a process may see, and the text form of their UUIDs. */
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
static bool node_allowed(const char *path, unsigned major_number, unsigned minor_number, int access)
{
	struct stat st;
	int fd;

	if (stat(path, &st) || !S_ISCHR(st.st_mode))
		return false;
	if (major(st.st_rdev) != major_number || minor(st.st_rdev) != minor_number)
		return false;
	fd = open(path, access | O_NONBLOCK | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd >= 0 || errno == ENXIO || errno == ENODEV;
}

/* Where the nodes are; NULL: none are needed. */
static const char *node_dir(void)
{
	const char *dir = getenv("SIMGPU_DEV_DIR");
	const char *state = getenv("SIMGPU_STATE");

	if (!dir && state && *state)
		return NULL;
	return dir ? dir : "/dev";
}

bool gpu_visible(const struct gpu *c)
{
	const char *dir = node_dir();
	char path[512];

	if (!dir)
		return true;
	snprintf(path, sizeof(path), "%s/nvidia%u", dir, c->minor);
	return node_allowed(path, NVIDIA_MAJOR, c->minor, O_RDWR);
}

static bool cap_allowed(const char *dir, unsigned minor_number)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/nvidia-caps/nvidia-cap%u", dir, minor_number);
	return node_allowed(path, NVIDIA_CAPS_MAJOR, minor_number, O_RDONLY);
}

bool instance_visible(const struct gpu *c, const struct instance *in)
{
	const char *dir = node_dir();

	if (!dir)
		return true;
	return gpu_visible(c) && cap_allowed(dir, cap_minor(c, in->id, CAP_GPU_INSTANCE)) &&
	       cap_allowed(dir, cap_minor(c, in->id, CAP_COMPUTE_INSTANCE));
}

unsigned nvlinks_between(const struct state *s, unsigned a, unsigned b)
{
	return a == b ? 0 : (unsigned)s->gpus[a].nvlinks[b] + s->gpus[b].nvlinks[a];
}

static void format(const char *prefix, const uint8_t u[16], char text[UUID_TEXT])
{
	char *at = text + sprintf(text, "%s-", prefix);

	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		at += sprintf(at, "%02x", u[i]);
	}
}

void uuid_format(const uint8_t uuid[16], char text[UUID_TEXT])
{
	format("GPU", uuid, text);
}

void mig_uuid_format(const struct gpu *c, const struct instance *in, char text[UUID_TEXT])
{
	uint8_t uuid[16];

	instance_uuid(c, in, uuid);
	format("MIG", uuid, text);
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
