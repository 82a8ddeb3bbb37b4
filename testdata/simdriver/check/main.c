#include "check.h"

#include <string.h>

const char spin_ptx[] = ".version 6.3\n"
			".target sm_75\n"
			"// .entry not_this(\n"
			"// sim-duration-us: 500\n"
			".visible .entry spin(.param .u64 ns) { ret; }\n"
			".visible .entry quick() { ret; }\n"
			"// sim-duration-us: 20000\n"
			".entry slow(\n) { ret; }\n";

CUcontext start(void)
{
	CUcontext ctx;

	FINE(cuInit(0));
	FINE(cuDevicePrimaryCtxRetain(&ctx, 0));
	FINE(cuCtxSetCurrent(ctx));
	return ctx;
}

static const struct {
	const char *name;
	void (*run)(void);
} checks[] = {
	{"uninitialised", check_uninitialised}, {"devices", check_devices}, {"contexts", check_contexts},
	{"memory", check_memory},		{"copies", check_copies},   {"lookup", check_lookup},
	{"modules", check_modules},		{"time", check_time},	    {"streams", check_streams},
	{"fork", check_fork},			{"nvml-fork", check_nvml_fork}, {"threads", check_threads},
};

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "orphan"))
		check_orphan();
	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		if (argc < 2) {
			puts(checks[i].name);
		} else if (!strcmp(argv[1], checks[i].name)) {
			checks[i].run();
			return 0;
		}
	}
	return argc < 2 ? 0 : 2;
}
