/*
 * The MIG profiles of the GPUs that simctl knows: places, slices and engines as NVIDIA's MIG user guide has them, memory
 * and multiprocessors as `nvidia-smi mig -lgip` prints them on such a GPU. For Blackwell, names and numbers of devices are those of
 * the user guide and of the GPU operator's configuration; their memory is the part that the name stands for, and their
 * multiprocessors follow H200's. An RTX PRO 6000 has four slices, each of which takes two of the eight places here.
 */
#include "state.h"

#include <string.h>

#define MIB (1ull << 20)

#define MAX_PROFILES 7

/* Memory slices at which a profile may begin. */
#define ANYWHERE 0x7fu
#define EVEN 0x55u
#define EVEN_OF_2G 0x15u
#define HALVES 0x11u
#define AT_0 0x01u

/* name, memory MiB, multiprocessors, slices, memory slices, starts, most, copy engines, decoders, JPEG, OFA */
#define PROFILE(name_, mib, sm, slices_, size_, starts_, most_, ce, dec, jpeg, ofa)                                      \
	{.name = name_, .memory_bytes = (mib) * MIB, .sm_count = sm, .slices = slices_, .size = size_, .starts = starts_, \
	 .most = most_, .copy_engines = ce, .decoders = dec, .jpegs = jpeg, .ofas = ofa}

