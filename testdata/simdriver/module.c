/*
 * Modules. An image is PTX text; its entries are found by name. Lines `// sim-duration-us: N`
 * and `// sim-duration-per-block-ns: N` set the duration of every launch of the next entry: the sum of both. For a real driver
 * they are comments.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DURATION_TAG "sim-duration-us:"
#define BLOCK_TAG "sim-duration-per-block-ns:"

static void free_module(CUmodule m)
{
	struct CUfunc_st *f = m->functions;

	while (f) {
		struct CUfunc_st *next = f->next;

		object_remove(f);
		free(f->name);
		free(f);
		f = next;
	}
	module_data_free(m);
	free(m);
}

static bool drop_module(void *object, CUcontext ctx)
{
	CUmodule m = object;

	if (m->ctx != ctx)
		return false;
	free_module(m);
	return true;
}

void modules_drop_context(CUcontext ctx)
{
	object_sweep(OBJECT_MODULE, drop_module, ctx);
}

static bool add_function(CUmodule m, const char *name, size_t length, uint64_t duration_ns, uint64_t block_ns)
{
	struct CUfunc_st *f = calloc(1, sizeof(*f));

	if (!f)
		return false;
	f->name = strndup(name, length);
	f->module = m;
	f->duration_ns = duration_ns;
	f->block_ns = block_ns;
	f->shape[0] = f->shape[1] = f->shape[2] = 1;
	if (!f->name || !object_add(OBJECT_FUNCTION, f)) {
		free(f->name);
		free(f);
		return false;
	}
	f->next = m->functions;
	m->functions = f;
	return true;
}

static bool name_char(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

/* `.entry NAME` outside of comments, with the last duration tags before it. */
static CUresult parse_entries(CUmodule m, const char *text)
{
	uint64_t duration = 0, per_block = 0;

	for (const char *at = text; *at; at++) {
		if (at[0] == '/' && at[1] == '/') {
			const char *end = at + strcspn(at, "\n");
			const char *tag = memmem(at, (size_t)(end - at), DURATION_TAG, strlen(DURATION_TAG));

			if (tag)
				duration = strtoull(tag + strlen(DURATION_TAG), NULL, 10) * 1000;
			tag = memmem(at, (size_t)(end - at), BLOCK_TAG, strlen(BLOCK_TAG));
			if (tag)
				per_block = strtoull(tag + strlen(BLOCK_TAG), NULL, 10);
			at = *end ? end : end - 1;
		} else if (!strncmp(at, ".entry", 6) && isspace((unsigned char)at[6])) {
			size_t length = 0;

			for (at += 6; isspace((unsigned char)*at); at++)
				;
			while (name_char(at[length]))
				length++;
			if (!length)
				return CUDA_ERROR_INVALID_PTX;
			if (!add_function(m, at, length, duration, per_block))
				return CUDA_ERROR_OUT_OF_MEMORY;
			duration = per_block = 0;
			at += length - 1;
		}
	}
	return CUDA_SUCCESS;
}

static CUresult check_image(const unsigned char *image)
{
	if (image[0] == 0x7f && image[1] == 'E')
		return CUDA_ERROR_NO_BINARY_FOR_GPU; /* a cubin: there is no machine here to run it */
	if (image[0] == 0x50 && image[1] == 0xed)
		return CUDA_ERROR_NO_BINARY_FOR_GPU; /* a fat binary */
	for (int i = 0; i < 64 && image[i]; i++) {
		if (image[i] > 126 || (image[i] < 32 && !isspace(image[i])))
			return CUDA_ERROR_INVALID_IMAGE;
	}
	if (!strstr((const char *)image, ".version") || !strstr((const char *)image, ".target"))
		return image[0] ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
	return CUDA_SUCCESS;
}

static CUresult load(CUmodule *out, const void *image)
{
	CUcontext ctx;
	CUmodule m;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!out || !image)
		return CUDA_ERROR_INVALID_VALUE;
	r = check_image(image);
	if (r)
		return r;
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->ctx = ctx;
	process_lock();
	r = parse_entries(m, image);
	if (!r)
		r = module_data_load(m, image);
	if (!r && !object_add(OBJECT_MODULE, m))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r)
		free_module(m);
	else
		*out = m;
	process_unlock();
	return r;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	ENTER();
	return load(module, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options, void **values)
{
	ENTER();
	if (count && (!options || !values))
		return CUDA_ERROR_INVALID_VALUE;
	return load(module, image);
}

static char *read_file(const char *path)
{
	FILE *file = fopen(path, "re");
	char *text = NULL;
	size_t room = 0;

	if (!file)
		return NULL;
	if (getdelim(&text, &room, 0, file) < 0) {
		free(text);
		text = NULL;
	}
	fclose(file);
	return text;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	char *text;
	CUresult r;

	ENTER();
	if (!module || !path)
		return CUDA_ERROR_INVALID_VALUE;
	text = read_file(path);
	if (!text)
		return CUDA_ERROR_FILE_NOT_FOUND;
	r = load(module, text);
	free(text);
	return r;
}

CUresult cuModuleUnload(CUmodule module)
{
	CUresult r = CUDA_SUCCESS;

	ENTER();
	process_lock();
	if (object_is(OBJECT_MODULE, module)) {
		object_remove(module);
		free_module(module);
	} else {
		r = CUDA_ERROR_INVALID_HANDLE;
	}
	process_unlock();
	return r;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	CUresult r = CUDA_ERROR_NOT_FOUND;

	ENTER();
	if (!function || !name)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	if (!object_is(OBJECT_MODULE, module)) {
		process_unlock();
		return CUDA_ERROR_INVALID_HANDLE;
	}
	for (struct CUfunc_st *f = module->functions; f; f = f->next) {
		if (!strcmp(f->name, name)) {
			*function = f;
			r = CUDA_SUCCESS;
		}
	}
	process_unlock();
	return r;
}

static bool is_function(CUfunction f)
{
	bool known;

	process_lock();
	known = object_is(OBJECT_FUNCTION, f);
	process_unlock();
	return known;
}

/* Numbers of CUfunction_attribute. */
CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
	ENTER();
	if (!value || attribute < 0 || attribute > 15)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_function(function))
		return CUDA_ERROR_INVALID_HANDLE;
	switch (attribute) {
	case 0: /* MAX_THREADS_PER_BLOCK */
		*value = 1024;
		break;
	case 4: /* NUM_REGS */
		*value = 8;
		break;
	case 5: /* PTX_VERSION */
	case 6: /* BINARY_VERSION */
		*value = 70;
		break;
	case 8: /* MAX_DYNAMIC_SHARED_SIZE_BYTES */
		*value = 49152;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
	ENTER();
	if (attribute < 0 || attribute > 15 || value < -1)
		return CUDA_ERROR_INVALID_VALUE;
	return is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncSetCacheConfig(CUfunction function, int config)
{
	ENTER();
	if (config < 0 || config > 3)
		return CUDA_ERROR_INVALID_VALUE;
	return is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
