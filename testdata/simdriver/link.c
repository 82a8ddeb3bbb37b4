/* The linker: it puts the texts of its inputs one after the other. */
#define _GNU_SOURCE
#include "image.h"

#include <stdlib.h>
#include <string.h>

enum { INPUT_CUBIN, INPUT_PTX, INPUT_FATBINARY, INPUT_OBJECT, INPUT_LIBRARY, INPUT_NVVM, INPUTS };

struct CUlinkState_st {
	unsigned capability;
	char *text;
	size_t bytes;
	FILE *out;
	void *cubin;
};

static CUresult create(unsigned count, const int *options, void **values, CUlinkState *state)
{
	CUlinkState l;
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	r = jit_options(count, options, values);
	if (r)
		return r;
	l = calloc(1, sizeof(*l));
	if (!l)
		return CUDA_ERROR_OUT_OF_MEMORY;
	l->capability = capability_of(ctx);
	l->out = open_memstream(&l->text, &l->bytes);
	process_lock();
	if (!l->out || !object_add(OBJECT_LINK, l))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	process_unlock();
	if (r) {
		if (l->out)
			fclose(l->out);
		free(l->text);
		free(l);
	} else {
		*state = l;
	}
	return r;
}

CUresult cuLinkCreate(unsigned int count, int *options, void **values, CUlinkState *state)
{
	ENTER();
	return create(count, options, values, state);
}

CUresult cuLinkCreate_v2(unsigned int count, int *options, void **values, CUlinkState *state)
{
	ENTER();
	return create(count, options, values, state);
}

static bool known(CUlinkState state)
{
	bool is;

	process_lock();
	is = object_is(OBJECT_LINK, state);
	process_unlock();
	return is;
}

/* Objects and libraries of the host hold device code for calls between kernels only, which take no time here. */
static CUresult add(CUlinkState l, int type, const void *data, size_t size)
{
	char *copy;
	CUresult r;

	if (!known(l))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!data || !size || type < 0 || type >= INPUTS || l->cubin)
		return CUDA_ERROR_INVALID_VALUE;
	if (type == INPUT_OBJECT || type == INPUT_LIBRARY)
		return CUDA_SUCCESS;
	if (type == INPUT_NVVM)
		return CUDA_ERROR_NOT_SUPPORTED;
	copy = calloc(1, size + 1); /* PTX may come without its 0 */
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(copy, data, size);
	r = image_write(l->out, copy, l->capability);
	free(copy);
	return r;
}

CUresult cuLinkAddData(CUlinkState state, int type, void *data, size_t size, const char *name, unsigned int count,
		       int *options, void **values)
{
	CUresult r;

	ENTER();
	(void)name;
	r = jit_options(count, options, values);
	return r ? r : add(state, type, data, size);
}

CUresult cuLinkAddData_v2(CUlinkState state, int type, void *data, size_t size, const char *name, unsigned int count,
			  int *options, void **values)
{
	CUresult r;

	ENTER();
	(void)name;
	r = jit_options(count, options, values);
	return r ? r : add(state, type, data, size);
}

static CUresult add_file(CUlinkState state, int type, const char *path, unsigned count, const int *options, void **values)
{
	size_t bytes;
	char *data;
	CUresult r = jit_options(count, options, values);

	if (r)
		return r;
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	data = read_whole_file(path, &bytes);
	if (!data)
		return CUDA_ERROR_FILE_NOT_FOUND;
	r = add(state, type, data, bytes);
	free(data);
	return r;
}

CUresult cuLinkAddFile(CUlinkState state, int type, const char *path, unsigned int count, int *options, void **values)
{
	ENTER();
	return add_file(state, type, path, count, options, values);
}

CUresult cuLinkAddFile_v2(CUlinkState state, int type, const char *path, unsigned int count, int *options, void **values)
{
	ENTER();
	return add_file(state, type, path, count, options, values);
}

/* The cubin is the state's and goes with it. */
CUresult cuLinkComplete(CUlinkState state, void **cubin, size_t *size)
{
	size_t bytes = 0;

	ENTER();
	if (!known(state))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!cubin)
		return CUDA_ERROR_INVALID_VALUE;
	if (fflush(state->out))
		return CUDA_ERROR_OUT_OF_MEMORY;
	free(state->cubin);
	state->cubin = image_cubin(state->text, state->capability, &bytes);
	if (!state->cubin)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*cubin = state->cubin;
	if (size)
		*size = bytes;
	return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state)
{
	bool is;

	ENTER();
	process_lock();
	is = object_is(OBJECT_LINK, state);
	if (is)
		object_remove(state);
	process_unlock();
	if (!is)
		return CUDA_ERROR_INVALID_HANDLE;
	fclose(state->out);
	free(state->text);
	free(state->cubin);
	free(state);
	return CUDA_SUCCESS;
}
