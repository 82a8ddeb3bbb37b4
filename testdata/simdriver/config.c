/*
 * The config file:
 *
 *   # comment
 *   [driver]
 *   branch = 570            # the next two of a driver of that branch
 *   version = 570.172.08
 *   cuda = 12.8
 *   [gpu]
 *   profile = H200          # first key of a GPU
 *   uuid = GPU-…            # the rest is optional
 *   mig = 1g.18gb           # once for each MIG device; on: MIG without one
 *
 * The same keys work in `simctl init --gpu H200:uuid=…,minor=3` and in `simctl set 0 kernel_us=50`.
 */
#define _GNU_SOURCE
#include "simctl.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum unit { PLAIN32, NS64, KIB64, MIB64, US64 };

/* Keys with a number as value. */
static const struct {
	const char *key;
	size_t offset;
	enum unit unit;
} numbers[] = {
	{"memory_mib", offsetof(struct gpu, memory_bytes), MIB64},
	{"reserved_mib", offsetof(struct gpu, reserved_bytes), MIB64},
	{"context_mib", offsetof(struct gpu, context_bytes), MIB64},
	{"unlisted_mib", offsetof(struct gpu, unlisted_bytes), MIB64},
	{"init_mib", offsetof(struct gpu, init_bytes), MIB64},
	{"page_kib", offsetof(struct gpu, page_bytes), KIB64},
	{"small_kib", offsetof(struct gpu, small_bytes), KIB64},
	{"kernel_us", offsetof(struct gpu, kernel_ns), US64},
	{"slice_us", offsetof(struct gpu, slice_ns), US64},
	{"switch_us", offsetof(struct gpu, switch_ns), US64},
	{"gap_ns", offsetof(struct gpu, gap_ns), NS64},
	{"start_ns", offsetof(struct gpu, start_ns), NS64},
	{"event_ns", offsetof(struct gpu, event_ns), NS64},
	{"queue", offsetof(struct gpu, queue_depth), PLAIN32},
	{"sample_ms", offsetof(struct gpu, sample_ms), PLAIN32},
	{"minor", offsetof(struct gpu, minor), PLAIN32},
	{"numa", offsetof(struct gpu, numa_node), PLAIN32},
	{"pci_root", offsetof(struct gpu, pci_root), PLAIN32},
	{"pci_upper", offsetof(struct gpu, pci_upper), PLAIN32},
	{"pci_switch", offsetof(struct gpu, pci_switch), PLAIN32},
	{"pci_board", offsetof(struct gpu, pci_board), PLAIN32},
	{"nvswitch", offsetof(struct gpu, nvswitch_links), PLAIN32},
	{"utilization_delay_ms", offsetof(struct gpu, utilization_delay_ms), PLAIN32},
	{"sm", offsetof(struct gpu, sm_count), PLAIN32},
};

static bool parse_number(const char *text, uint64_t *n)
{
	char *end;

	errno = 0;
	*n = strtoull(text, &end, 0);
	return isdigit((unsigned char)*text) && !*end && !errno;
}

/* Keys that must not be 0. */
static bool needs_some(const char *key)
{
	return !strcmp(key, "slice_us") || !strcmp(key, "queue") || !strcmp(key, "sample_ms");
}

static bool set_number(struct gpu *c, size_t i, const char *value)
{
	char *at = (char *)c + numbers[i].offset;
	uint64_t n;
	static const uint64_t scales[] = {[PLAIN32] = 1, [NS64] = 1, [KIB64] = 1 << 10, [MIB64] = 1 << 20, [US64] = 1000};
	uint64_t scale = scales[numbers[i].unit];

	if (!parse_number(value, &n) || (!n && needs_some(numbers[i].key)) || n > (numbers[i].unit == PLAIN32 ? INT32_MAX : INT64_MAX / scale))
		return complain("%s: not a number in range: %s", numbers[i].key, value);
	if (numbers[i].unit == PLAIN32)
		*(uint32_t *)at = (uint32_t)n;
	else
		*(uint64_t *)at = n * scale;
	return true;
}

/* Sets a value that NVML reports whatever the GPU does; with "auto" NVML reports the simulated value. */
static bool set_fixed(uint32_t *fixed, const char *key, const char *value, uint64_t most)
{
	uint64_t n;

	if (!strcmp(value, "auto"))
		return !(*fixed = 0);
	if (!parse_number(value, &n) || n > most)
		return complain("%s: want auto or a number up to %llu: %s", key, (unsigned long long)most, value);
	*fixed = (uint32_t)n + 1;
	return true;
}

