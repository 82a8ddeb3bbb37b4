/* Linked with the driver and naming every hooked function as any C program does: prints
 * where each is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define HELPER(library, name)
#define HOOK(library, name, what) extern int name(void);
#include "../../../limiter/src/hooks.def"
#undef HOOK

int main(void)
{
	Dl_info info;
#define HOOK(library, name, what) \
	if (dladdr((void *)name, &info)) \
		printf("%s direct %s %s\n", #name, strrchr(info.dli_fname, '/') + 1, info.dli_sname);
#include "../../../limiter/src/hooks.def"
	return 0;
}
