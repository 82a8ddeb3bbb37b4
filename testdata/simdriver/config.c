/*
 * The config file:
 *
 *   # comment
 *   [driver]
 *   version = 570.172.08
 *   cuda = 12.8
 *   [card]
 *   profile = H200          # first key of a card
 *   uuid = GPU-…            # the rest is optional
 *   mig = 1g.18gb           # once for each MIG device; on: MIG without one
 *
 * The same keys work in `simctl init --card H200:uuid=…,minor=3` and in `simctl set 0 kernel_us=50`.
 */
#define _GNU_SOURCE
#include "simctl.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum unit { PLAIN32, MIB64, US64 };

/* Keys whose value is a number. */
static const struct {
	const char *key;
	size_t offset;
	enum unit unit;
} numbers[] = {
	{"memory_mib", offsetof(struct card, memory_bytes), MIB64},
	{"reserved_mib", offsetof(struct card, reserved_bytes), MIB64},
	{"context_mib", offsetof(struct card, context_bytes), MIB64},
	{"kernel_us", offsetof(struct card, kernel_ns), US64},
	{"slice_us", offsetof(struct card, slice_ns), US64},
	{"queue", offsetof(struct card, queue_depth), PLAIN32},
	{"sample_ms", offsetof(struct card, sample_ms), PLAIN32},
	{"minor", offsetof(struct card, minor), PLAIN32},
	{"numa", offsetof(struct card, numa_node), PLAIN32},
	{"pci_root", offsetof(struct card, pci_root), PLAIN32},
	{"pci_upper", offsetof(struct card, pci_upper), PLAIN32},
	{"pci_switch", offsetof(struct card, pci_switch), PLAIN32},
	{"pci_board", offsetof(struct card, pci_board), PLAIN32},
	{"nvswitch", offsetof(struct card, nvswitch_links), PLAIN32},
	{"sm", offsetof(struct card, sm_count), PLAIN32},
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

static bool set_number(struct card *c, size_t i, const char *value)
{
	char *at = (char *)c + numbers[i].offset;
	uint64_t n;
	uint64_t scale = numbers[i].unit == MIB64 ? 1ull << 20 : numbers[i].unit == US64 ? 1000 : 1;

	if (!parse_number(value, &n) || (!n && needs_some(numbers[i].key)) || n > (numbers[i].unit == PLAIN32 ? INT32_MAX : INT64_MAX / scale))
		return complain("%s: not a number in range: %s", numbers[i].key, value);
	if (numbers[i].unit == PLAIN32)
		*(uint32_t *)at = (uint32_t)n;
	else
		*(uint64_t *)at = n * scale;
	return true;
}

/* What NVML says whatever the card does, or again what follows from that. */
static bool set_told(uint32_t *told, const char *key, const char *value, uint64_t most)
{
	uint64_t n;

	if (!strcmp(value, "auto"))
		return !(*told = 0);
	if (!parse_number(value, &n) || n > most)
		return complain("%s: want auto or a number up to %llu: %s", key, (unsigned long long)most, value);
	*told = (uint32_t)n + 1;
	return true;
}

static bool set_pci(struct card *c, const char *value)
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

static bool set_nvlink(struct card *c, const char *value)
{
	unsigned card, count;
	char rest;

	if (sscanf(value, "%u:%u%c", &card, &count, &rest) != 2 || card >= MAX_CARDS || count > MAX_NVLINKS)
		return complain("nvlink: want CARD:COUNT with at most %u: %s", MAX_NVLINKS, value);
	c->nvlinks[card] = (uint8_t)count;
	return true;
}

bool card_set(struct card *c, const char *key, const char *value)
{
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (!strcmp(key, numbers[i].key))
			return set_number(c, i, value);
	}
	if (!strcmp(key, "temperature"))
		return set_told(&c->told_celsius, key, value, 200);
	if (!strcmp(key, "power_mw"))
		return set_told(&c->told_power_mw, key, value, 10000000);
	if (!strcmp(key, "utilization"))
		return set_told(&c->told_percent, key, value, 100);
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
	return complain("unknown key of a card: %s", key);
}

