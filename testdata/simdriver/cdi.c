/* The CDI spec of the simulated cards, and their device nodes. */
#define _GNU_SOURCE
#include "simctl.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define CONTAINER_LIB_DIR "/usr/lib/x86_64-linux-gnu"

static void print_mount(FILE *out, const char *host_dir, const char *name, const char *container, const char *mode)
{
	char host[PATH_MAX + 64];

	snprintf(host, sizeof(host), "%s%s%s", host_dir, name ? "/" : "", name ? name : "");
	fprintf(out, "{\"hostPath\":");
	json_string(out, host);
	fprintf(out, ",\"containerPath\":\"%s\",\"options\":[\"%s\",\"nosuid\",\"nodev\",\"bind\"]}", container, mode);
}

static void print_node(FILE *out, const char *dev_dir, const char *name, unsigned minor_number)
{
	char host[PATH_MAX + 64];

	snprintf(host, sizeof(host), "%s/%s", dev_dir, name);
	fprintf(out, "{\"path\":\"/dev/%s\",\"hostPath\":", name);
	json_string(out, host);
	fprintf(out, ",\"type\":\"c\",\"major\":%u,\"minor\":%u,\"permissions\":\"rw\"}", NVIDIA_MAJOR, minor_number);
}

static void print_card_node(FILE *out, const char *dev_dir, const struct card *c)
{
	char name[32];

	snprintf(name, sizeof(name), "nvidia%u", c->minor);
	print_node(out, dev_dir, name, c->minor);
}

static void print_device(FILE *out, const char *dev_dir, const char *name, const struct card *c)
{
	fprintf(out, "{\"name\":\"%s\",\"containerEdits\":{\"deviceNodes\":[", name);
	print_card_node(out, dev_dir, c);
	fprintf(out, "]}},\n");
}

/* 0.5.0 is the first version with device names that begin with a digit and with hostPath of a device node. */
static void print_spec(FILE *out, const struct state *s, const struct cdi_options *o)
{
	char name[UUID_TEXT];

	fprintf(out, "{\"cdiVersion\":\"0.5.0\",\"kind\":\"nvidia.com/gpu\",\n\"devices\":[\n");
	for (unsigned i = 0; i < s->card_count; i++) {
		snprintf(name, sizeof(name), "%u", i);
		print_device(out, o->dev_dir, name, &s->cards[i]);
		uuid_format(s->cards[i].uuid, name);
		print_device(out, o->dev_dir, name, &s->cards[i]);
	}
	fprintf(out, "{\"name\":\"all\",\"containerEdits\":{\"deviceNodes\":[");
	for (unsigned i = 0; i < s->card_count; i++) {
		fprintf(out, "%s", i ? "," : "");
		print_card_node(out, o->dev_dir, &s->cards[i]);
	}
	fprintf(out, "]}}],\n\"containerEdits\":{\"env\":[\"NVIDIA_VISIBLE_DEVICES=void\"],\n\"deviceNodes\":[");
	print_node(out, o->dev_dir, "nvidiactl", NVIDIACTL_MINOR);
	fprintf(out, "],\n\"mounts\":[");
	print_mount(out, o->lib_dir, "libcuda.so.1", CONTAINER_LIB_DIR "/libcuda.so.1", "ro");
	fprintf(out, ",\n");
	print_mount(out, o->lib_dir, "libnvidia-ml.so.1", CONTAINER_LIB_DIR "/libnvidia-ml.so.1", "ro");
	fprintf(out, ",\n");
	print_mount(out, o->state, NULL, STATE_DEFAULT_PATH, "rw");
	fprintf(out, "]}}\n");
}

static bool absolute(const char *path, char out[PATH_MAX])
{
	return realpath(path, out) || complain("%s: %s", path, strerror(errno));
}

static int write_renamed(const struct state *s, const struct cdi_options *o)
{
	char temporary[PATH_MAX];
	FILE *out;
	int failed;

	if (snprintf(temporary, sizeof(temporary), "%s.%d.tmp", o->out, (int)getpid()) >= (int)sizeof(temporary))
		return !complain("%s: name too long", o->out);
	out = fopen(temporary, "wxe");
	if (!out)
		return !complain("create %s: %s", temporary, strerror(errno));
	print_spec(out, s, o);
	failed = ferror(out);
	failed |= fclose(out);
	if (!failed && !rename(temporary, o->out))
		return 0;
	complain("write %s: %s", o->out, strerror(errno));
	unlink(temporary);
	return 1;
}

int write_cdi(struct view *v, const struct cdi_options *given)
{
	char state[PATH_MAX], lib_dir[PATH_MAX], dev_dir[PATH_MAX];
	struct cdi_options o = {state, lib_dir, dev_dir, given->out};

	if (!given->lib_dir || !given->dev_dir)
		return 2 * !complain("cdi needs --lib-dir and --dev-dir");
	if (!absolute(given->state, state) || !absolute(given->lib_dir, lib_dir) || !absolute(given->dev_dir, dev_dir))
		return 1;
	if (given->out && strcmp(given->out, "-") != 0)
		return write_renamed(v->s, &o);
	print_spec(stdout, v->s, &o);
	return fflush(stdout) ? !complain("write to stdout: %s", strerror(errno)) : 0;
}

static bool make_node(const char *dev_dir, const char *name, unsigned minor_number)
{
	char path[PATH_MAX];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", dev_dir, name);
	if (!mknod(path, S_IFCHR | 0666, makedev(NVIDIA_MAJOR, minor_number)))
		return !chmod(path, 0666) || complain("chmod %s: %s", path, strerror(errno));
	if (errno == EEXIST && !stat(path, &st) && S_ISCHR(st.st_mode) &&
	    st.st_rdev == makedev(NVIDIA_MAJOR, minor_number))
		return true;
	return complain("mknod %s c %u %u: %s (needs root)", path, NVIDIA_MAJOR, minor_number, strerror(errno));
}

int make_devnodes(struct view *v, const char *dev_dir)
{
	char name[32];

	if (!dev_dir)
		return 2 * !complain("devnodes needs --dev-dir");
	if (mkdir(dev_dir, 0755) && errno != EEXIST)
		return !complain("mkdir %s: %s", dev_dir, strerror(errno));
	for (unsigned i = 0; i < v->s->card_count; i++) {
		snprintf(name, sizeof(name), "nvidia%u", v->s->cards[i].minor);
		if (!make_node(dev_dir, name, v->s->cards[i].minor))
			return 1;
	}
	return !make_node(dev_dir, "nvidiactl", NVIDIACTL_MINOR);
}