static bool set_pci(struct gpu *c, const char *value)
{
	unsigned domain, bus, device;
	char rest;

	if (sscanf(value, "%x:%x:%x.0%c", &domain, &bus, &device, &rest) != 3 || bus > 255 || device > 31)
		return complain("pci: want domain:bus:device.0 in hex, as 00000000:11:00.0: %s", value);
	c->pci_domain = domain;
	c->pci_bus = bus;
	c->pci_device = device;
	return true;
}

static bool set_nvlink(struct gpu *c, const char *value)
{
	unsigned gpu, count;
	char rest;

	if (sscanf(value, "%u:%u%c", &gpu, &count, &rest) != 2 || gpu >= MAX_GPUS || count > MAX_NVLINKS)
		return complain("nvlink: want GPU:COUNT with at most %u: %s", MAX_NVLINKS, value);
	c->nvlinks[gpu] = (uint8_t)count;
	return true;
}

/* One of the words of a table, as its index. */
static bool set_word(uint32_t *to, const char *key, const char *value, const char *const *words, unsigned count)
{
	char list[128];
	unsigned used = 0;

	for (unsigned i = 0; i < count; i++) {
		if (!strcmp(value, words[i])) {
			*to = i;
			return true;
		}
	}
	for (unsigned i = 0; i < count; i++)
		used += (unsigned)snprintf(list + used, sizeof(list) - used, "%s%s", !i ? "" : i + 1 < count ? ", " : " or ", words[i]);
	return complain("%s: want %s: %s", key, list, value);
}

#define SET_WORD(to, key, value, words) set_word(to, key, value, words, sizeof(words) / sizeof((words)[0]))

static const char *const switches[] = {"off", "on"};

static const char *const mig_uuids[] = {[MIG_UUIDS_PLACE] = "place", [MIG_UUIDS_CREATION] = "creation"};

static const char *const utilizations[] = {
	[UTILIZATION_DETAILED] = "detailed", [UTILIZATION_INFO] = "info",	[UTILIZATION_ZERO] = "zero",
	[UTILIZATION_NONE] = "none",	     [UTILIZATION_MISSING] = "missing",
};

bool gpu_set(struct gpu *c, const char *key, const char *value)
{
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (!strcmp(key, numbers[i].key))
			return set_number(c, i, value);
	}
	if (!strcmp(key, "temperature"))
		return set_fixed(&c->fixed_celsius, key, value, 200);
	if (!strcmp(key, "power_mw"))
		return set_fixed(&c->fixed_power_mw, key, value, 10000000);
	if (!strcmp(key, "utilization"))
		return set_fixed(&c->fixed_percent, key, value, 100);
	if (!strcmp(key, "mps"))
		return SET_WORD(&c->mps, key, value, switches);
	if (!strcmp(key, "mig_uuid"))
		return SET_WORD(&c->mig_uuids, key, value, mig_uuids);
	if (!strcmp(key, "process_utilization"))
		return SET_WORD(&c->process_utilization, key, value, utilizations);
	if (!strcmp(key, "pci"))
		return set_pci(c, value);
	if (!strcmp(key, "nvlink"))
		return set_nvlink(c, value);
	if (!strcmp(key, "name")) {
		if (!*value || strlen(value) >= sizeof(c->name))
			return complain("name: want 1 to %zu characters", sizeof(c->name) - 1);
		strcpy(c->name, value);
		return true;
	}
	if (!strcmp(key, "uuid"))
		return uuid_parse(value, c->uuid) || complain("uuid: want GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx: %s", value);
	return complain("unknown key of a GPU: %s", key);
}

static const char *const limit_kinds[] = {[LIMITS_NONE] = "none", [LIMITS_MISC] = "misc", [LIMITS_DMEM] = "dmem"};
static const char *const pid_kinds[] = {[PIDS_OWN] = "own", [PIDS_HOST] = "host", [PIDS_MIXED] = "mixed"};

/* Drivers by branch; the version of 615's CUDA is our reading. */
static const struct {
	const char *branch, *version;
	uint32_t cuda;
} drivers[] = {
	{"535", "535.309.01", 12020}, {"550", "550.163.01", 12040}, {"570", "570.172.08", 12080},
	{"580", "580.105.08", 13000}, {"615", "615.36.01", 13050},
};

static const char branch_with_limits[] = "615";

static bool set_branch(struct state *s, const char *value)
{
	for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++) {
		if (strcmp(drivers[i].branch, value) != 0)
			continue;
		strcpy(s->driver_version, drivers[i].version);
		s->cuda_version = drivers[i].cuda;
		s->memory_limits = strcmp(branch_with_limits, value) ? LIMITS_NONE : LIMITS_MISC;
		return true;
	}
	return complain("branch: want 535, 550, 570, 580 or 615: %s", value);
}

