#include "hooks.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "loader.h"

enum library { CUDA, NVML, LIBRARIES };
enum what { PLAIN, TAKES, HOLDS, GIVES, VIEW, CONTEXT, LAUNCH, CAPTURE, SEAM };

/* Without a pointer: the loader relocates each in every program. */
static const struct hook {
	char name[48];
	uint8_t length, library, what;
} hooks[HOOK_COUNT] = {
#define HOOK(library, name, what) { #name, sizeof(#name) - 1, library, what },
#define HELPER(library, name) { #name, sizeof(#name) - 1, library, PLAIN },
#include "hooks.def"
#undef HOOK
#undef HELPER
};

static void *const wrappers[HOOK_COUNT] = {
#define HOOK(library, name, what) (void *)name,
#define HELPER(library, name) NULL, /* only called */
#include "hooks.def"
#undef HOOK
#undef HELPER
};

static const char *const sonames[LIBRARIES] = { "libcuda.so.1", "libnvidia-ml.so.1" };

/* The driver's functions. They are filled from a library that is pinned by then,
 * and every thread that fills them fills in the same: no lock. */
_Atomic(void *) hook_reals[HOOK_COUNT];
static _Atomic bool resolved[LIBRARIES];
static _Atomic(void *) hint[LIBRARIES]; /* an address inside the library */

static CUresult no_cuda(void)
{
	return CUDA_ERROR_NOT_INITIALIZED;
}

static nvmlReturn_t no_nvml(void)
{
	return NVML_ERROR_UNINITIALIZED;
}

static void *find_in(void *handle, enum hook_id id)
{
	void *found = loader_dlsym(handle, hooks[id].name);

	return found == wrappers[id] ? NULL : found;
}

/* If the front (limiter/front) loaded this library, the driver's soname is the front's, and a
 * look-up in the front finds the wrappers first. The driver is then the library that defines a
 * function that is not hooked: a helper. */
static void *behind_front(enum library library, void *front)
{
	for (enum hook_id id = 0; front && id < HOOK_COUNT; id++) {
		void *found = hooks[id].library == library && !wrappers[id] ? loader_dlsym(front, hooks[id].name) : NULL;

		if (found)
			return loader_holding(found);
	}
	return NULL;
}

static bool is_front(enum library library, void *handle)
{
	enum hook_id id = library == CUDA ? HOOK_cuInit : HOOK_nvmlDeviceGetMemoryInfo;

	return handle && loader_dlsym(handle, hooks[id].name) == wrappers[id];
}

/* The driver's library, if it is loaded. */
static void *open_driver(enum library library)
{
	void *handle = loader_loaded(sonames[library]);

	if (!is_front(library, handle))
		return handle;
	void *driver = behind_front(library, handle);
	loader_close(handle);
	return driver;
}

static void *open_library(enum library library)
{
	void *handle = open_driver(library);
	void *seen = atomic_load_explicit(&hint[library], memory_order_relaxed);

	if (!handle && seen)
		handle = loader_holding(seen);
	return handle; /* kept: the addresses below stay valid for ever */
}

static void resolve(enum library library)
{
	void *handle = open_library(library);
	bool any = false;

	for (enum hook_id id = 0; id < HOOK_COUNT; id++) {
		if (hooks[id].library != library)
			continue;
		void *found = find_in(handle ? handle : RTLD_NEXT, id);
		atomic_store_explicit(&hook_reals[id], found, memory_order_relaxed);
		any = any || found;
	}
	/* Release: a thread that reads `resolved` reads the addresses. */
	if (any)
		atomic_store_explicit(&resolved[library], true, memory_order_release);
}

static void *address(enum hook_id id)
{
	enum library library = hooks[id].library;

	/* Acquire: pairs with the release in resolve(). */
	if (__builtin_expect(!atomic_load_explicit(&resolved[library], memory_order_acquire), 0))
		resolve(library);
	return atomic_load_explicit(&hook_reals[id], memory_order_relaxed);
}

void *hook_real_slow(enum hook_id id)
{
	void *found = address(id);

	if (found)
		return found;
	return hooks[id].library == CUDA ? (void *)no_cuda : (void *)no_nvml;
}

bool hook_exists(enum hook_id id)
{
	return address(id) != NULL;
}

enum hook_id hook_named(const char *name)
{
	size_t length = strlen(name);
	enum hook_id id = 0;

	while (id < HOOK_COUNT && (hooks[id].length != length || !wrappers[id] || memcmp(hooks[id].name, name, length)))
		id++;
	return id;
}

void *hook_wrapper(enum hook_id id)
{
	return wrappers[id];
}

void *hook_loaded(enum hook_id id)
{
	void *found = find_in(RTLD_NEXT, id);
	void *handle = found ? NULL : open_driver(hooks[id].library);

	if (handle) {
		found = find_in(handle, id);
		loader_close(handle);
	}
	return found;
}

void hook_seen(enum hook_id id, void *seen)
{
	atomic_store_explicit(&hint[hooks[id].library], seen, memory_order_relaxed);
}

void *hook_swap(void *seen)
{
	for (enum hook_id id = 0; id < HOOK_COUNT; id++)
		if (wrappers[id] && address(id) == seen)
			return wrappers[id];
	return seen;
}

bool hook_is_wrapper(const void *seen)
{
	for (enum hook_id id = 0; id < HOOK_COUNT; id++)
		if (wrappers[id] && wrappers[id] == seen)
			return true;
	return false;
}

/* The length of a name without _v2, _ptsz, _ptds and the like. */
static size_t base_length(const char *name)
{
	size_t length = strlen(name);

	if (length > 5 && (!strcmp(name + length - 5, "_ptsz") || !strcmp(name + length - 5, "_ptds")))
		length -= 5;
	if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v')
		length -= 3;
	return length;
}

static bool is_of(const char *base, enum what one, enum what other)
{
	size_t length = base_length(base);

	for (enum hook_id id = 0; id < HOOK_COUNT; id++)
		if ((hooks[id].what == one || hooks[id].what == other) && base_length(hooks[id].name) == length && !memcmp(hooks[id].name, base, length))
			return true;
	return false;
}

bool hook_takes_memory(const char *base)
{
	return is_of(base, TAKES, HOLDS);
}

bool hook_takes_time(const char *base)
{
	return is_of(base, LAUNCH, LAUNCH);
}
