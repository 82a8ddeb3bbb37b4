/*
 * Which devices a process has, and in which order: the nodes, $CUDA_DEVICE_ORDER, $CUDA_VISIBLE_DEVICES, MIG. According to
 * NVIDIA's MIG user guide, a GPU with MIG on is never visible as a whole; a process sees one MIG device at most, the first
 * of those that it may see or the first that it names, and then no other device.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

struct candidate {
	struct mig device; /* of a GPU with MIG on: the first MIG device that may be seen */
	uint64_t speed;
	uint64_t pci;
};

static int faster_first(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->speed != y->speed)
		return x->speed < y->speed ? 1 : -1;
	return x->pci < y->pci ? -1 : x->pci > y->pci;
}

static struct mig mig_of(const struct state *s, unsigned gpu, unsigned slot)
{
	return (struct mig){gpu, slot, slot ? atomic_load(&s->gpus[gpu].instances[slot - 1].serial) : 0};
}

/* The MIG devices of a GPU that may be seen, by GPU instance id. */
static unsigned visible_instances(const struct state *s, unsigned gpu, struct mig list[MAX_INSTANCES])
{
	const struct gpu *c = &s->gpus[gpu];
	unsigned slots[MAX_INSTANCES];
	unsigned n = instances_in_order(c, slots), kept = 0;

	for (unsigned i = 0; i < n; i++) {
		if (instance_visible(c, &c->instances[slots[i] - 1]))
			list[kept++] = mig_of(s, gpu, slots[i]);
	}
	return kept;
}

static bool first_device(const struct state *s, unsigned gpu, struct mig *device)
{
	struct mig list[MAX_INSTANCES];

	*device = mig_of(s, gpu, 0);
	if (!atomic_load(&s->gpus[gpu].mig_enabled))
		return true;
	if (!visible_instances(s, gpu, list))
		return false;
	*device = list[0];
	return true;
}

/* CUDA numbers the fastest GPU 0 unless $CUDA_DEVICE_ORDER is PCI_BUS_ID. NVML always goes by PCI bus. */
static unsigned list_visible(const struct state *s, struct candidate *list)
{
	const char *order = getenv("CUDA_DEVICE_ORDER");
	bool by_bus = order && !strcmp(order, "PCI_BUS_ID");
	unsigned n = 0;

	for (unsigned i = 0; i < s->gpu_count; i++) {
		const struct gpu *c = &s->gpus[i];

		if (!gpu_visible(c) || atomic_load(&s->gpus[i].presence) != GPU_PRESENT)
			continue;
		if (!first_device(s, i, &list[n].device))
			continue;
		list[n].speed = by_bus ? 0 : (uint64_t)c->sm_count * c->cores_per_sm * c->clock_khz;
		list[n].pci = (uint64_t)c->pci_domain << 32 | c->pci_bus << 8 | c->pci_device;
		n++;
	}
	/* cppcheck-suppress uninitvar ; the first n are set */
	qsort(list, n, sizeof(*list), faster_first);
	return n;
}

static bool begins(const char *text, const char *prefix)
{
	return !strncmp(text, prefix, strlen(prefix));
}

/* The MIG device with a UUID that begins with token, if there is exactly one. */
static bool find_mig(const struct state *s, const struct candidate *list, unsigned n, const char *token, struct mig *found)
{
	struct mig instances[MAX_INSTANCES];
	char uuid[UUID_TEXT];
	unsigned hits = 0;

	for (unsigned i = 0; i < n; i++) {
		unsigned gpu = list[i].device.gpu;
		unsigned count = list[i].device.slot ? visible_instances(s, gpu, instances) : 0;

		for (unsigned k = 0; k < count; k++) {
			mig_uuid_format(&s->gpus[gpu], &s->gpus[gpu].instances[instances[k].slot - 1], uuid);
			if (!begins(uuid, token))
				continue;
			*found = instances[k];
			hits++;
		}
	}
	return hits == 1;
}

static bool find_gpu(const struct state *s, const struct candidate *list, unsigned n, const char *token, struct mig *found)
{
	char uuid[UUID_TEXT];
	unsigned hits = 0;

	for (unsigned i = 0; i < n; i++) {
		uuid_format(s->gpus[list[i].device.gpu].uuid, uuid);
		if (!begins(uuid, token))
			continue;
		*found = list[i].device;
		hits++;
	}
	return hits == 1;
}

/* What the token names: an index, or the beginning of the UUID of one GPU or MIG device. */
static bool find_token(const struct state *s, const struct candidate *list, unsigned n, const char *token, struct mig *found)
{
	char *end;
	long index;

	if (begins(token, "GPU-"))
		return find_gpu(s, list, n, token, found);
	if (begins(token, "MIG-"))
		return find_mig(s, list, n, token, found);
	index = strtol(token, &end, 10);
	if (end == token || *end || index < 0 || index >= (long)n)
		return false;
	*found = list[index].device;
	return true;
}

/* A token that names nothing ends the list; one that names a device again makes all of it void. */
static unsigned apply_visible_devices(const struct state *s, const struct candidate *list, unsigned n, struct mig *found)
{
	const char *text = getenv("CUDA_VISIBLE_DEVICES");
	char *copy = text ? strdup(text) : NULL;
	char *rest = copy, *token;
	unsigned count = 0;

	if (!copy) {
		for (; count < n; count++)
			found[count] = list[count].device;
		return n;
	}
	while ((token = strsep(&rest, ","))) {
		struct mig one;

		if (count == MAX_GPUS || !find_token(s, list, n, token + strspn(token, " "), &one))
			break;
		for (unsigned j = 0; j < count; j++) {
			if (found[j].gpu == one.gpu && found[j].slot == one.slot) {
				free(copy);
				return 0;
			}
		}
		found[count++] = one;
	}
	free(copy);
	return count;
}

unsigned visible_devices(struct state *s, struct mig found[MAX_GPUS])
{
	struct candidate list[MAX_GPUS];
	unsigned n = list_visible(s, list);

	n = apply_visible_devices(s, list, n, found);
	for (unsigned i = 0; i < n; i++) {
		if (found[i].slot) {
			found[0] = found[i];
			return 1;
		}
	}
	return n;
}
