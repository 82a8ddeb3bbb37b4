/* What a stream is set to: kept, and of no effect on the simulated GPU, as a priority is not either. */
#include "green.h"

#define LEAST_PRIORITY 0
#define GREATEST_PRIORITY (-5)
#define MIN_DOMAINS_CAPABILITY 9u /* from which a GPU has more than one domain */
#define DOMAINS 4u

/* NULL stream: the context's legacy one. Process lock held. */
static struct stream_settings *settings_of(CUcontext ctx, CUstream s)
{
	return s ? &s->settings : &ctx->settings;
}

static bool has_domains(CUcontext ctx)
{
	return process.view.s->gpus[ctx->gpu].cc_major >= MIN_DOMAINS_CAPABILITY;
}

static CUresult get_locked(CUcontext ctx, CUstream s, int attribute, CUstreamAttrValue *value)
{
	const struct stream_settings *set = settings_of(ctx, s);

	*value = (CUstreamAttrValue){.pad = {0}};
	switch (attribute) {
	case CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW:
		*value = set->window;
		return CUDA_SUCCESS;
	case CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		value->syncPolicy = 1 + set->policy;
		return CUDA_SUCCESS;
	case CU_STREAM_ATTRIBUTE_PRIORITY:
		value->priority = s ? s->priority : 0;
		return CUDA_SUCCESS;
	case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
		value->memSyncDomainMap.default_ = set->map_set ? set->map[0] : 0;
		value->memSyncDomainMap.remote = set->map_set ? set->map[1] : has_domains(ctx);
		return CUDA_SUCCESS;
	case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN:
		value->memSyncDomain = set->domain;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static bool good_window(const CUstreamAttrValue *v)
{
	return v->accessPolicyWindow.hitRatio >= 0 && v->accessPolicyWindow.hitRatio <= 1 && v->accessPolicyWindow.hitProp >= 0 &&
	       v->accessPolicyWindow.hitProp <= 2 && v->accessPolicyWindow.missProp >= 0 && v->accessPolicyWindow.missProp <= 1;
}

static CUresult set_map(CUcontext ctx, struct stream_settings *set, const CUstreamAttrValue *v)
{
	unsigned domains = has_domains(ctx) ? DOMAINS : 1;

	if (v->memSyncDomainMap.default_ >= domains || v->memSyncDomainMap.remote >= domains)
		return CUDA_ERROR_INVALID_VALUE;
	set->map_set = true;
	set->map[0] = v->memSyncDomainMap.default_;
	set->map[1] = v->memSyncDomainMap.remote;
	return CUDA_SUCCESS;
}

static CUresult set_locked(CUcontext ctx, CUstream s, int attribute, const CUstreamAttrValue *v)
{
	struct stream_settings *set = settings_of(ctx, s);

	switch (attribute) {
	case CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW:
		if (!good_window(v))
			return CUDA_ERROR_INVALID_VALUE;
		set->window = *v;
		return CUDA_SUCCESS;
	case CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		if (v->syncPolicy < 1 || v->syncPolicy > 4)
			return CUDA_ERROR_INVALID_VALUE;
		set->policy = v->syncPolicy - 1;
		return CUDA_SUCCESS;
	case CU_STREAM_ATTRIBUTE_PRIORITY:
		if (!s || v->priority > LEAST_PRIORITY || v->priority < GREATEST_PRIORITY)
			return CUDA_ERROR_INVALID_VALUE;
		s->priority = v->priority;
		return CUDA_SUCCESS;
	case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
		return set_map(ctx, set, v);
	case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN:
		if (v->memSyncDomain < 0 || v->memSyncDomain > 1)
			return CUDA_ERROR_INVALID_VALUE;
		set->domain = v->memSyncDomain;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult get(CUstream handle, int attribute, CUstreamAttrValue *value)
{
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r)
		r = get_locked(s ? s->ctx : ctx, s, attribute, value);
	process_unlock();
	return r;
}

static CUresult set(CUstream handle, int attribute, const CUstreamAttrValue *value)
{
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r)
		r = set_locked(s ? s->ctx : ctx, s, attribute, value);
	process_unlock();
	return r;
}

/* Documented: both have to be of one context. */
static CUresult copy(CUstream dst, CUstream src)
{
	CUcontext ctx;
	CUstream to, from;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	r = stream_find(dst, ctx, &to);
	if (!r)
		r = stream_find(src, ctx, &from);
	if (!r && (to ? to->ctx : ctx) != (from ? from->ctx : ctx))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		unsigned long long id = settings_of(ctx, to)->id;

		*settings_of(ctx, to) = *settings_of(ctx, from);
		settings_of(ctx, to)->id = id;
		if (to)
			to->priority = from ? from->priority : 0;
	}
	process_unlock();
	return r;
}

static CUresult get_id(CUstream handle, unsigned long long *id)
{
	static unsigned long long last; /* process lock */
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r) {
		struct stream_settings *set = settings_of(ctx, s);

		if (!set->id)
			set->id = ++last;
		*id = set->id;
	}
	process_unlock();
	return r;
}

CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
	ENTER();
	return get_id(stream, id);
}

CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long *id)
{
	ENTER();
	return get_id(per_thread(stream), id);
}

CUresult cuStreamGetAttribute(CUstream stream, int attribute, CUstreamAttrValue *value)
{
	ENTER();
	return get(stream, attribute, value);
}

CUresult cuStreamGetAttribute_ptsz(CUstream stream, int attribute, CUstreamAttrValue *value)
{
	ENTER();
	return get(per_thread(stream), attribute, value);
}

CUresult cuStreamSetAttribute(CUstream stream, int attribute, const CUstreamAttrValue *value)
{
	ENTER();
	return set(stream, attribute, value);
}

CUresult cuStreamSetAttribute_ptsz(CUstream stream, int attribute, const CUstreamAttrValue *value)
{
	ENTER();
	return set(per_thread(stream), attribute, value);
}

CUresult cuStreamCopyAttributes(CUstream dst, CUstream src)
{
	ENTER();
	return copy(dst, src);
}

CUresult cuStreamCopyAttributes_ptsz(CUstream dst, CUstream src)
{
	ENTER();
	return copy(per_thread(dst), per_thread(src));
}

static CUresult get_contexts(CUstream handle, CUcontext *owner, CUgreenCtx *green)
{
	CUcontext ctx;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!owner && !green)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r && owner)
		*owner = s ? s->ctx : ctx;
	if (!r && green)
		*green = green_of(s);
	process_unlock();
	return r;
}

CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *ctx, CUgreenCtx *green)
{
	ENTER();
	return get_contexts(stream, ctx, green);
}

CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *ctx, CUgreenCtx *green)
{
	ENTER();
	return get_contexts(per_thread(stream), ctx, green);
}

CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *green)
{
	ENTER();
	return get_contexts(stream, NULL, green);
}
