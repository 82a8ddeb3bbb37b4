/* Limits of memory for control groups (driver 615): which groups the process is in, and what they may have. */
#define _GNU_SOURCE
#include "client.h"
#include "memory_limit.h"

#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define PATH_ROOM 4096u

static const char *groups_root(void)
{
	static const char *const roots[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
	const char *set = getenv("SIMGPU_CGROUP_ROOT");
	struct statfs fs;

	if (set && *set)
		return set;
	for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
		if (!statfs(roots[i], &fs) && fs.f_type == CGROUP2_SUPER_MAGIC)
			return roots[i];
	}
	return NULL;
}

void cgroup_chain(const char *path, uint64_t ids[MAX_CGROUP_DEPTH])
{
	const char *root = groups_root();
	char at[PATH_ROOM];
	size_t end = root ? strlen(root) : 0;
	struct stat st;

	memset(ids, 0, MAX_CGROUP_DEPTH * sizeof(ids[0]));
	if (!root || snprintf(at, sizeof(at), "%s", path) >= (int)sizeof(at) || strncmp(at, root, end) != 0)
		return;
	for (unsigned i = 0; i < MAX_CGROUP_DEPTH && strlen(at) >= end && *at; i++) {
		char *slash = strrchr(at, '/');

		while (slash && !slash[1] && slash > at) { /* a slash at its end */
			*slash = 0;
			slash = strrchr(at, '/');
		}
		ids[i] = stat(at, &st) ? 0 : st.st_ino;
		if (!slash)
			return;
		*slash = 0;
	}
}

/* The path of the own group below the root. */
static bool own_group(char path[PATH_ROOM])
{
	const char *set = getenv("SIMGPU_CGROUP"), *root = groups_root();
	char line[PATH_ROOM];
	bool found = false;
	FILE *file;

	if (set && *set)
		return snprintf(path, PATH_ROOM, "%s", set) < (int)PATH_ROOM;
	file = root ? fopen("/proc/self/cgroup", "re") : NULL;
	while (file && !found && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = 0;
		found = !strncmp(line, "0::", 3) && snprintf(path, PATH_ROOM, "%s%s", root, line + 3) < (int)PATH_ROOM;
	}
	if (file)
		fclose(file);
	return found;
}

void cgroups_own(const struct state *s, uint64_t ids[MAX_CGROUP_DEPTH])
{
	char path[PATH_ROOM];

	memset(ids, 0, MAX_CGROUP_DEPTH * sizeof(ids[0]));
	if (atomic_load(&s->limit_count) && own_group(path))
		cgroup_chain(path, ids);
}

struct memory_limit *limit_find(struct state *s, unsigned gpu, uint64_t cgroup)
{
	for (unsigned i = 0; cgroup && i < MAX_LIMITS; i++) {
		if (s->limits[i].cgroup == cgroup && s->limits[i].gpu == gpu)
			return &s->limits[i];
	}
	return NULL;
}

static bool is_in(const struct client *cl, uint64_t cgroup)
{
	for (unsigned i = 0; i < MAX_CGROUP_DEPTH; i++) {
		if (cl->cgroups[i] == cgroup)
			return true;
	}
	return false;
}

uint64_t cgroup_used(const struct state *s, unsigned gpu, uint64_t cgroup)
{
	uint64_t used = 0;

	for (unsigned i = 0; i < s->client_limit && i < MAX_CLIENTS; i++) {
		const struct client *cl = &s->clients[i];
		const struct client_gpu *c = &cl->gpus[gpu];

		if (atomic_load(&cl->taken) && is_in(cl, cgroup))
			used += c->used[CHARGE_CONTEXT] + c->used[CHARGE_DATA] + c->shared;
	}
	return used;
}

/* misc: the nearest group with a limit counts. dmem: every one. */
bool limits_fit(struct state *s, const struct client *cl, unsigned gpu, uint64_t bytes)
{
	for (unsigned i = 0; atomic_load(&s->limit_count) && i < MAX_CGROUP_DEPTH; i++) {
		const struct memory_limit *limit = limit_find(s, gpu, cl->cgroups[i]);
		uint64_t used = limit ? cgroup_used(s, gpu, limit->cgroup) : 0;

		if (!limit)
			continue;
		if (bytes > limit->hard || used > limit->hard - bytes)
			return false;
		if (s->memory_limits == LIMITS_MISC)
			return true;
	}
	return true;
}

bool limit_shown(struct view *v, unsigned gpu, uint64_t *hard, uint64_t *used)
{
	uint64_t ids[MAX_CGROUP_DEPTH];
	bool found = false;

	cgroups_own(v->s, ids);
	if (!ids[0] || state_lock(v))
		return false;
	for (unsigned i = 0; i < MAX_CGROUP_DEPTH && !found; i++) {
		const struct memory_limit *limit = limit_find(v->s, gpu, ids[i]);

		if (!limit)
			continue;
		*hard = limit->hard;
		*used = cgroup_used(v->s, gpu, limit->cgroup);
		found = true;
	}
	state_unlock(v);
	return found;
}
