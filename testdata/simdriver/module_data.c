/*
 * Global data of modules: `.global .align 4 .b8 name[SIZE];` of the PTX text, and the same of `.const`. Data and code take memory of the
 * context, which no call other than the loading reports; the text counts as the code. The addresses of data are fixed while
 * the module is loaded. What it is initialised with, it holds: numbers (`= 5`, `= {1, 2, 0f3F800000}`); an address of another
 * variable stays 0.
 */
#define _GNU_SOURCE
#include "allocation.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 256ull

struct variable {
	char *name;
	uint64_t offset, size, element;
	bool managed;
	const char *values; /* of the text, after the '='; NULL: zeros. Only while it is loaded */
	struct variable *next;
};

struct module_data {
	CUdeviceptr base;
	uint64_t size;
	struct taken code, taken; /* by the code, by the data */
	struct variable *variables;
};

static size_t name_length(const char *at)
{
	size_t n = 0;

	while (isalnum((unsigned char)at[n]) || at[n] == '_' || at[n] == '$')
		n++;
	return n;
}

/* One declaration, at the first of its words after `.global` or `.const`. False: no memory. */
static bool declare(struct module_data *d, const char *at)
{
	uint64_t element = 1, count = 1;
	bool managed = false;
	const char *rest;
	struct variable *v;
	size_t length;

	for (;;) {
		at += strspn(at, " \t");
		if (*at != '.')
			break;
		if (!strncmp(at, ".align", 6)) {
			at += 6 + strspn(at + 6, " \t0123456789");
		} else if (!strncmp(at, ".attribute(", 11)) {
			managed |= !strncmp(at + 11, ".managed", 8);
			at += strcspn(at, ")");
			at += *at == ')';
		} else {
			element = strtoull(at + 2, NULL, 10) / 8; /* .b8, .u32, .f64 */
			at += 1 + name_length(at + 1);
		}
	}
	length = name_length(at);
	if (!length || !element)
		return true;
	rest = at + length;
	while (rest += strspn(rest, " \t\n"), *rest == '[') {
		count *= strtoull(rest + 1, NULL, 0);
		rest += strcspn(rest, "]");
		rest += *rest == ']';
	}
	v = calloc(1, sizeof(*v));
	if (!v || !(v->name = strndup(at, length))) {
		free(v);
		return false;
	}
	v->offset = d->size;
	v->size = element * count;
	v->element = element;
	v->managed = managed;
	v->values = *rest == '=' ? rest + 1 : NULL;
	v->next = d->variables;
	d->variables = v;
	d->size += (v->size + ALIGN - 1) / ALIGN * ALIGN;
	return true;
}

bool text_in_comment(const char *text, const char *at)
{
	while (at > text && at[-1] != '\n') {
		at--;
		if (at[0] == '/' && at[1] == '/')
			return true;
	}
	return false;
}

/* A parameter that points to such memory, or a variable of another module. */
static bool declared_elsewhere(const char *text, const char *at)
{
	const char *from = at;

	while (from > text && !strchr("\n,(;{}", from[-1]))
		from--;
	return memmem(from, (size_t)(at - from), ".param", 6) || memmem(from, (size_t)(at - from), ".extern", 7);
}

static bool parse(struct module_data *d, const char *text, const char *space)
{
	for (const char *at = text; (at = strstr(at, space)) != NULL;) {
		const char *found = at;

		at += strlen(space);
		if ((*at == ' ' || *at == '\t') && !text_in_comment(text, found) && !declared_elsewhere(text, found) && !declare(d, at))
			return false;
	}
	return true;
}

/* A number as PTX writes it; floating point also as 0f and 0d with the bits in hexadecimal. */
static uint64_t number(const char *at, char **end)
{
	bool bits = at[0] == '0' && strchr("fFdD", at[1]) && at[1];
	uint64_t value = bits ? strtoull(at + 2, end, 16) : strtoull(at, end, 0);

	*end += **end == 'U';
	return value;
}

