/* RTLD_NEXT and RTLD_DEFAULT mean something else for each caller. Built three
 * times: as the program, and as libfirst.so and libsecond.so that it links. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int marker(void) { return OBJECT; }

#define ASK(n) int ask##n(void *how) { int (*f)(void) = dlsym(how, "marker"); return f ? f() : 0; }
#define ASKS_(n) ASK(n)
ASKS_(OBJECT)

#if OBJECT == 1
int ask2(void *), ask3(void *);
static void show(void *found)
{
	const char *error = dlerror();

	printf("%d %s\n", found != NULL, error ? strstr(error, "undefined symbol") : "-");
}

int main(void)
{
	printf("%d ", ask1(RTLD_NEXT)), printf("%d ", ask2(RTLD_NEXT)), printf("%d\n", ask3(RTLD_NEXT));
	printf("%d %d %d\n", ask1(RTLD_DEFAULT), ask2(RTLD_DEFAULT), ask3(RTLD_DEFAULT));
	dlerror();
	show(dlsym(RTLD_NEXT, "no such"));
	show(dlsym(RTLD_DEFAULT, "cuInit"));
	show(dlsym(dlopen(NULL, RTLD_NOW), "cuMemAlloc_v2"));
	show(dlsym(RTLD_NEXT, "dlsym"));
	show(dlvsym(RTLD_NEXT, "getpid", "GLIBC_2.2.5"));
	show(dlvsym(RTLD_NEXT, "getpid", "NONE"));
	show(dlvsym(RTLD_DEFAULT, "cuInit", "NONE"));
	return 0;
}
#endif
