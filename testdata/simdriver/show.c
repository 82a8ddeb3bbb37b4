/* simctl status: the state as a table for people and as JSON for tests. */
#define _GNU_SOURCE
#include "simctl.h"

#include <stdlib.h>
#include <string.h>

#define MIB (1ull << 20)

void json_string(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			fprintf(out, "\\%c", c);
		else if (c < 0x20)
			fprintf(out, "\\u%04x", c);
		else
			fputc(c, out);
	}
	fputc('"', out);
}

static unsigned engine_busy(const struct engine *e)
{
	uint64_t now = now_ns();

	return busy_percent(e->busy, now > 1000000000u ? now - 1000000000u : 0, now);
}

static const char *presence_name(const struct gpu *c)
{
	switch (atomic_load(&c->presence)) {
	case GPU_PRESENT:
		return "present";
	case GPU_LOST:
		return "lost";
	default:
		return "removed";
	}
}

/* The clock of an engine that never ran a kernel is shown as 0, so that a status changes only with events. */
static void json_engine(FILE *out, const struct engine *e)
{
	uint64_t launches = atomic_load(&e->launches);

	fprintf(out, ",\"clock_ns\":%llu", (unsigned long long)(launches ? e->clock : 0));
	fprintf(out, ",\"busy_percent\":%u,\"busy_ns\":%llu,\"launches\":%llu", engine_busy(e),
		(unsigned long long)atomic_load(&e->busy_ns), (unsigned long long)launches);
}

static void json_instance(FILE *out, const struct gpu *c, const struct instance *in, unsigned index)
{
	char uuid[UUID_TEXT];

	mig_uuid_format(c, in, uuid);
	fprintf(out, "{\"index\":%u,\"uuid\":\"%s\",\"profile\":\"%s\"", index, uuid, in->profile.name);
	fprintf(out, ",\"gpu_instance\":%u,\"compute_instance\":0,\"start\":%u,\"size\":%u,\"sm_count\":%u", in->id, in->start,
		in->profile.size, in->profile.sm_count);
	fprintf(out, ",\"cap_minors\":[%u,%u]", cap_minor(c, in->id, CAP_GPU_INSTANCE),
		cap_minor(c, in->id, CAP_COMPUTE_INSTANCE));
	fprintf(out, ",\"memory_total_bytes\":%llu,\"memory_used_bytes\":%llu,\"memory_context_bytes\":%llu",
		(unsigned long long)in->profile.memory_bytes, (unsigned long long)instance_used(in),
		(unsigned long long)in->used[CHARGE_CONTEXT]);
	fprintf(out, ",\"memory_data_bytes\":%llu,\"memory_peak_bytes\":%llu", (unsigned long long)in->used[CHARGE_DATA],
		(unsigned long long)in->peak_used);
	json_engine(out, &in->engine);
	fputc('}', out);
}

static void json_gpu(FILE *out, const struct gpu *c, unsigned index)
{
	unsigned n, slots[MAX_INSTANCES];
	char uuid[UUID_TEXT];

	uuid_format(c->uuid, uuid);
	fprintf(out, "{\"index\":%u,\"minor\":%u,\"uuid\":\"%s\",\"name\":", index, c->minor, uuid);
	json_string(out, c->name);
	fprintf(out, ",\"profile\":");
	json_string(out, c->profile);
	fprintf(out, ",\"pci_bus_id\":\"%08x:%02x:%02x.0\"", c->pci_domain, c->pci_bus, c->pci_device);
	fprintf(out, ",\"memory_total_bytes\":%llu,\"memory_reserved_bytes\":%llu",
		(unsigned long long)c->memory_bytes, (unsigned long long)c->reserved_bytes);
	fprintf(out, ",\"memory_used_bytes\":%llu,\"memory_context_bytes\":%llu,\"memory_data_bytes\":%llu",
		(unsigned long long)gpu_used(c), (unsigned long long)c->used[CHARGE_CONTEXT],
		(unsigned long long)c->used[CHARGE_DATA]);
	fprintf(out, ",\"memory_peak_bytes\":%llu,\"context_bytes\":%llu", (unsigned long long)c->peak_used,
		(unsigned long long)c->context_bytes);
	fprintf(out, ",\"presence\":\"%s\"", presence_name(c));
	json_engine(out, &c->engine);
	fprintf(out, ",\"mig_enabled\":%s,\"mig\":[", atomic_load(&c->mig_enabled) ? "true" : "false");
	n = instances_in_order(c, slots);
	for (unsigned i = 0; i < n; i++) {
		fprintf(out, "%s", i ? "," : "");
		json_instance(out, c, &c->instances[slots[i] - 1], i);
	}
	fprintf(out, "]}");
}

