/* Looking functions up, and the names of errors. symbols.def and absent.def are the one table behind it. */
#include "absent.h"
#include "driver.h"

#include <string.h>

enum stream_kind { ANY, PER_THREAD };

struct symbol {
	const char *name;
	const char *base;
	int version;
	enum stream_kind kind;
	void (*function)(void);
};

#define SYM(name, base, version, kind) {#name, #base, version, kind, (void (*)(void))name},
static const struct symbol symbols[] = {
#include "symbols.def"
#include "absent.def"
};
#undef SYM

#define SYMBOL_COUNT (sizeof(symbols) / sizeof(symbols[0]))

/*
 * The newest variant of that name which the version already has; one for per-thread streams first, if asked for. What came
 * after the driver's own version, the driver does not know.
 */
static const struct symbol *look_up(const char *base, int version, int driver, bool per_thread_wanted, bool *known)
{
	const struct symbol *best = NULL;

	*known = false;
	for (size_t i = 0; i < SYMBOL_COUNT; i++) {
		const struct symbol *s = &symbols[i];

		if ((driver && s->version > driver) || strcmp(s->base, base) != 0)
			continue;
		*known = true;
		if (s->version > version || (s->kind == PER_THREAD && !per_thread_wanted))
			continue;
		if (!best || s->kind > best->kind || (s->kind == best->kind && s->version > best->version))
			best = s;
	}
	return best;
}

/* The driver's version, 0 if there is none. Asked once: programs look hundreds of functions up before cuInit. */
static int driver_version(void)
{
	static atomic_int known;
	int version = atomic_load(&known);

	if (!version) {
		cuDriverGetVersion(&version);
		atomic_store(&known, version);
	}
	return version;
}

static CUresult get_proc(const char *symbol, void **pfn, int version, cuuint64_t flags,
			 CUdriverProcAddressQueryResult *status)
{
	const struct symbol *s;
	int driver = driver_version();
	bool known;

	if (!symbol || !pfn || version < 0 || flags > 2)
		return CUDA_ERROR_INVALID_VALUE;
	if (driver >= 13000 && version > driver)
		return CUDA_ERROR_INVALID_VALUE; /* documented since CUDA 13 */
	s = look_up(symbol, version, driver, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
	*pfn = s ? (void *)s->function : NULL;
	if (s)
		*status = CU_GET_PROC_ADDRESS_SUCCESS;
	else
		*status = known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}

/* As CUDA 11 documents it: a name that is not found is an error. */
CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
	CUdriverProcAddressQueryResult status;
	CUresult r = get_proc(symbol, pfn, version, flags, &status);

	if (r)
		return r;
	return status == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* As CUDA 12 documents it: success, a NULL pointer, and the reason in the status. */
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	CUdriverProcAddressQueryResult ignored;

	return get_proc(symbol, pfn, version, flags, status ? status : &ignored);
}

CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = NULL;
	return CUDA_ERROR_NOT_SUPPORTED; /* private tables of NVIDIA's own libraries */
}

struct result {
	CUresult number;
	const char *name;
	const char *text;
};

#define CUDA_RESULT_ROW(number, name, text) {(CUresult)number, "CUDA_" #name, text},
static const struct result results[] = {CUDA_RESULTS(CUDA_RESULT_ROW)};

static const struct result *find_result(CUresult number)
{
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
		if (results[i].number == number)
			return &results[i];
	}
	return NULL;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	const struct result *r = find_result(error);

	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = r ? r->text : NULL;
	return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
	const struct result *r = find_result(error);

	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = r ? r->name : NULL;
	return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
