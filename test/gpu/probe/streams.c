/* How kernels of one process overlap on several streams. */
#include "probe.h"

enum { STREAMS = 8, EACH = 20, US = 500, SM_COUNT = 16, THREADS_PER_SM = 39 };

/* The time of all kernels one after the other, divided by the time that they took. */
static double overlap(CUfunction f, unsigned blocks, unsigned threads, const CUstream *streams)
{
	double start = monotonic();

	for (int i = 0; i < EACH * STREAMS; i++)
		launch_spin(f, US, blocks, threads, streams[i % STREAMS]);
	must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
	return EACH * STREAMS * US / 1e6 / (monotonic() - start);
}

void ask_streams(void)
{
	CUstream streams[STREAMS], one[STREAMS];
	CUfunction f;
	CUdevice device;
	int sms = 0, threads = 0;

	begin();
	must(cu.cuDeviceGet(&device, 0), "cuDeviceGet");
	must(more.cuDeviceGetAttribute(&sms, SM_COUNT, device), "cuDeviceGetAttribute");
	must(more.cuDeviceGetAttribute(&threads, THREADS_PER_SM, device), "cuDeviceGetAttribute");
	answer("stream.sm", "%d", sms);
	for (int i = 0; i < STREAMS; i++)
		must(more.cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	for (int i = 0; i < STREAMS; i++)
		one[i] = streams[0];
	f = spin_kernel(US);
	overlap(f, 1, 1, streams);
	answer("stream.one", "%.1f", overlap(f, 1, 1, one));
	answer("stream.eight", "%.1f", overlap(f, 1, 1, streams));
	answer("stream.eight_full", "%.1f", overlap(f, (unsigned)(sms * (threads / 512)), 512, streams));
	answer("stream.eight_half", "%.1f", overlap(f, (unsigned)(sms * (threads / 1024)), 512, streams));
}
