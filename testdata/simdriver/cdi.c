/* The CDI spec of the simulated GPUs, and their device nodes. */
#define _GNU_SOURCE
#include "simctl.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define CAPS_DIR "nvidia-caps"
#ifdef __aarch64__
#define CONTAINER_LIB_DIR "/usr/lib/aarch64-linux-gnu"
#else
#define CONTAINER_LIB_DIR "/usr/lib/x86_64-linux-gnu"
#endif

static void print_mount(FILE *out, const char *host_dir, const char *name, const char *container, const char *mode)
{
	char host[PATH_MAX + 64];

	snprintf(host, sizeof(host), "%s%s%s", host_dir, name ? "/" : "", name ? name : "");
	fprintf(out, "{\"hostPath\":");
	json_string(out, host);
	fprintf(out, ",\"containerPath\":\"%s\",\"options\":[\"%s\",\"nosuid\",\"nodev\",\"bind\"]}", container, mode);
}

static void print_node(FILE *out, const char *dev_dir, const char *name, unsigned major_number, unsigned minor_number)
{
	char host[PATH_MAX + 64];

	snprintf(host, sizeof(host), "%s/%s", dev_dir, name);
	fprintf(out, "{\"path\":\"/dev/%s\",\"hostPath\":", name);
	json_string(out, host);
	fprintf(out, ",\"type\":\"c\",\"major\":%u,\"minor\":%u,\"permissions\":\"%s\"}", major_number, minor_number,
		major_number == NVIDIA_CAPS_MAJOR ? "r" : "rw");
}

static void print_gpu_node(FILE *out, const char *dev_dir, const struct gpu *c)
{
	char name[32];

	snprintf(name, sizeof(name), "nvidia%u", c->minor);
	print_node(out, dev_dir, name, NVIDIA_MAJOR, c->minor);
}

/* The two nodes that a MIG device has beside its GPU's. */
static void print_cap_nodes(FILE *out, const char *dev_dir, const struct gpu *c, const struct instance *in)
{
	char name[48];

	for (unsigned which = CAP_GPU_INSTANCE; which <= CAP_COMPUTE_INSTANCE; which++) {
		unsigned minor_number = cap_minor(c, in->id, which);

		snprintf(name, sizeof(name), CAPS_DIR "/nvidia-cap%u", minor_number);
		fputc(',', out);
		print_node(out, dev_dir, name, NVIDIA_CAPS_MAJOR, minor_number);
	}
}

static void print_device(FILE *out, const char *dev_dir, const char *name, const struct gpu *c, const struct instance *in)
{
	fprintf(out, "{\"name\":\"%s\",\"containerEdits\":{\"deviceNodes\":[", name);
	print_gpu_node(out, dev_dir, c);
	if (in)
		print_cap_nodes(out, dev_dir, c, in);
	fprintf(out, "]}},\n");
}

static void print_mig_devices(FILE *out, const char *dev_dir, const struct gpu *c, unsigned gpu)
{
	unsigned slots[MAX_INSTANCES];
	unsigned n = instances_in_order(c, slots);
	char name[UUID_TEXT];

	for (unsigned i = 0; i < n; i++) {
		const struct instance *in = &c->instances[slots[i] - 1];

		snprintf(name, sizeof(name), "%u:%u", gpu, i);
		print_device(out, dev_dir, name, c, in);
		mig_uuid_format(c, in, name);
		print_device(out, dev_dir, name, c, in);
	}
}

/* What all devices have together, as nvidia-ctk does it. */
static void print_all(FILE *out, const struct state *s, const char *dev_dir)
{
	unsigned slots[MAX_INSTANCES];

	fprintf(out, "{\"name\":\"all\",\"containerEdits\":{\"deviceNodes\":[");
	for (unsigned i = 0; i < s->gpu_count; i++) {
		const struct gpu *c = &s->gpus[i];
		unsigned n = instances_in_order(c, slots);

		fprintf(out, "%s", i ? "," : "");
		print_gpu_node(out, dev_dir, c);
		for (unsigned k = 0; k < n; k++)
			print_cap_nodes(out, dev_dir, c, &c->instances[slots[k] - 1]);
	}
	fprintf(out, "]}}");
}

static const char *const graphics[] = {
	CONTAINER_LIB_DIR "/libnvidia-opencl.so.1",
	CONTAINER_LIB_DIR "/libGLX_nvidia.so.0",
	"/etc/vulkan/icd.d/nvidia_icd.json",
};

