/* Makes what the agent makes for a container, without an agent: a limits file and a
 * usage file in a directory, and the turn files of containers that share a GPU. Or prints
 * what is charged in a usage file.
 *
 *   slice make DIR UUID MIB CORES CONTEXT_MIB [force] [unmeasured] [pages=KIB:SMALL_KIB]
 *   slice turns TABLE_DIR DIR...
 *   slice used DIR
 *
 * UUID is GPU-xxxxxxxx-…, CORES a percentage (0: not limited). With "force" the share
 * of compute time is enforced also while no other process uses the GPU. "unmeasured":
 * there is no agent, and each process measures its residue. Pages are 2048:1024 otherwise. */
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../../limiter/src/crc32.h"
#include "../../../limiter/src/layout.h"

static int complain(const char *what)
{
	fprintf(stderr, "slice: %s\n", what);
	return 1;
}

static bool parse_uuid(const char *text, uint8_t out[16])
{
	unsigned byte;
	int n = 0;

	if (strncmp(text, "GPU-", 4) && strncmp(text, "MIG-", 4))
		return false;
	for (const char *at = text + 4; *at; at++) {
		if (*at == '-')
			continue;
		if (n == 16 || sscanf(at, "%2x", &byte) != 1)
			return false;
		out[n++] = (uint8_t)byte;
		at++;
	}
	return n == 16;
}

static int write_file(const char *dir, const char *name, const void *bytes, size_t size)
{
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "wb");
	if (!f)
		return complain(path);
	bool bad = fwrite(bytes, 1, size, f) != size;
	return fclose(f) || bad ? complain(path) : 0;
}

static int make(const char *dir, const char *uuid, uint64_t mib, uint32_t cores, uint64_t context_mib, char **options)
{
	static struct vgpu_limits limits;
	static struct vgpu_usage usage;
	struct vgpu_record *r = &limits.records[0];

	if (!parse_uuid(uuid, r->uuid) || !mib || cores > 100)
		return complain("want a UUID, MiB of memory, and 0 to 100 percent");
	r->memory_limit_bytes = mib << 20;
	r->core_percent = cores;
	r->priority = 1;
	r->flags = (uuid[0] == 'M' ? VGPU_RECORD_MIG : 0) | VGPU_RECORD_FIRST;
	r->page_kib = 2048;
	r->small_kib = 1024;
	for (; *options; options++)
		if (!strcmp(*options, "force"))
			r->policy = 1;
		else if (!strcmp(*options, "unmeasured"))
			r->flags |= VGPU_RECORD_UNMEASURED;
		else if (sscanf(*options, "pages=%hu:%hu", &r->page_kib, &r->small_kib) != 2)
			return complain(*options);
	r->context_bytes = context_mib << 20;
	snprintf(r->name, sizeof(r->name), "%s", uuid);
	r->crc32 = crc32_add(0, r->uuid, sizeof(*r) - offsetof(struct vgpu_record, uuid));

	memcpy(limits.magic, VGPU_LIMITS_MAGIC, sizeof(limits.magic));
	limits.layout = VGPU_LAYOUT;
	limits.header_bytes = VGPU_LIMITS_HEADER_BYTES;
	limits.record_bytes = VGPU_LIMITS_RECORD_BYTES;
	limits.record_count = 1;
	limits.crc32 = crc32_add(crc32_add(0, &limits, offsetof(struct vgpu_limits, generation)), &limits.flags, sizeof(limits.flags));

	memcpy(usage.magic, VGPU_USAGE_MAGIC, sizeof(usage.magic));
	usage.layout = VGPU_LAYOUT;
	usage.header_bytes = VGPU_USAGE_HEADER_BYTES;
	usage.slot_bytes = VGPU_SLOT_BYTES;
	usage.slot_count = VGPU_SLOT_COUNT;
	usage.cell_offset = VGPU_SLOT_HEADER_BYTES;
	usage.cell_bytes = VGPU_CELL_BYTES;
	usage.cell_count = VGPU_MAX_DEVICES;
	usage.device_count = 1;
	usage.mig_cells = r->flags & VGPU_RECORD_MIG;
	memcpy(usage.uuid[0], r->uuid, 16);

	char padded[VGPU_LIMITS_BYTES] = { 0 };
	memcpy(padded, &limits, sizeof(limits));
	mkdir(dir, 0755);
	return write_file(dir, "limits", padded, sizeof(padded)) || write_file(dir, "usage", &usage, sizeof(usage));
}

