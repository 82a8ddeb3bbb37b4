/* The dynamic loader's own functions, found without naming them as symbols: this
 * library defines dlsym and dlvsym itself, and on newer glibc every such name
 * carries a version that older ones lack. */
#ifndef GPUSLICE_LOADER_H
#define GPUSLICE_LOADER_H

#include <stdbool.h>

/* The addresses of libc's dlsym and dlvsym. */
void *loader_dlsym_address(void);
void *loader_dlvsym_address(void);

/* Calls libc's dlsym or dlvsym. */
void *loader_dlsym(void *handle, const char *name);
void *loader_dlvsym(void *handle, const char *name, const char *version);

/* The path of a library of the driver that was loaded before this one; NULL: there is none. */
const char *loader_driver_in_front(void);

/* A handle of the library with this soname if it is loaded, else NULL. */
void *loader_loaded(const char *soname);
/* Loads it if it is not. */
void *loader_load(const char *soname);
/* A handle of the library that holds this address, else NULL. */
void *loader_holding(void *address);
/* Whether the address is own, an address in this library, in another copy of it: one of another
 * namespace (dlmopen). */
bool loader_is_copy(const void *address, const void *own);
/* Closes a handle of loader_loaded or loader_holding. */
void loader_close(void *handle);
/* A function of libc, by its default version. */
void *loader_function(const char *name);

#endif
