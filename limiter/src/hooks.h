/* The table of hooked names: for each its wrapper (the exported function of the
 * same name) and the driver's own function. */
#ifndef GPUSLICE_HOOKS_H
#define GPUSLICE_HOOKS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "api.h"

enum hook_id {
#define HOOK(library, name, what) HOOK_##name,
#define HELPER(library, name) HOOK_##name,
#include "hooks.def"
#undef HOOK
#undef HELPER
	HOOK_COUNT,
};

/* The driver's own function, with the wrapper's type. If the driver has no such function, a
 * function that returns an error. */
#define REAL(name) ((__typeof__(&name))hook_real(HOOK_##name))

static inline void *hook_real(enum hook_id id);
/* Whether the driver has the function at all. */
bool hook_exists(enum hook_id id);

/* The driver's functions. NULL: the driver has none, or it was not looked up yet. */
extern _Atomic(void *) hook_reals[HOOK_COUNT];
void *hook_real_slow(enum hook_id id);

static inline void *hook_real(enum hook_id id)
{
	/* Relaxed: no other data depends on the address, and the library is never unloaded. */
	void *found = atomic_load_explicit(&hook_reals[id], memory_order_relaxed);

	return __builtin_expect(found != NULL, 1) ? found : hook_real_slow(id);
}

/* The hook of that name; HOOK_COUNT: the name is not hooked. */
enum hook_id hook_named(const char *name);
void *hook_wrapper(enum hook_id id);
/* The driver's function of that name if its library is loaded, else NULL. */
void *hook_loaded(enum hook_id id);
/* Records an address of the driver's function that a look-up returned, as a hint where the driver
 * is loaded. */
void hook_seen(enum hook_id id, void *address);

/* The wrapper of the driver's function at this address; the address itself if
 * it is not hooked. */
void *hook_swap(void *address);
/* Whether some form of this name (without version and stream suffix) takes memory. */
bool hook_takes_memory(const char *base);
/* The same of compute time, or shows when it ends. */
bool hook_takes_time(const char *base);
/* Whether this is the address of a wrapper. */
bool hook_is_wrapper(const void *address);

#endif
