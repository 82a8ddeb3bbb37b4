/* The dynamic loader's own functions, found without naming them as symbols: this
 * library defines dlsym and dlvsym itself, and on newer glibc every such name
 * carries a version that older ones lack. */
#ifndef GPUSLICE_LOADER_H
#define GPUSLICE_LOADER_H

/* The addresses of libc's dlsym and dlvsym. */
void *loader_dlsym_address(void);
void *loader_dlvsym_address(void);

/* Calls libc's dlsym or dlvsym. */
void *loader_dlsym(void *handle, const char *name);
void *loader_dlvsym(void *handle, const char *name, const char *version);

/* The path of an object that was loaded before this library, has this soname and defines
 * name; NULL: there is none. */
const char *loader_in_front(const char *soname, const char *name);

/* A handle of the library with this soname if it is loaded, else NULL. */
void *loader_loaded(const char *soname);
/* A handle of the library that holds this address, else NULL. */
void *loader_holding(void *address);
/* Closes a handle of loader_loaded or loader_holding. */
void loader_close(void *handle);
/* A function of libc, by its default version. */
void *loader_function(const char *name);

#endif
