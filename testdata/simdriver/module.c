/*
 * Modules. Every image becomes PTX text (see image.c); its entries are found by name. Lines `// sim-duration-us: N`,
 * `// sim-duration-per-block-ns: N` and `// sim-duration-parameter-ns: N` set the duration of launches of the next entry: the sum of
 * that, of that for each block, and of the value of the Nth parameter (from 0). For a real driver they are comments.
 */
#define _GNU_SOURCE
#include "image.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DURATION_TAG "sim-duration-us:"
#define BLOCK_TAG "sim-duration-per-block-ns:"
#define PARAMETER_TAG "sim-duration-parameter-ns:"

static void free_module(CUmodule m)
{
	struct CUfunc_st *f = m->functions;

	while (f) {
		struct CUfunc_st *next = f->next;

		object_remove(f);
		free(f->name);
		free(f->params);
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

static bool add_function(CUmodule m, const char *name, size_t length, struct duration duration)
{
	struct CUfunc_st *f = calloc(1, sizeof(*f));

	if (!f)
		return false;
	f->name = strndup(name, length);
	f->module = m;
	f->duration = duration;
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

/* The number behind a tag in a comment. */
static bool tagged(const char *comment, size_t length, const char *tag, uint64_t *number)
{
	const char *at = memmem(comment, length, tag, strlen(tag));

	if (at)
		*number = strtoull(at + strlen(tag), NULL, 10);
	return at != NULL;
}

/* `.entry NAME` outside of comments, with the last duration tags before it. */
static CUresult parse_entries(CUmodule m, const char *text)
{
	struct duration duration = {0};
	uint64_t number;

	for (const char *at = text; *at; at++) {
		if (at[0] == '/' && at[1] == '/') {
			const char *end = at + strcspn(at, "\n");

			if (tagged(at, (size_t)(end - at), DURATION_TAG, &number))
				duration.ns = number * 1000;
			tagged(at, (size_t)(end - at), BLOCK_TAG, &duration.block_ns);
			if (tagged(at, (size_t)(end - at), PARAMETER_TAG, &number))
				duration.parameter = (unsigned)number + 1;
			at = *end ? end : end - 1;
		} else if (!strncmp(at, ".entry", 6) && isspace((unsigned char)at[6])) {
			size_t length = 0;

			for (at += 6; isspace((unsigned char)*at); at++)
				;
			while (name_char(at[length]))
				length++;
			if (!length)
				return CUDA_ERROR_INVALID_PTX;
			if (!add_function(m, at, length, duration) || !function_read_params(m->functions, at + length))
				return CUDA_ERROR_OUT_OF_MEMORY;
			duration = (struct duration){0};
			at += length - 1;
		}
	}
	return CUDA_SUCCESS;
}

unsigned capability_of(CUcontext ctx)
{
	const struct gpu *c = &process.view.s->gpus[ctx->gpu];

	return c->cc_major * 10 + c->cc_minor;
}

CUresult module_load(CUmodule *out, const void *image)
{
	CUcontext ctx;
	CUmodule m;
	char *text;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!out || !image)
		return CUDA_ERROR_INVALID_VALUE;
	r = image_text(image, capability_of(ctx), &text);
	if (r)
		return r;
	m = calloc(1, sizeof(*m));
	if (!m) {
		free(text);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->ctx = ctx;
	process_lock();
	r = parse_entries(m, text);
	if (!r)
		r = runtime_load(m, text);
	if (!r)
		r = module_data_load(m, text);
	if (!r && !object_add(OBJECT_MODULE, m))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r)
		free_module(m);
	else
		*out = m;
	process_unlock();
	free(text);
	return r;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	ENTER();
	return module_load(module, image);
}

enum { JIT_WALL_TIME = 2, JIT_INFO_LOG_BYTES = 4, JIT_ERROR_LOG_BYTES = 6 };

CUresult jit_options(unsigned count, const int *options, void **values)
{
	if (count && (!options || !values))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		if (options[i] == JIT_WALL_TIME || options[i] == JIT_INFO_LOG_BYTES || options[i] == JIT_ERROR_LOG_BYTES)
			values[i] = NULL; /* 0, in place */
	}
	return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options, void **values)
{
	CUresult r;

	ENTER();
	r = jit_options(count, options, values);
	return r ? r : module_load(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	ENTER();
	return module_load(module, image);
}

char *read_whole_file(const char *path, size_t *bytes)
{
	FILE *file = fopen(path, "re");
	char *text = NULL, part[4096];
	size_t n;
	FILE *out;

	if (!file)
		return NULL;
	out = open_memstream(&text, bytes);
	while (out && (n = fread(part, 1, sizeof(part), file)) > 0)
		fwrite(part, 1, n, out);
	if (out && fclose(out)) {
		free(text);
		text = NULL;
	}
	fclose(file);
	return text;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	size_t bytes;
	char *text;
	CUresult r;

	ENTER();
	if (!module || !path)
		return CUDA_ERROR_INVALID_VALUE;
	text = read_whole_file(path, &bytes);
	if (!text)
		return CUDA_ERROR_FILE_NOT_FOUND;
	r = module_load(module, text);
	free(text);
	return r;
}

CUresult module_unload(CUmodule module)
{
	CUresult r = CUDA_SUCCESS;

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

CUresult cuModuleUnload(CUmodule module)
{
	ENTER();
	return module_unload(module);
}

CUfunction module_function(CUmodule module, const char *name)
{
	CUfunction found = NULL;

	for (struct CUfunc_st *f = module->functions; f; f = f->next) {
		if (!strcmp(f->name, name))
			found = f;
	}
	return found;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	CUfunction found;

	ENTER();
	if (!function || !name)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	if (!object_is(OBJECT_MODULE, module)) {
		process_unlock();
		return CUDA_ERROR_INVALID_HANDLE;
	}
	found = module_function(module, name);
	process_unlock();
	if (!found)
		return CUDA_ERROR_NOT_FOUND;
	*function = found;
	return CUDA_SUCCESS;
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
	if (function->attributes_set >> attribute & 1) {
		*value = function->attributes[attribute];
		return CUDA_SUCCESS;
	}
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
	if (!is_function(function))
		return CUDA_ERROR_INVALID_HANDLE;
	if (attribute >= 8) { /* those below are the function's own */
		function->attributes[attribute] = value;
		function->attributes_set |= 1u << attribute;
	}
	return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, int config)
{
	ENTER();
	if (config < 0 || config > 3)
		return CUDA_ERROR_INVALID_VALUE;
	return is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuModuleGetLoadingMode(int *mode)
{
	ENTER();
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = 2; /* CU_MODULE_LAZY_LOADING, the default since CUDA 12.2 */
	return CUDA_SUCCESS;
}

static CUresult enumerate(CUmodule module, CUfunction *functions, unsigned room, unsigned *count)
{
	CUresult r = CUDA_SUCCESS;

	process_lock();
	if (!object_is(OBJECT_MODULE, module))
		r = CUDA_ERROR_INVALID_HANDLE;
	*count = 0;
	for (struct CUfunc_st *f = r ? NULL : module->functions; f; f = f->next, (*count)++) {
		if (*count < room)
			functions[*count] = f;
	}
	process_unlock();
	return r;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
	ENTER();
	return count ? enumerate(module, NULL, 0, count) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int room, CUmodule module)
{
	unsigned count;

	ENTER();
	return functions ? enumerate(module, functions, room, &count) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuFuncGetName(const char **name, CUfunction f)
{
	ENTER();
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_function(f))
		return CUDA_ERROR_INVALID_HANDLE;
	*name = f->name;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction f)
{
	ENTER();
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_function(f))
		return CUDA_ERROR_INVALID_HANDLE;
	*module = f->module;
	return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(int *state, CUfunction f)
{
	ENTER();
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_function(f))
		return CUDA_ERROR_INVALID_HANDLE;
	*state = 1;
	return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction f)
{
	ENTER();
	return is_function(f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
