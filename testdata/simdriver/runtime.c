/*
 * What kernels use of the device's runtime: malloc and printf, as the functions of these names that a module declares. Their code
 * takes memory of the context with the first module that needs it, the heap its own with the first launch. Both stay until
 * the context ends: a heap is the context's as long as that lives. From its launch on, a limit is fixed. The sizes are those of
 * an H100 with driver 580.
 */
#define _GNU_SOURCE
#include "page.h"

#include <ctype.h>
#include <string.h>

#define MIB (1ull << 20)

static const struct {
	const char *function;
	uint64_t code;  /* taken when a module that calls it is loaded */
	int limit;      /* fixed when one runs */
	uint64_t beside; /* of what the limit is, taken then; of what is no memory of the GPU, nothing is */
	bool on_gpu;
} features[CONTEXT_FEATURES] = {
	{"malloc", 138 * MIB, CU_LIMIT_MALLOC_HEAP_SIZE, 2 * MIB, true},
	{"vprintf", 2 * MIB, CU_LIMIT_PRINTF_FIFO_SIZE, 0, false},
};

static bool of_name(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '$';
}

static bool calls(const char *text, const char *function)
{
	size_t length = strlen(function);

	for (const char *at = text; (at = strstr(at, function)) != NULL; at += length) {
		if ((at == text || !of_name(at[-1])) && !of_name(at[length]) && !text_in_comment(text, at))
			return true;
	}
	return false;
}

static CUresult take(CUcontext ctx, uint64_t bytes)
{
	CUresult r = from_errno(charge_take(&process.view, ctx->gpu, CHARGE_CONTEXT, bytes));

	if (!r)
		ctx->charged += bytes;
	return r;
}

CUresult runtime_load(CUmodule m, const char *text)
{
	bool pages = process.view.s->gpus[m->ctx->gpu].page_bytes;

	for (int i = 0; i < CONTEXT_FEATURES; i++) {
		CUresult r;

		if (!calls(text, features[i].function))
			continue;
		m->features |= 1u << i;
		if (m->ctx->loaded >> i & 1)
			continue;
		r = take(m->ctx, pages ? features[i].code : 0);
		if (r)
			return r;
		m->ctx->loaded |= 1u << i;
	}
	return CUDA_SUCCESS;
}

CUresult runtime_launch(CUmodule m)
{
	bool pages = process.view.s->gpus[m->ctx->gpu].page_bytes;

	for (int i = 0; i < CONTEXT_FEATURES; i++) {
		uint64_t bytes = *context_limit(m->ctx, features[i].limit);
		CUresult r;

		if (!(m->features & ~m->ctx->ran & 1u << i))
			continue;
		r = features[i].on_gpu ? take(m->ctx, page_whole(m->ctx, bytes) + (pages ? features[i].beside : 0)) : CUDA_SUCCESS;
		if (r)
			return r;
		m->ctx->ran |= 1u << i;
	}
	return CUDA_SUCCESS;
}

bool runtime_fixed(CUcontext ctx, int limit)
{
	for (int i = 0; i < CONTEXT_FEATURES; i++) {
		if (features[i].limit == limit && ctx->ran >> i & 1)
			return true;
	}
	return false;
}