bool driver_set(struct state *s, const char *key, const char *value)
{
	unsigned major, minor;
	char rest;

	if (!strcmp(key, "version")) {
		if (!*value || strlen(value) >= sizeof(s->driver_version))
			return complain("version: want 1 to %zu characters", sizeof(s->driver_version) - 1);
		strcpy(s->driver_version, value);
		return true;
	}
	if (!strcmp(key, "branch"))
		return set_branch(s, value);
	if (!strcmp(key, "cuda")) {
		if (sscanf(value, "%u.%u%c", &major, &minor, &rest) != 2 || major < 2 || major > 99 || minor > 9)
			return complain("cuda: want MAJOR.MINOR, as 12.8: %s", value);
		s->cuda_version = major * 1000 + minor * 10;
		return true;
	}
	if (!strcmp(key, "pids"))
		return SET_WORD(&s->nvml_pids, key, value, pid_kinds);
	if (!strcmp(key, "memory_limits"))
		return SET_WORD(&s->memory_limits, key, value, limit_kinds);
	return complain("unknown key of the driver: %s", key);
}

/* Of a GPU that is being made; a running one has simctl mig. */
static bool new_gpu_set(struct gpu *c, const char *key, const char *value)
{
	return strcmp(key, "mig") ? gpu_set(c, key, value) : mig_key(c, value);
}

static bool gpu_add(struct state *s, const char *profile)
{
	if (s->gpu_count == MAX_GPUS)
		return complain("more than %u GPUs", MAX_GPUS);
	if (!gpu_from_profile(&s->gpus[s->gpu_count], profile, s->gpu_count)) {
		fprintf(stderr, "simctl: known profiles: ");
		list_profiles(stderr);
		fputc('\n', stderr);
		return complain("unknown profile: %s", profile);
	}
	s->gpu_count++;
	return true;
}

bool gpu_from_text(struct state *s, const char *text)
{
	char *copy = strdup(text);
	char *rest = copy, *pair;
	char *profile = strsep(&rest, ":");
	bool ok = gpu_add(s, profile);

	while (ok && (pair = strsep(&rest, ","))) {
		char *value = strchr(pair, '=');

		if (!value) {
			ok = complain("--gpu %s: want key=value: %s", text, pair);
			break;
		}
		*value++ = 0;
		ok = new_gpu_set(&s->gpus[s->gpu_count - 1], pair, value);
	}
	free(copy);
	return ok;
}

static char *trim(char *text)
{
	char *end;

	text += strspn(text, " \t");
	end = text + strlen(text);
	while (end > text && isspace((unsigned char)end[-1]))
		*--end = 0;
	return text;
}

static bool set_line(struct state *s, const char *section, bool *gpu_open, const char *key, const char *value)
{
	if (!strcmp(section, "[driver]"))
		return driver_set(s, key, value);
	if (strcmp(section, "[gpu]") != 0)
		return complain("%s = %s stands in no section", key, value);
	if (!strcmp(key, "profile")) {
		if (*gpu_open)
			return complain("a GPU has one profile");
		*gpu_open = true;
		return gpu_add(s, value);
	}
	if (!*gpu_open)
		return complain("profile must be a GPU's first key");
	return new_gpu_set(&s->gpus[s->gpu_count - 1], key, value);
}

static bool read_line(struct state *s, char *line, char *section, size_t room, bool *gpu_open)
{
	char *text, *value;

	line[strcspn(line, "#\n")] = 0;
	text = trim(line);
	if (!*text)
		return true;
	if (*text == '[') {
		if (strcmp(text, "[driver]") != 0 && strcmp(text, "[gpu]") != 0)
			return complain("unknown section: %s", text);
		snprintf(section, room, "%s", text);
		*gpu_open = false;
		return true;
	}
	value = strchr(text, '=');
	if (!value)
		return complain("want key = value: %s", text);
	*value++ = 0;
	return set_line(s, section, gpu_open, trim(text), trim(value));
}

bool config_read(struct state *s, const char *path)
{
	FILE *file = fopen(path, "re");
	char section[16] = "";
	char *line = NULL;
	size_t room = 0;
	unsigned number = 0;
	bool gpu_open = false, ok = true;

	if (!file)
		return complain("read %s: %s", path, strerror(errno));
	while (ok && getline(&line, &room, file) >= 0) {
		number++;
		ok = read_line(s, line, section, sizeof(section), &gpu_open);
	}
	free(line);
	fclose(file);
	return ok || complain("%s: line %u", path, number);
}
