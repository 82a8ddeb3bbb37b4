/* Kernels that count iterations, and not time: one that the GPU interrupts for another process takes as much longer. */
#ifndef GPU_COUNT_H
#define GPU_COUNT_H

#include "../../testdata/workloads/common.h"

#include <stdio.h>

/* The comment is for the simulated driver, which runs no code. */
static const char count_format[] =
	".version 6.3\n.target sm_75\n.address_size 64\n"
	"// sim-duration-us: %ld\n"
	".visible .entry count(.param .u64 out, .param .u64 n)\n"
	"{\n"
	"	.reg .u64 %%rd<5>;\n"
	"	.reg .u32 %%r<3>;\n"
	"	.reg .pred %%p<3>;\n"
	"	ld.param.u64 %%rd1, [out];\n"
	"	ld.param.u64 %%rd2, [n];\n"
	"	mov.u64 %%rd3, 0;\n"
	"	cvt.u32.u64 %%r1, %%rd2;\n"
	"AGAIN:\n"
	"	mad.lo.u32 %%r1, %%r1, %%r1, 12345;\n"
	"	mad.lo.u32 %%r1, %%r1, %%r1, 54321;\n"
	"	add.u64 %%rd3, %%rd3, 1;\n"
	"	setp.lt.u64 %%p1, %%rd3, %%rd2;\n"
	"	@%%p1 bra AGAIN;\n"
	"	setp.eq.u32 %%p2, %%r1, 1;\n"
	"	@%%p2 st.global.u64 [%%rd1], %%rd3;\n"
	"	ret;\n"
	"}\n";

static CUfunction count_kernel(long us)
{
	char text[sizeof(count_format) + 32];
	CUmodule module;
	CUfunction f;

	snprintf(text, sizeof(text), count_format, us);
	must(cu.cuModuleLoadData(&module, text), "cuModuleLoadData");
	must(cu.cuModuleGetFunction(&f, module, "count"), "cuModuleGetFunction");
	return f;
}

static void count_launch(CUfunction f, unsigned blocks, unsigned threads, unsigned long long iterations, CUstream stream)
{
	static CUdeviceptr out;
	void *params[] = { &out, &iterations };

	if (!out)
		must(cu.cuMemAlloc_v2(&out, 4096), "cuMemAlloc");
	must(cu.cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
}

/* Iterations of a microsecond: the most of eight, because clocks rise first, and another process may be there. */
static double count_of_us(void)
{
	enum { N = 2000000 };
	CUfunction f = count_kernel(1000);
	CUevent begin, end;
	double best = 0;

	must(cu.cuEventCreate(&begin, 0), "cuEventCreate");
	must(cu.cuEventCreate(&end, 0), "cuEventCreate");
	for (int i = 0; i < 8; i++) {
		float ms;

		must(cu.cuEventRecord(begin, NULL), "cuEventRecord");
		count_launch(f, 1, 32, N, NULL);
		must(cu.cuEventRecord(end, NULL), "cuEventRecord");
		must(cu.cuEventSynchronize(end), "cuEventSynchronize");
		must(cu.cuEventElapsedTime(&ms, begin, end), "cuEventElapsedTime");
		if (N / (ms * 1e3) > best)
			best = N / (ms * 1e3);
	}
	return best;
}

#endif
