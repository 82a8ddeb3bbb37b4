/*
 * Libraries: modules that are loaded into a context when something of theirs is first asked for there. A library is a copy of
 * its image, and its kernels have the functions of its module in the current context.
 */
#define _GNU_SOURCE
#include "image.h"

#include <stdlib.h>
#include <string.h>

struct CUkern_st {
	CUlibrary library;
	char *name;
	struct CUkern_st *next;
};

struct of_context {
	CUcontext ctx;
	CUmodule module;
	struct of_context *next;
};

struct CUlib_st {
	char *text;
	struct CUkern_st *kernels; /* that were asked for */
	struct of_context *modules;
};

static CUresult load(CUlibrary *library, const void *code)
{
	const struct gpu *c = device_gpu(0);
	CUlibrary l;
	CUresult r;

	if (!library || !code)
		return CUDA_ERROR_INVALID_VALUE;
	l = calloc(1, sizeof(*l));
	if (!l)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = image_text(code, c->cc_major * 10 + c->cc_minor, &l->text);
	process_lock();
	if (!r && !object_add(OBJECT_LIBRARY, l))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	process_unlock();
	if (r) {
		free(l->text);
		free(l);
	} else {
		*library = l;
	}
	return r;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values, unsigned int jit_count,
			   int *options, void **values, unsigned int count)
{
	CUresult r;

	ENTER();
	r = jit_options(jit_count, jit, jit_values);
	if (count && (!options || !values))
		r = CUDA_ERROR_INVALID_VALUE;
	return r ? r : load(library, code);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values, unsigned int jit_count,
			       int *options, void **values, unsigned int count)
{
	size_t bytes;
	char *code;
	CUresult r;

	ENTER();
	r = jit_options(jit_count, jit, jit_values);
	if (!path || (count && (!options || !values)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r)
		return r;
	code = read_whole_file(path, &bytes);
	if (!code)
		return CUDA_ERROR_FILE_NOT_FOUND;
	r = load(library, code);
	free(code);
	return r;
}

static bool known(CUlibrary library)
{
	bool is;

	process_lock();
	is = object_is(OBJECT_LIBRARY, library);
	process_unlock();
	return is;
}

/* Process lock held. */
static CUmodule module_in(CUlibrary l, CUcontext ctx)
{
	for (struct of_context *m = l->modules; m; m = m->next) {
		if (m->ctx == ctx && object_is(OBJECT_MODULE, m->module))
			return m->module;
	}
	return NULL;
}

/* Its module in the current context. */
static CUresult here(CUlibrary l, CUmodule *module)
{
	struct of_context *m;
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	*module = module_in(l, ctx);
	process_unlock();
	if (*module)
		return CUDA_SUCCESS;
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = module_load(&m->module, l->text);
	if (r) {
		free(m);
		return r;
	}
	*module = m->module;
	process_lock();
	m->ctx = ctx;
	m->next = l->modules;
	l->modules = m;
	process_unlock();
	return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library)
{
	bool is;

	ENTER();
	process_lock();
	is = object_is(OBJECT_LIBRARY, library);
	if (is)
		object_remove(library);
	for (struct CUkern_st *k = is ? library->kernels : NULL; k; k = k->next)
		object_remove(k);
	process_unlock();
	if (!is)
		return CUDA_ERROR_INVALID_HANDLE;
	for (struct of_context *m = library->modules, *next; m; m = next) {
		next = m->next;
		module_unload(m->module); /* if it did not go with its context */
		free(m);
	}
	for (struct CUkern_st *k = library->kernels, *next; k; k = next) {
		next = k->next;
		free(k->name);
		free(k);
	}
	free(library->text);
	free(library);
	return CUDA_SUCCESS;
}

/* Process lock held. NULL: no memory. */
static CUkernel kernel_of(CUlibrary l, const char *name)
{
	CUkernel k = l->kernels;

	while (k && strcmp(k->name, name) != 0)
		k = k->next;
	if (k)
		return k;
	k = calloc(1, sizeof(*k));
	if (!k)
		return NULL;
	k->library = l;
	k->name = strdup(name);
	if (!k->name || !object_add(OBJECT_KERNEL, k)) {
		free(k->name);
		free(k);
		return NULL;
	}
	k->next = l->kernels;
	return l->kernels = k;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	CUmodule module;
	CUresult r;

	ENTER();
	if (!kernel || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!known(library))
		return CUDA_ERROR_INVALID_HANDLE;
	r = here(library, &module);
	if (r)
		return r;
	process_lock();
	if (!module_function(module, name))
		r = CUDA_ERROR_NOT_FOUND;
	else if (!(*kernel = kernel_of(library, name)))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	process_unlock();
	return r;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	ENTER();
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	return known(library) ? here(library, module) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
	CUmodule module;
	CUresult r;

	ENTER();
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	r = known(library) ? here(library, &module) : CUDA_ERROR_INVALID_HANDLE;
	return r ? r : cuModuleGetFunctionCount(count, module);
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library)
{
	CUmodule module;
	CUresult r;

	ENTER();
	if (!kernels)
		return CUDA_ERROR_INVALID_VALUE;
	r = known(library) ? here(library, &module) : CUDA_ERROR_INVALID_HANDLE;
	if (r)
		return r;
	process_lock();
	for (struct CUfunc_st *f = module->functions; f && count && !r; f = f->next, count--) {
		*kernels = kernel_of(library, f->name);
		if (!*kernels++)
			r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	process_unlock();
	return r;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *ptr, size_t *bytes, CUlibrary library, const char *name)
{
	CUmodule module;
	CUresult r;

	ENTER();
	r = known(library) ? here(library, &module) : CUDA_ERROR_INVALID_HANDLE;
	return r ? r : cuModuleGetGlobal_v2(ptr, bytes, module, name);
}

/* Of a program's `__managed__` variables: `.attribute(.managed)` in PTX. */
CUresult cuLibraryGetManaged(CUdeviceptr *ptr, size_t *bytes, CUlibrary library, const char *name)
{
	CUmodule module;
	CUresult r;

	ENTER();
	r = known(library) ? here(library, &module) : CUDA_ERROR_INVALID_HANDLE;
	if (!r && !module_data_is_managed(module, name))
		r = name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
	return r ? r : cuModuleGetGlobal_v2(ptr, bytes, module, name);
}

/* Documented: not found where no device has CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS. */
CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *name)
{
	ENTER();
	if (!function || !name)
		return CUDA_ERROR_INVALID_VALUE;
	return known(library) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

static bool is_kernel(CUkernel kernel)
{
	bool is;

	process_lock();
	is = object_is(OBJECT_KERNEL, kernel);
	process_unlock();
	return is;
}

static CUresult function_of(CUkernel kernel, CUfunction *f)
{
	CUmodule module;
	CUresult r = is_kernel(kernel) ? here(kernel->library, &module) : CUDA_ERROR_INVALID_HANDLE;

	if (r)
		return r;
	process_lock();
	*f = module_function(module, kernel->name);
	process_unlock();
	return *f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUfunction kernel_function(CUfunction f)
{
	CUkernel kernel = (CUkernel)f;
	CUfunction found;

	return is_kernel(kernel) && !function_of(kernel, &found) ? found : f;
}

CUresult cuKernelGetFunction(CUfunction *f, CUkernel kernel)
{
	ENTER();
	return f ? function_of(kernel, f) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
	ENTER();
	if (!library)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_kernel(kernel))
		return CUDA_ERROR_INVALID_HANDLE;
	*library = kernel->library;
	return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
	ENTER();
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_kernel(kernel))
		return CUDA_ERROR_INVALID_HANDLE;
	*name = kernel->name;
	return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice dev)
{
	CUfunction f;
	CUresult r;

	ENTER();
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	r = function_of(kernel, &f);
	return r ? r : cuFuncGetAttribute(value, attribute, f);
}

CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice dev)
{
	CUfunction f;
	CUresult r;

	ENTER();
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	r = function_of(kernel, &f);
	return r ? r : cuFuncSetAttribute(f, attribute, value);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice dev)
{
	CUfunction f;
	CUresult r;

	ENTER();
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	r = function_of(kernel, &f);
	return r ? r : cuFuncSetCacheConfig(f, config);
}