static const char *const pid_kinds[] = {[PIDS_OWN] = "own", [PIDS_HOST] = "host", [PIDS_MIXED] = "mixed"};

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
	if (!strcmp(key, "cuda")) {
		if (sscanf(value, "%u.%u%c", &major, &minor, &rest) != 2 || major < 2 || major > 99 || minor > 9)
			return complain("cuda: want MAJOR.MINOR, as 12.8: %s", value);
		s->cuda_version = major * 1000 + minor * 10;
		return true;
	}
	if (!strcmp(key, "pids")) {
		for (unsigned i = 0; i < sizeof(pid_kinds) / sizeof(pid_kinds[0]); i++) {
			if (!strcmp(value, pid_kinds[i])) {
				s->nvml_pids = i;
				return true;
			}
		}
		return complain("pids: want own, host or mixed: %s", value);
	}
	return complain("unknown key of the driver: %s", key);
}

/* Of a card that is being made; a running one has simctl mig. */
static bool new_card_set(struct card *c, const char *key, const char *value)
{
	return strcmp(key, "mig") ? card_set(c, key, value) : mig_key(c, value);
}

static bool card_add(struct state *s, const char *profile)
{
	if (s->card_count == MAX_CARDS)
		return complain("more than %u cards", MAX_CARDS);
	if (!card_from_profile(&s->cards[s->card_count], profile, s->card_count)) {
		fprintf(stderr, "simctl: known profiles: ");
		list_profiles(stderr);
		fputc('\n', stderr);
		return complain("unknown profile: %s", profile);
	}
	s->card_count++;
	return true;
}

bool card_from_text(struct state *s, const char *text)
{
	char *copy = strdup(text);
	char *rest = copy, *pair;
	char *profile = strsep(&rest, ":");
	bool ok = card_add(s, profile);

	while (ok && (pair = strsep(&rest, ","))) {
		char *value = strchr(pair, '=');

		if (!value) {
			ok = complain("--card %s: want key=value: %s", text, pair);
			break;
		}
		*value++ = 0;
		ok = new_card_set(&s->cards[s->card_count - 1], pair, value);
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

static bool set_line(struct state *s, const char *section, bool *card_open, const char *key, const char *value)
{
	if (!strcmp(section, "[driver]"))
		return driver_set(s, key, value);
	if (strcmp(section, "[card]") != 0)
		return complain("%s = %s stands in no section", key, value);
	if (!strcmp(key, "profile")) {
		if (*card_open)
			return complain("a card has one profile");
		*card_open = true;
		return card_add(s, value);
	}
	if (!*card_open)
		return complain("profile must be a card's first key");
	return new_card_set(&s->cards[s->card_count - 1], key, value);
}

static bool read_line(struct state *s, char *line, char *section, size_t room, bool *card_open)
{
	char *text, *value;

	line[strcspn(line, "#\n")] = 0;
	text = trim(line);
	if (!*text)
		return true;
	if (*text == '[') {
		if (strcmp(text, "[driver]") != 0 && strcmp(text, "[card]") != 0)
			return complain("unknown section: %s", text);
		snprintf(section, room, "%s", text);
		*card_open = false;
		return true;
	}
	value = strchr(text, '=');
	if (!value)
		return complain("want key = value: %s", text);
	*value++ = 0;
	return set_line(s, section, card_open, trim(text), trim(value));
}

bool config_read(struct state *s, const char *path)
{
	FILE *file = fopen(path, "re");
	char section[16] = "";
	char *line = NULL;
	size_t room = 0;
	unsigned number = 0;
	bool card_open = false, ok = true;

	if (!file)
		return complain("read %s: %s", path, strerror(errno));
	while (ok && getline(&line, &room, file) >= 0) {
		number++;
		ok = read_line(s, line, section, sizeof(section), &card_open);
	}
	free(line);
	fclose(file);
	return ok || complain("%s: line %u", path, number);
}