static const struct family {
	const char *gpu; /* profile of the GPU */
	struct mig_profile profiles[MAX_PROFILES];
} families[] = {
	{"A100-40GB",
	 {PROFILE("1g.5gb", 4864, 14, 1, 1, ANYWHERE, 7, 1, 0, 0, 0),
	  PROFILE("1g.5gb+me", 4864, 14, 1, 1, ANYWHERE, 1, 1, 1, 1, 1),
	  PROFILE("1g.10gb", 9984, 14, 1, 2, EVEN, 4, 1, 1, 0, 0),
	  PROFILE("2g.10gb", 9984, 28, 2, 2, EVEN_OF_2G, 3, 2, 1, 0, 0),
	  PROFILE("3g.20gb", 20096, 42, 3, 4, HALVES, 2, 3, 2, 0, 0),
	  PROFILE("4g.20gb", 20096, 56, 4, 4, AT_0, 1, 4, 2, 0, 0),
	  PROFILE("7g.40gb", 40320, 98, 7, 8, AT_0, 1, 7, 5, 1, 1)}},
	{"A100-80GB",
	 {PROFILE("1g.10gb", 9728, 14, 1, 1, ANYWHERE, 7, 1, 0, 0, 0),
	  PROFILE("1g.10gb+me", 9728, 14, 1, 1, ANYWHERE, 1, 1, 1, 1, 1),
	  PROFILE("1g.20gb", 19968, 14, 1, 2, EVEN, 4, 1, 1, 0, 0),
	  PROFILE("2g.20gb", 19968, 28, 2, 2, EVEN_OF_2G, 3, 2, 1, 0, 0),
	  PROFILE("3g.40gb", 40192, 42, 3, 4, HALVES, 2, 3, 2, 0, 0),
	  PROFILE("4g.40gb", 40192, 56, 4, 4, AT_0, 1, 4, 2, 0, 0),
	  PROFILE("7g.80gb", 80896, 98, 7, 8, AT_0, 1, 7, 5, 1, 1)}},
	{"H100",
	 {PROFILE("1g.10gb", 9984, 16, 1, 1, ANYWHERE, 7, 1, 1, 1, 0),
	  PROFILE("1g.10gb+me", 9984, 16, 1, 1, ANYWHERE, 1, 1, 1, 1, 1),
	  PROFILE("1g.20gb", 20096, 26, 1, 2, EVEN, 4, 1, 1, 1, 0),
	  PROFILE("2g.20gb", 20096, 32, 2, 2, EVEN_OF_2G, 3, 2, 2, 2, 0),
	  PROFILE("3g.40gb", 40448, 60, 3, 4, HALVES, 2, 3, 3, 3, 0),
	  PROFILE("4g.40gb", 40448, 64, 4, 4, AT_0, 1, 4, 4, 4, 0),
	  PROFILE("7g.80gb", 81152, 132, 7, 8, AT_0, 1, 8, 7, 7, 1)}},
	{"H200",
	 {PROFILE("1g.18gb", 16384, 16, 1, 1, ANYWHERE, 7, 1, 1, 1, 0),
	  PROFILE("1g.18gb+me", 16384, 16, 1, 1, ANYWHERE, 1, 1, 1, 1, 1),
	  PROFILE("1g.35gb", 33024, 26, 1, 2, EVEN, 4, 1, 1, 1, 0),
	  PROFILE("2g.35gb", 33024, 32, 2, 2, EVEN_OF_2G, 3, 2, 2, 2, 0),
	  PROFILE("3g.71gb", 71168, 60, 3, 4, HALVES, 2, 3, 3, 3, 0),
	  PROFILE("4g.71gb", 71168, 64, 4, 4, AT_0, 1, 4, 4, 4, 0),
	  PROFILE("7g.141gb", 143104, 132, 7, 8, AT_0, 1, 8, 7, 7, 1)}},
	{"B200",
	 {PROFILE("1g.23gb", 22528, 18, 1, 1, ANYWHERE, 7, 1, 1, 1, 0),
	  PROFILE("1g.23gb+me", 22528, 18, 1, 1, ANYWHERE, 1, 1, 1, 1, 1),
	  PROFILE("1g.45gb", 45056, 30, 1, 2, EVEN, 4, 1, 1, 1, 0),
	  PROFILE("2g.45gb", 45056, 36, 2, 2, EVEN_OF_2G, 3, 2, 2, 2, 0),
	  PROFILE("3g.90gb", 91136, 70, 3, 4, HALVES, 2, 3, 3, 3, 0),
	  PROFILE("4g.90gb", 91136, 72, 4, 4, AT_0, 1, 4, 4, 4, 0),
	  PROFILE("7g.180gb", 182272, 148, 7, 8, AT_0, 1, 8, 7, 7, 1)}},
	{"GB200",
	 {PROFILE("1g.23gb", 23296, 18, 1, 1, ANYWHERE, 7, 1, 1, 1, 0),
	  PROFILE("1g.23gb+me", 23296, 18, 1, 1, ANYWHERE, 1, 1, 1, 1, 1),
	  PROFILE("1g.47gb", 46592, 30, 1, 2, EVEN, 4, 1, 1, 1, 0),
	  PROFILE("2g.47gb", 46592, 36, 2, 2, EVEN_OF_2G, 3, 2, 2, 2, 0),
	  PROFILE("3g.93gb", 94208, 72, 3, 4, HALVES, 2, 3, 3, 3, 0),
	  PROFILE("4g.93gb", 94208, 74, 4, 4, AT_0, 1, 4, 4, 4, 0),
	  PROFILE("7g.186gb", 188416, 152, 7, 8, AT_0, 1, 8, 7, 7, 1)}},
	{"RTX-PRO-6000",
	 {PROFILE("1g.24gb", 24064, 46, 1, 2, EVEN, 4, 1, 1, 1, 0),
	  PROFILE("1g.24gb+me", 24064, 46, 1, 2, EVEN, 1, 1, 1, 1, 1),
	  PROFILE("2g.48gb", 48384, 94, 2, 4, HALVES, 2, 2, 2, 2, 0),
	  PROFILE("4g.96gb", 96768, 188, 4, 8, AT_0, 1, 4, 4, 4, 1)}},
};

const struct mig_profile *mig_profiles(const struct gpu *c, unsigned *count)
{
	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		if (strcmp(families[i].gpu, c->profile) != 0)
			continue;
		for (*count = 0; *count < MAX_PROFILES && families[i].profiles[*count].slices; (*count)++)
			;
		return families[i].profiles;
	}
	*count = 0;
	return NULL;
}
