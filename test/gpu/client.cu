// A program of the CUDA runtime: memory of each kind, streams, a graph, a kernel. Ends with 0 if its result is right.
#include <cstdio>
#include <cuda_runtime.h>

#define MUST(call)                                                                      \
	do {                                                                            \
		cudaError_t r = (call);                                                 \
		if (r != cudaSuccess) {                                                 \
			std::printf("%s: %s\n", #call, cudaGetErrorString(r));          \
			return 1;                                                       \
		}                                                                       \
	} while (0)

__global__ void add(float *to, const float *a, const float *b, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		to[i] = a[i] + b[i];
}

int main()
{
	const int n = 1 << 20;
	float *a, *b, *to, one;
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	size_t room, total;

	MUST(cudaStreamCreate(&stream));
	MUST(cudaMalloc(&a, n * sizeof(float)));
	MUST(cudaMallocManaged(&b, n * sizeof(float)));
	MUST(cudaMallocAsync(&to, n * sizeof(float), stream));
	for (int i = 0; i < n; i++)
		b[i] = 2;
	MUST(cudaMemsetAsync(a, 0, n * sizeof(float), stream));
	MUST(cudaStreamSynchronize(stream));
	MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	add<<<n / 256, 256, 0, stream>>>(to, a, b, n);
	add<<<n / 256, 256, 0, stream>>>(a, to, b, n);
	MUST(cudaStreamEndCapture(stream, &graph));
	MUST(cudaGraphInstantiate(&exec, graph, 0));
	for (int i = 0; i < 100; i++)
		MUST(cudaGraphLaunch(exec, stream));
	MUST(cudaMemcpyAsync(&one, a + n - 1, sizeof(one), cudaMemcpyDeviceToHost, stream));
	MUST(cudaFreeAsync(to, stream));
	MUST(cudaStreamSynchronize(stream));
	MUST(cudaMemGetInfo(&room, &total));
	MUST(cudaFree(a));
	MUST(cudaFree(b));
	MUST(cudaDeviceReset());
	std::printf("%.0f of 400, %zu MiB\n", one, total >> 20);
	return one != 400;
}
