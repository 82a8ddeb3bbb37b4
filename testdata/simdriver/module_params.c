/* The parameters of kernels, as their PTX declares them: `.param .u64 name, .param .align 8 .b8 name[24]`. */
#include "graph.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_space(const char *at)
{
	return at + strspn(at, " \t\r\n");
}

/* Bytes of a type as `.u64`; 0: it is none. */
static unsigned type_bytes(const char *word, size_t length)
{
	if (length < 3 || word[0] != '.' || !strchr("usbf", word[1]) || !isdigit((unsigned char)word[2]))
		return 0;
	return (unsigned)strtoul(word + 2, NULL, 10) / 8;
}

/* One declaration, up to its comma or the end of the list. */
static const char *read_param(const char *at, unsigned *bytes, unsigned *align)
{
	bool pointee = false;

	*bytes = *align = 0;
	while (*at && *at != ',' && *at != ')') {
		size_t length = strcspn(at, " \t\r\n,)[");

		if (*at == '[') {
			*bytes *= (unsigned)strtoul(at + 1, NULL, 10);
			at += strcspn(at, ",)");
			continue;
		}
		if (length == 4 && !strncmp(at, ".ptr", length)) /* what follows is of what it points to */
			pointee = true;
		else if (length == 6 && !strncmp(at, ".align", length) && !pointee)
			*align = (unsigned)strtoul(at + length, NULL, 10);
		else if (!*bytes)
			*bytes = type_bytes(at, length);
		at = skip_space(at + (length ? length : 1));
	}
	*align = *align ? *align : *bytes;
	return at;
}

bool function_read_params(CUfunction f, const char *at)
{
	unsigned offset = 0, bytes, align;

	at = skip_space(at);
	if (*at != '(')
		return true;
	at = skip_space(at + 1);
	while (*at && *at != ')') {
		struct param *more;

		at = read_param(at, &bytes, &align);
		if (*at == ',')
			at = skip_space(at + 1);
		if (!bytes || !align)
			continue;
		more = realloc(f->params, (f->param_count + 1) * sizeof(*more));
		if (!more)
			return false;
		f->params = more;
		offset = (offset + align - 1) / align * align;
		f->params[f->param_count++] = (struct param){offset, bytes};
		offset += bytes;
	}
	return true;
}

/* Pointers and values in one block. Values are as aligned as malloc gives them. */
bool function_copy_arguments(CUfunction f, void **from, void ***out)
{
	size_t bytes = f->param_count ? f->params[f->param_count - 1].offset + f->params[f->param_count - 1].bytes : 0;
	size_t pointers = (f->param_count * sizeof(void *) + 15) / 16 * 16;
	char *block = calloc(1, pointers + bytes + 1);

	if (!block)
		return false;
	*out = (void **)block;
	for (unsigned i = 0; i < f->param_count; i++) {
		(*out)[i] = block + pointers + f->params[i].offset;
		memcpy((*out)[i], from[i], f->params[i].bytes);
	}
	return true;
}

static CUresult param_info(CUfunction f, size_t index, size_t *offset, size_t *bytes)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	process_lock();
	if (!object_is(OBJECT_FUNCTION, f)) {
		r = CUDA_ERROR_INVALID_HANDLE;
	} else if (index < f->param_count && offset) {
		*offset = f->params[index].offset;
		if (bytes)
			*bytes = f->params[index].bytes;
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *bytes)
{
	ENTER();
	return param_info(f, index, offset, bytes);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes)
{
	CUfunction f;
	CUresult r;

	ENTER();
	r = cuKernelGetFunction(&f, kernel);
	return r ? r : param_info(f, index, offset, bytes);
}
