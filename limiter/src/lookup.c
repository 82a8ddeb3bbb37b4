/* Decides for the trampolines of dlsym and dlvsym. A name that is not hooked is passed to the
 * real function unchanged. Nothing is initialised here. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "hooks.h"
#include "loader.h"

struct pick {
	void *jump;  /* the real function, to be jumped to; or NULL, and then */
	void *value; /* the answer */
};

struct pick vgpu_pick_dlsym(void *handle, const char *name);
struct pick vgpu_pick_dlvsym(void *handle, const char *name, const char *version);

static bool capital(char c)
{
	return c >= 'A' && c <= 'Z';
}

static enum hook_id hooked(const char *name)
{
	if (!name)
		return HOOK_COUNT;
	if (name[0] == 'c' ? name[1] == 'u' && capital(name[2])
	                   : name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l' && capital(name[4]))
		return hook_named(name);
	return HOOK_COUNT;
}

/* A global look-up always finds this library first. So the result depends on whether the driver is
 * loaded. A front in another namespace has brought a limiter of its own, for the driver there. */
static struct pick answer(enum hook_id id, void *found)
{
	if (found == hook_wrapper(id))
		found = hook_loaded(id);
	if (!found)
		return (struct pick){ NULL, NULL };
	if (loader_is_copy(found, hook_wrapper(id)))
		return (struct pick){ NULL, found };
	hook_seen(id, found);
	return (struct pick){ NULL, hook_wrapper(id) };
}

static bool is_global(void *handle)
{
	return handle == RTLD_DEFAULT || handle == RTLD_NEXT;
}

/* A look-up of dlsym or dlvsym in libc itself returns libc's function, which would find the driver's
 * functions. If it is the function that this library's wrapper jumps to, the wrapper is returned
 * instead. RTLD_NEXT depends on the caller, so it is not changed. */
static void *own_lookup(void *found)
{
	return !found ? NULL : found == loader_dlsym_address() ? (void *)dlsym : found == loader_dlvsym_address() ? (void *)dlvsym : NULL;
}

static bool looks_up(void *handle, const char *name)
{
	return name && name[0] == 'd' && name[1] == 'l' && handle != RTLD_NEXT && (!strcmp(name, "dlsym") || !strcmp(name, "dlvsym"));
}

struct pick vgpu_pick_dlsym(void *handle, const char *name)
{
	enum hook_id id = hooked(name);

	if (id == HOOK_COUNT) {
		void *own = looks_up(handle, name) ? own_lookup(loader_dlsym(handle, name)) : NULL;
		return (struct pick){ own ? NULL : loader_dlsym_address(), own };
	}
	struct pick pick = answer(id, is_global(handle) ? hook_loaded(id) : loader_dlsym(handle, name));
	if (!pick.value) /* look up again behind this library, where it is missing too, so that dlerror() reports it */
		loader_dlsym(is_global(handle) || loader_dlsym(handle, name) ? RTLD_NEXT : handle, name);
	return pick;
}

struct pick vgpu_pick_dlvsym(void *handle, const char *name, const char *version)
{
	enum hook_id id = hooked(name);

	if (id == HOOK_COUNT) {
		void *own = looks_up(handle, name) ? own_lookup(loader_dlvsym(handle, name, version)) : NULL;
		return (struct pick){ own ? NULL : loader_dlvsym_address(), own };
	}
	struct pick pick = answer(id, loader_dlvsym(is_global(handle) ? RTLD_NEXT : handle, name, version));
	if (!pick.value)
		loader_dlvsym(is_global(handle) || loader_dlvsym(handle, name, version) ? RTLD_NEXT : handle, name, version);
	return pick;
}