/* Sums every slot with a live owner: the kernel marks the owner word of a dead one. */
static int used(const char *dir)
{
	static struct vgpu_usage usage;
	char path[4096];
	unsigned long long bytes = 0, slots = 0;

	snprintf(path, sizeof(path), "%s/usage", dir);
	FILE *f = fopen(path, "rb");
	if (!f || fread(&usage, 1, sizeof(usage), f) != sizeof(usage))
		return complain(path);
	fclose(f);
	for (int i = 0; i < VGPU_SLOT_COUNT; i++) {
		uint32_t owner = atomic_load(&usage.slots[i].owner);
		uint64_t own = owner && !(owner & FUTEX_OWNER_DIED) ? atomic_load(&usage.slots[i].cells[0].committed) : 0;

		bytes += own;
		slots += own > 0;
	}
	printf("used_bytes=%llu\nslots=%llu\n", bytes, slots);
	return 0;
}

static int read_file(const char *dir, const char *name, void *bytes, size_t size)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	FILE *f = fopen(path, "rb");
	if (!f)
		return complain(path);
	bool bad = fread(bytes, 1, size, f) != size;
	fclose(f);
	return bad ? complain(path) : 0;
}

/* The containers in dirs take turns on their GPU: the table, their turn files, and in each "turns/0", which is where the
 * limiter looks for those of record 0. */
static int turns(const char *table_dir, char **dirs, int count)
{
	static struct vgpu_table table = { .sequence = 2, .floor_percent = 1 };
	static struct vgpu_limits limits;
	char at[4096], name[20];

	memcpy(table.magic, VGPU_TABLE_MAGIC, sizeof(table.magic));
	mkdir(table_dir, 0755);
	for (int i = 0; i < count; i++) {
		struct vgpu_turn turn = { .words.id = (uint64_t)i + 1 };

		if (read_file(dirs[i], "limits", &limits, sizeof(limits)))
			return 1;
		limits.turn_id = turn.words.id;
		table.shares[table.count++] = (struct vgpu_share){
			.id = turn.words.id,
			.core_percent = (uint16_t)limits.records[0].core_percent,
			.policy = (uint8_t)limits.records[0].policy,
			.priority = (uint8_t)limits.records[0].priority,
		};
		memcpy(turn.words.magic, VGPU_TURN_MAGIC, sizeof(turn.words.magic));
		snprintf(name, sizeof(name), "%016x", i + 1);
		char padded[VGPU_LIMITS_BYTES] = { 0 };
		memcpy(padded, &limits, sizeof(limits));
		if (write_file(dirs[i], "limits", padded, sizeof(padded)) || write_file(table_dir, name, &turn, sizeof(turn)))
			return 1;
		snprintf(at, sizeof(at), "%s/turns", dirs[i]);
		mkdir(at, 0755);
		strcat(at, "/0");
		if (symlink(table_dir, at))
			return complain(at);
	}
	table.crc32 = crc32_add(0, &table.count, sizeof(table) - offsetof(struct vgpu_table, count));
	return write_file(table_dir, "table", &table, sizeof(table));
}

int main(int argc, char **argv)
{
	if (argc > 3 && !strcmp(argv[1], "turns"))
		return turns(argv[2], argv + 3, argc - 3);
	if (argc == 3 && !strcmp(argv[1], "used"))
		return used(argv[2]);
	if (argc >= 7 && !strcmp(argv[1], "make"))
		return make(argv[2], argv[3], strtoull(argv[4], NULL, 10), (uint32_t)strtoul(argv[5], NULL, 10),
		            strtoull(argv[6], NULL, 10), argv + 7);
	fprintf(stderr, "usage: slice make DIR UUID MIB CORES CONTEXT_MIB [force] [unmeasured] [pages=KIB:SMALL_KIB]\n"
	                "       slice turns TABLE_DIR DIR...\n       slice used DIR\n");
	return 2;
}