static void json_group(FILE *out, const struct state *s, const struct group *g)
{
	fprintf(out, "{\"id\":%llu,\"clients\":%u,\"gpus\":[", (unsigned long long)g->id, g->clients);
	for (unsigned c = 0; c < s->gpu_count; c++) {
		const struct group_gpu *gc = &g->gpus[c];

		fprintf(out, "%s{\"index\":%u,\"context_bytes\":%llu,\"data_bytes\":%llu,", c ? "," : "", c,
			(unsigned long long)gc->used[CHARGE_CONTEXT], (unsigned long long)gc->used[CHARGE_DATA]);
		fprintf(out, "\"peak_context_bytes\":%llu,\"peak_data_bytes\":%llu,\"peak_total_bytes\":%llu",
			(unsigned long long)gc->peak[CHARGE_CONTEXT], (unsigned long long)gc->peak[CHARGE_DATA],
			(unsigned long long)gc->peak_total);
		fprintf(out, ",\"busy_ns\":%llu,\"launches\":%llu}", (unsigned long long)atomic_load(&gc->busy_ns),
			(unsigned long long)atomic_load(&gc->launches));
	}
	fprintf(out, "]}");
}

static void json_client(FILE *out, const struct view *v, unsigned slot)
{
	const struct state *s = v->s;
	const struct client *cl = &s->clients[slot];

	fprintf(out, "{\"slot\":%u,\"pid\":%u,\"host_pid\":%u,\"pid_namespace\":%llu,\"group\":%llu,\"live\":%s,\"gpus\":[", slot, cl->pid,
		atomic_load(&cl->host_pid),
		(unsigned long long)cl->pid_namespace, (unsigned long long)s->groups[cl->group % MAX_GROUPS].id,
		client_lives(v, slot) ? "true" : "false");
	for (unsigned c = 0; c < s->gpu_count; c++) {
		const struct client_gpu *cc = &cl->gpus[c];

		fprintf(out, "%s{\"index\":%u,\"context_bytes\":%llu,\"data_bytes\":%llu,", c ? "," : "", c,
			(unsigned long long)cc->used[CHARGE_CONTEXT], (unsigned long long)cc->used[CHARGE_DATA]);
		fprintf(out, "\"queued_ns\":%llu,\"busy_ns\":%llu,\"launches\":%llu}",
			(unsigned long long)atomic_load(&cc->queued_ns), (unsigned long long)atomic_load(&cc->busy_ns),
			(unsigned long long)atomic_load(&cc->launches));
	}
	fprintf(out, "]}");
}

static void json_fails(FILE *out, const struct state *s)
{
	bool first = true;

	for (unsigned i = 0; i < MAX_FAILS; i++) {
		const struct fail *f = &s->fails[i];

		if (atomic_load(&f->left) <= 0)
			continue;
		fprintf(out, "%s{\"symbol\":", first ? "" : ",");
		json_string(out, f->symbol);
		fprintf(out, ",\"left\":%lld,\"error\":%d}", (long long)atomic_load(&f->left), f->error);
		first = false;
	}
}

