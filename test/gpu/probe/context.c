/* What contexts, modules and limits take, and how long the first calls last. */
#include "probe.h"

#include <stdio.h>
#include <unistd.h>

static const char empty_ptx[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
				"// sim-duration-us: 0\n.visible .entry nothing()\n{\n\tret;\n}\n";
static const char global_ptx[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
				 ".visible .global .align 4 .b8 data[67108864];\n"
				 "// sim-duration-us: 0\n.visible .entry nothing()\n{\n\tret;\n}\n";

static const char malloc_ptx[] =
	".version 6.3\n.target sm_75\n.address_size 64\n"
	".extern .func (.param .b64 result) malloc(.param .b64 bytes);\n"
	".extern .func free(.param .b64 at);\n"
	"// sim-duration-us: 0\n"
	".visible .entry nothing()\n"
	"{\n"
	"	.reg .b64 %rd<3>;\n"
	"	mov.u64 %rd1, 64;\n"
	"	{ .param .b64 n; st.param.b64 [n], %rd1; .param .b64 r; call.uni (r), malloc, (n); ld.param.b64 %rd2, [r]; }\n"
	"	{ .param .b64 p; st.param.b64 [p], %rd2; call.uni free, (p); }\n"
	"	ret;\n"
	"}\n";
static const char printf_ptx[] =
	".version 6.3\n.target sm_75\n.address_size 64\n"
	".extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 values);\n"
	".global .align 1 .b8 empty[1] = {0};\n"
	"// sim-duration-us: 0\n"
	".visible .entry nothing()\n"
	"{\n"
	"	.reg .b64 %rd<4>;\n"
	"	mov.u64 %rd1, empty;\n"
	"	cvta.global.u64 %rd2, %rd1;\n"
	"	mov.u64 %rd3, 0;\n"
	"	{ .param .b64 f; st.param.b64 [f], %rd2; .param .b64 a; st.param.b64 [a], %rd3; .param .b32 r; call.uni (r), vprintf, (f, a); }\n"
	"	ret;\n"
	"}\n";

static double used;

/* What was taken since the last call, in MiB. */
static double step(void)
{
	double before = used;

	used = free_bytes();
	return (before - used) / (double)MIB;
}

static void limit(const char *key, int which, size_t bytes)
{
	CUresult r = more.cuCtxSetLimit ? more.cuCtxSetLimit(which, bytes) : CUDA_ERROR_NOT_SUPPORTED;

	if (r)
		answer(key, "%s", error_name(r));
	else
		answer(key, "%.0f", step());
}

/* What a module takes, and its first launch. */
static void module(const char *text, const char *load, const char *launch)
{
	CUmodule m;
	CUfunction f;

	must(cu.cuModuleLoadData(&m, text), "cuModuleLoadData");
	must(cu.cuModuleGetFunction(&f, m, "nothing"), "cuModuleGetFunction");
	answer(load, "%.0f", step());
	must(cu.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
	must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	answer(launch, "%.0f", step());
}

void ask_context(void)
{
	double before, after_init, now;
	CUcontext second;
	CUmodule large;
	CUfunction f;
	CUdevice device;

	nvml_begin();
	before = nvml_used_mib();
	nvml_versions();
	answer("context.reserved_mib", "%.0f", nvml_reserved_mib());
	cuda_load("dlsym");
	now = monotonic();
	must(cu.cuInit(0), "cuInit");
	answer("context.init_ms", "%.1f", (monotonic() - now) * 1e3);
	after_init = nvml_used_mib();
	answer("context.init_mib", "%.0f", after_init - before);
	now = monotonic();
	begin();
	answer("context.first_ms", "%.1f", (monotonic() - now) * 1e3);
	answer("context.gpu_mib", "%.0f", nvml_used_mib() - after_init);
	answer("context.process_mib", "%.0f", nvml_process_mib(getpid()));
	step();
	module(empty_ptx, "context.module_mib", "context.launch_mib");
	must(cu.cuModuleLoadData(&large, global_ptx), "cuModuleLoadData");
	must(cu.cuModuleGetFunction(&f, large, "nothing"), "cuModuleGetFunction");
	must(cu.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
	must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	answer("context.global_64m_mib", "%.0f", step());
	limit("context.heap_64m_mib", CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB);
	limit("context.printf_64m_mib", CU_LIMIT_PRINTF_FIFO_SIZE, 64 * MIB);
	limit("context.stack_16k_mib", CU_LIMIT_STACK_SIZE, 16384);
	module(malloc_ptx, "context.malloc_load_mib", "context.malloc_launch_mib");
	answer("context.heap_again", "%s", more.cuCtxSetLimit ? error_name(more.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 128 * MIB)) : "absent");
	module(printf_ptx, "context.printf_load_mib", "context.printf_launch_mib");
	must(cu.cuDeviceGet(&device, 0), "cuDeviceGet");
	now = nvml_used_mib();
	if (more.cuCtxCreate_v2 && !more.cuCtxCreate_v2(&second, 0, device))
		answer("context.second_mib", "%.0f", nvml_used_mib() - now);
	else
		answer("context.second_mib", "refused");
}