static void initialise(char *data, const struct variable *v)
{
	const char *at = v->values + strspn(v->values, " \t\n{");

	for (uint64_t done = 0; done + v->element <= v->size; done += v->element) {
		char *end;
		uint64_t value = number(at, &end);

		if (end == at)
			return;
		memcpy(data + done, &value, v->element < sizeof(value) ? v->element : sizeof(value)); /* little-endian */
		at = end + strspn(end, " \t\n{},");
	}
}

/* False: no memory. */
static bool initialise_all(struct module_data *d)
{
	struct content *c = &allocation_find(d->base)->content;

	for (struct variable *v = d->variables; v; v = v->next) {
		if (!v->values)
			continue;
		if (!content_write(c))
			return false;
		initialise(c->at + v->offset, v);
		v->values = NULL;
	}
	return true;
}

static CUresult place(struct module_data *d, CUcontext ctx, uint64_t code)
{
	bool pages = process.view.s->gpus[ctx->gpu].page_bytes;
	CUresult r = pages ? page_take(ctx, PAGE_CONTEXT, code, &d->code) : CUDA_SUCCESS;

	if (r || !d->size)
		return r;
	r = page_take(ctx, PAGE_CONTEXT, d->size, &d->taken);
	if (r) {
		page_return(ctx, PAGE_CONTEXT, &d->code);
		return r;
	}
	r = allocation_take(ctx, MODULE, d->size, &d->base);
	if (!r && !initialise_all(d)) {
		allocation_drop(d->base);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r) {
		page_return(ctx, PAGE_CONTEXT, &d->taken);
		page_return(ctx, PAGE_CONTEXT, &d->code);
	}
	return r;
}

static void free_data(struct module_data *d)
{
	for (struct variable *v = d->variables, *next; v; v = next) {
		next = v->next;
		free(v->name);
		free(v);
	}
	free(d);
}

CUresult module_data_load(CUmodule m, const char *text)
{
	struct module_data *d = calloc(1, sizeof(*d));
	CUresult r;

	if (!d)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = parse(d, text, ".global") && parse(d, text, ".const") ? place(d, m->ctx, strlen(text)) : CUDA_ERROR_OUT_OF_MEMORY;
	if (r)
		free_data(d);
	else
		m->data = d;
	return r;
}

void module_data_free(CUmodule m)
{
	if (!m->data)
		return;
	if (m->data->size)
		allocation_drop(m->data->base);
	page_return(m->ctx, PAGE_CONTEXT, &m->data->taken);
	page_return(m->ctx, PAGE_CONTEXT, &m->data->code);
	free_data(m->data);
}

static CUresult find(CUdeviceptr *ptr, size_t *bytes, CUmodule m, const char *name)
{
	CUresult r = CUDA_ERROR_NOT_FOUND;

	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	if (!object_is(OBJECT_MODULE, m))
		r = CUDA_ERROR_INVALID_HANDLE;
	for (struct variable *v = r == CUDA_ERROR_NOT_FOUND ? m->data->variables : NULL; v; v = v->next) {
		if (strcmp(v->name, name) != 0)
			continue;
		*ptr = m->data->base + v->offset;
		*bytes = v->size;
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

bool module_data_is_managed(CUmodule m, const char *name)
{
	bool managed = false;

	process_lock();
	for (struct variable *v = name && object_is(OBJECT_MODULE, m) ? m->data->variables : NULL; v; v = v->next)
		managed |= v->managed && !strcmp(v->name, name);
	process_unlock();
	return managed;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *bytes, CUmodule module, const char *name)
{
	CUdeviceptr at = 0;
	size_t size = 0;
	CUresult r;

	ENTER();
	r = find(&at, &size, module, name);
	if (!r && ptr)
		*ptr = at;
	if (!r && bytes)
		*bytes = size;
	return r;
}

/* Its addresses would have to lie below 4 GiB; they do not. */
CUresult cuModuleGetGlobal(CUdeviceptr_v1 *ptr, unsigned int *bytes, CUmodule module, const char *name)
{
	CUdeviceptr at = 0;
	size_t size = 0;
	CUresult r;

	ENTER();
	r = find(&at, &size, module, name);
	if (!r && ptr)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!r && bytes)
		*bytes = (unsigned)size;
	return r;
}
