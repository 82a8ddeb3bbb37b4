/* A driver in which every hooked function exists and succeeds. fake_some.c
 * overrides what must do more. */
#define HOOK(library, name, what) __attribute__((weak)) int name(void) { return 0; }
#define HELPER(library, name) HOOK(library, name, )
#include "../../../limiter/src/hooks.def"
