/* cuGetProcAddress of the fake driver, for every hooked name: the first version of a
 * function came with CUDA 2, _v2 with 4, _v3 with 11.4, _v4 with 12.5; for programs
 * that ask for per-thread default streams the variants of that kind come first. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HOOK(library, name, what) extern int name();
#define HELPER(library, name) HOOK(library, name, )
#include "../../../limiter/src/hooks.def"
#undef HOOK

static const struct { const char *name; int (*function)(); } table[] = {
#define HOOK(library, name, what) { #name, name },
#include "../../../limiter/src/hooks.def"
};

/* Whether name is a variant of that function, of which version and kind. */
static int is_variant(const char *name, const char *base, int *since, int *per_thread)
{
	static const int came[] = { 2000, 2000, 4000, 11040, 12050 };
	size_t length = strlen(base);

	if (strncmp(name, base, length))
		return 0;
	name += length;
	*since = came[0];
	if (name[0] == '_' && name[1] == 'v' && name[2] >= '2' && name[2] <= '4') {
		*since = came[name[2] - '0'];
		name += 3;
	}
	*per_thread = !strcmp(name, "_ptsz") || !strcmp(name, "_ptds");
	return !*name || *per_thread;
}

static int find(const char *base, void **pfn, int version, uint64_t flags, int *status)
{
	int best = -1;

	*pfn = NULL;
	*status = 1; /* not found */
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		int since, per_thread, rank;

		if (!is_variant(table[i].name, base, &since, &per_thread))
			continue;
		if (*status == 1)
			*status = 2; /* known, but not in that version */
		rank = since + per_thread * 100000;
		if (since > version || (per_thread && flags != 2) || rank < best)
			continue;
		best = rank;
		*status = 0;
		*pfn = (void *)table[i].function;
	}
	return 0;
}

int cuGetProcAddress(const char *name, void **pfn, int version, uint64_t flags)
{
	int status, r = find(name, pfn, version, flags, &status);

	return r ? r : status ? 500 : 0;
}

int cuGetProcAddress_v2(const char *name, void **pfn, int version, uint64_t flags, int *status)
{
	int ignored;

	return find(name, pfn, version, flags, status ? status : &ignored);
}
