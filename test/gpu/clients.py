"""A short program of a library: clients.py NAME LIMIT_MIB. Ends with 0 if its result is right."""
import sys

name = sys.argv[1]


def expect(value, wanted):
    print(f"{value} of {wanted}")
    sys.exit(abs(value - wanted) > 1e-3 * abs(wanted))


if name == "jax":
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        sys.exit("no GPU")
    f = jax.jit(lambda x: (x @ x).sum())
    expect(float(f(jnp.ones((512, 512)))), 512.0**3)
elif name == "cupy":
    import cupy

    expect(float((cupy.ones((512, 512)) @ cupy.ones((512, 512))).sum()), 512.0**3)
elif name == "numba":
    import numpy
    from numba import cuda

    @cuda.jit
    def double(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] *= 2

    x = cuda.to_device(numpy.ones(1 << 16))
    double[256, 256](x)
    expect(float(x.copy_to_host().sum()), 2.0 * (1 << 16))
elif name == "triton":
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, n, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

    x = torch.ones(1 << 16, device="cuda")
    y = torch.empty_like(x)
    add[(64,)](x, y, x.numel(), block=1024)
    expect(float(y.sum()), 2.0 * (1 << 16))
else:
    sys.exit(f"unknown library {name}")
