# Data goes to the GPU and back on a stream; then all memory that can be had is taken.
import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

there = numpy.arange(1 << 20, dtype=numpy.int32)
stream = cuda.stream()
on_gpu = cuda.to_device(there, stream=stream)
back = on_gpu.copy_to_host(stream=stream)
stream.synchronize()
cuda.synchronize()
print("same", bool((there == back).all()))
print("free %d total %d" % tuple(cuda.current_context().get_memory_info()))
taken = []
try:
    while True:
        taken.append(cuda.device_array(1 << 30, dtype=numpy.uint8))
except CudaAPIError as error:
    print("GiB", len(taken), error)