/* 0.5.0 is the first version with device names that begin with a digit and with hostPath of a device node. */
static void print_spec(FILE *out, const struct state *s, const struct cdi_options *o)
{
	char name[UUID_TEXT];

	fprintf(out, "{\"cdiVersion\":\"0.5.0\",\"kind\":\"nvidia.com/gpu\",\n\"devices\":[\n");
	for (unsigned i = 0; i < s->gpu_count; i++) {
		snprintf(name, sizeof(name), "%u", i);
		print_device(out, o->dev_dir, name, &s->gpus[i], NULL);
		uuid_format(s->gpus[i].uuid, name);
		print_device(out, o->dev_dir, name, &s->gpus[i], NULL);
		print_mig_devices(out, o->dev_dir, &s->gpus[i], i);
	}
	print_all(out, s, o->dev_dir);
	fprintf(out, "],\n\"containerEdits\":{\"env\":[\"NVIDIA_VISIBLE_DEVICES=void\"],\n\"deviceNodes\":[");
	print_node(out, o->dev_dir, "nvidiactl", NVIDIA_MAJOR, NVIDIACTL_MINOR);
	fprintf(out, "],\n\"mounts\":[");
	print_mount(out, o->lib_dir, "libcuda.so.1", CONTAINER_LIB_DIR "/libcuda.so.1", "ro");
	fprintf(out, ",\n");
	print_mount(out, o->lib_dir, "libnvidia-ml.so.1", CONTAINER_LIB_DIR "/libnvidia-ml.so.1", "ro");
	fprintf(out, ",\n");
	/* A driver has libraries for more than CUDA. A file of ours stands for them: no test runs it. */
	for (unsigned i = 0; i < sizeof(graphics) / sizeof(*graphics); i++) {
		print_mount(out, o->lib_dir, "libnvidia-ml.so.1", graphics[i], "ro");
		fprintf(out, ",\n");
	}
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

static bool make_node(const char *dev_dir, const char *name, dev_t number, mode_t mode)
{
	char path[PATH_MAX];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", dev_dir, name);
	if (!mknod(path, S_IFCHR | mode, number))
		return !chmod(path, mode) || complain("chmod %s: %s", path, strerror(errno));
	if (errno == EEXIST && !stat(path, &st) && S_ISCHR(st.st_mode) && st.st_rdev == number)
		return true;
	return complain("mknod %s c %u %u: %s (needs root)", path, major(number), minor(number), strerror(errno));
}

static bool make_dir(const char *path)
{
	return !mkdir(path, 0755) || errno == EEXIST || complain("mkdir %s: %s", path, strerror(errno));
}

static bool remove_node(const char *dev_dir, const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dev_dir, name);
	return !unlink(path) || errno == ENOENT || complain("remove %s: %s", path, strerror(errno));
}

/* Those of the MIG devices that there are; those of others go. */
static bool make_cap_nodes(const char *dev_dir, const struct gpu *c)
{
	bool there[CAP_INSTANCE_IDS] = {false};
	unsigned slots[MAX_INSTANCES];
	unsigned n = instances_in_order(c, slots);
	bool ok = true;
	char name[48];

	for (unsigned i = 0; i < n; i++)
		there[c->instances[slots[i] - 1].id] = true;
	for (unsigned id = 0; ok && id < CAP_INSTANCE_IDS; id++) {
		for (unsigned which = CAP_GPU_INSTANCE; ok && which <= CAP_COMPUTE_INSTANCE; which++) {
			unsigned minor_number = cap_minor(c, id, which);

			snprintf(name, sizeof(name), CAPS_DIR "/nvidia-cap%u", minor_number);
			ok = there[id] ? make_node(dev_dir, name, makedev(NVIDIA_CAPS_MAJOR, minor_number), 0444)
				       : remove_node(dev_dir, name);
		}
	}
	return ok;
}

int make_devnodes(struct view *v, const char *dev_dir)
{
	char name[32], caps[PATH_MAX];

	if (!dev_dir)
		return 2 * !complain("devnodes needs --dev-dir");
	snprintf(caps, sizeof(caps), "%s/" CAPS_DIR, dev_dir);
	if (!make_dir(dev_dir))
		return 1;
	for (unsigned i = 0; i < v->s->gpu_count; i++) {
		const struct gpu *c = &v->s->gpus[i];

		if (atomic_load(&c->mig_enabled) && !make_dir(caps))
			return 1;
		snprintf(name, sizeof(name), "nvidia%u", c->minor);
		if (!make_node(dev_dir, name, makedev(NVIDIA_MAJOR, c->minor), 0666) || !make_cap_nodes(dev_dir, c))
			return 1;
	}
	return !make_node(dev_dir, "nvidiactl", makedev(NVIDIA_MAJOR, NVIDIACTL_MINOR), 0666);
}
