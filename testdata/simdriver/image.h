/* Inside libcuda.so.1: an image of a module as PTX text, for a GPU of that compute capability (10 * major + minor). */
#ifndef SIMDRIVER_IMAGE_H
#define SIMDRIVER_IMAGE_H

#include "driver.h"

#include <stdio.h>

/* PTX text, a cubin, or a fat binary. */
CUresult image_write(FILE *out, const void *image, unsigned capability);
CUresult image_text(const void *image, unsigned capability, char **text); /* to be freed */
/* A cubin that holds the text, to be freed; NULL: no memory. */
void *image_cubin(const char *text, unsigned capability, size_t *bytes);
unsigned capability_of(CUcontext ctx);
/* The sizes of logs and the time that a compiler's options ask for: the logs are empty. */
CUresult jit_options(unsigned count, const int *options, void **values);

/* A file's whole content, with a 0 behind it, to be freed; NULL: it can't be read. */
char *read_whole_file(const char *path, size_t *bytes);

/* A module of the current context. */
CUresult module_load(CUmodule *out, const void *image);
CUresult module_unload(CUmodule module);
/* Process lock held. */
CUfunction module_function(CUmodule module, const char *name);

#endif
