# A kernel that libNVVM compiles, with an empty libdevice.
import numpy
from llvmlite import binding
from numba import cuda

binding.initialize()
with open("nvvm/libdevice/libdevice.10.bc", "wb") as file:
    file.write(binding.parse_assembly('target triple = "nvptx64-nvidia-cuda"').as_bitcode())


@cuda.jit
def increment(values):
    values[cuda.grid(1)] += 1


increment[4, 256](cuda.to_device(numpy.zeros(1024, dtype=numpy.int32)))
cuda.synchronize()
print("launched")
