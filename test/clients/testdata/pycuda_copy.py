# Data goes to the GPU and back.
import numpy
import pycuda.driver as driver

driver.init()
context = driver.Device(0).make_context()
there = numpy.arange(1 << 19, dtype=numpy.int32)
on_gpu = driver.to_device(there)
back = driver.from_device_like(on_gpu, there)
print("same", bool((there == back).all()))
print("memory", tuple(size >> 20 for size in driver.mem_get_info()))
context.pop()