static void print_json(FILE *out, const struct view *v, const char *path)
{
	const struct state *s = v->s;
	bool first = true;

	fprintf(out, "{\"state\":");
	json_string(out, path);
	fprintf(out, ",\"driver_version\":");
	json_string(out, s->driver_version);
	fprintf(out, ",\"cuda_version\":%u,\"gpus\":[", s->cuda_version);
	for (unsigned c = 0; c < s->gpu_count; c++) {
		fprintf(out, "%s", c ? "," : "");
		json_gpu(out, &s->gpus[c], c);
	}
	fprintf(out, "],\"groups\":[");
	for (unsigned g = 0; g < MAX_GROUPS; g++) {
		if (!s->groups[g].id)
			continue;
		fprintf(out, "%s", first ? "" : ",");
		json_group(out, s, &s->groups[g]);
		first = false;
	}
	fprintf(out, "],\"clients\":[");
	first = true;
	for (unsigned i = 0; i < s->client_limit && i < MAX_CLIENTS; i++) {
		if (!atomic_load(&s->clients[i].taken))
			continue;
		fprintf(out, "%s", first ? "" : ",");
		json_client(out, v, i);
		first = false;
	}
	fprintf(out, "],\"fails\":[");
	json_fails(out, s);
	fprintf(out, "]}\n");
}

static void print_table(FILE *out, const struct view *v)
{
	const struct state *s = v->s;
	char uuid[UUID_TEXT];

	fprintf(out, "driver %s, CUDA %u.%u\n\n", s->driver_version, s->cuda_version / 1000, s->cuda_version % 1000 / 10);
	fprintf(out, "%-4s %-40s %-24s %10s %10s %10s %5s\n", "GPU", "UUID", "NAME", "TOTAL MiB", "USED MiB", "PEAK MiB",
		"BUSY");
	for (unsigned c = 0; c < s->gpu_count; c++) {
		uuid_format(s->gpus[c].uuid, uuid);
		fprintf(out, "%-4u %-40s %-24s %10llu %10llu %10llu %4u%%\n", c, uuid, s->gpus[c].name,
			(unsigned long long)(s->gpus[c].memory_bytes / MIB),
			(unsigned long long)(gpu_used(&s->gpus[c]) / MIB),
			(unsigned long long)(s->gpus[c].peak_used / MIB), engine_busy(&s->gpus[c].engine));
	}
	fprintf(out, "\n%-8s %-12s %-4s %12s %12s %10s\n", "PID", "GROUP", "GPU", "CONTEXT MiB", "DATA MiB", "LAUNCHES");
	for (unsigned i = 0; i < s->client_limit && i < MAX_CLIENTS; i++) {
		const struct client *cl = &s->clients[i];

		for (unsigned c = 0; atomic_load(&cl->taken) && c < s->gpu_count; c++) {
			const struct client_gpu *cc = &cl->gpus[c];

			if (!cc->used[CHARGE_CONTEXT] && !cc->used[CHARGE_DATA])
				continue;
			fprintf(out, "%-8u %-12llu %-4u %12llu %12llu %10llu\n", cl->pid,
				(unsigned long long)s->groups[cl->group % MAX_GROUPS].id, c,
				(unsigned long long)(cc->used[CHARGE_CONTEXT] / MIB),
				(unsigned long long)(cc->used[CHARGE_DATA] / MIB),
				(unsigned long long)atomic_load(&cc->launches));
		}
	}
}

/* All that is printed about time is of one moment. */
static void stop_clocks(struct view *v, bool stop)
{
	for (unsigned c = 0; c < v->s->gpu_count; c++) {
		if (!stop)
			engine_unlock(v, c);
		else if (!engine_lock(v, c))
			gpu_advance(v, c);
	}
}

/* Written to memory under the lock and printed after it, so that a slow reader holds up no one. */
int show_status(struct view *v, const char *path, bool json)
{
	char *text = NULL;
	size_t length = 0;
	FILE *out = open_memstream(&text, &length);
	int failed;

	if (!out)
		return !complain("out of memory");
	for (unsigned i = 0; i < v->s->client_limit && i < MAX_CLIENTS; i++) {
		if (atomic_load(&v->s->clients[i].taken))
			client_pid(v, i, false);
	}
	state_reap(v);
	if (state_lock(v)) {
		fclose(out);
		free(text);
		return !complain("lock %s: failed", path);
	}
	stop_clocks(v, true);
	if (json)
		print_json(out, v, path);
	else
		print_table(out, v);
	stop_clocks(v, false);
	state_unlock(v);
	fclose(out);
	failed = fwrite(text, 1, length, stdout) != length || fflush(stdout);
	free(text);
	return failed ? !complain("write to stdout: failed") : 0;
}
