"""Stands for PyTorch where `make gpu-test` is tried on the simulated GPU: what ../torch_test.py uses, by calls of the
driver. Each operation on tensors is one kernel of 100 us."""
import contextlib
import ctypes
import math
import types

__version__ = "stand-in"
uint8 = 1

_PTX = b""".version 6.3
.target sm_75
.address_size 64
// sim-duration-us: 100
.visible .entry work()
{
	ret;
}
"""
_state = types.SimpleNamespace(driver=None, work=None)


class _OutOfMemoryError(RuntimeError):
    pass


def _driver():
    if _state.driver is None:
        d = _state.driver = ctypes.CDLL("libcuda.so.1")
        context, module, _state.work = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        _must(d.cuInit(0), "cuInit")
        _must(d.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
        _must(d.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        _must(d.cuModuleLoadData(ctypes.byref(module), _PTX), "cuModuleLoadData")
        _must(d.cuModuleGetFunction(ctypes.byref(_state.work), module, b"work"), "cuModuleGetFunction")
    return _state.driver


def _must(result, what):
    if result == 2:
        raise _OutOfMemoryError(what)
    if result:
        raise RuntimeError(f"{what}: {result}")


class Tensor:
    def __init__(self, size):
        self.pointer = ctypes.c_uint64()
        _must(_driver().cuMemAlloc_v2(ctypes.byref(self.pointer), ctypes.c_size_t(size)), "cuMemAlloc")

    def __del__(self):
        _driver().cuMemFree_v2(self.pointer)

    def _operation(self, *_):
        return _launch(self)

    __add__ = __sub__ = abs = max = square = mean = backward = _operation

    def item(self):
        return 0.0


def _launch(result):
    _must(_driver().cuLaunchKernel(_state.work, 1, 1, 1, 1, 1, 1, 0, None, None, None), "cuLaunchKernel")
    return result


def empty(size, dtype=None, device=None):
    return Tensor(size)


def randn(*shape, device=None):
    return Tensor(4 * math.prod(shape))


def _operation(x, *_):
    return _launch(x)


mm = sin = cos = _operation


def compile(function):
    return function


def _mem_get_info():
    available, total = ctypes.c_size_t(), ctypes.c_size_t()
    _must(_driver().cuMemGetInfo_v2(ctypes.byref(available), ctypes.byref(total)), "cuMemGetInfo")
    return available.value, total.value


class _Graph:
    def replay(self):
        _launch(None)


class _Model:
    def __init__(self, *parts):
        self.parts = len(parts)

    def cuda(self):
        return self

    def parameters(self):
        return []

    def __call__(self, x):
        for _ in range(self.parts):
            _launch(x)
        return x


class _Optimizer:
    def __init__(self, parameters, lr):
        pass

    def zero_grad(self):
        pass

    def step(self):
        _launch(None)


cuda = types.SimpleNamespace(
    OutOfMemoryError=_OutOfMemoryError,
    is_available=lambda: True,
    mem_get_info=_mem_get_info,
    empty_cache=lambda: None,
    synchronize=lambda: _must(_driver().cuCtxSynchronize(), "cuCtxSynchronize"),
    Stream=lambda: None,
    stream=lambda stream: contextlib.nullcontext(),
    current_stream=lambda: types.SimpleNamespace(wait_stream=lambda stream: None),
    CUDAGraph=_Graph,
    graph=lambda graph: contextlib.nullcontext(),
)
nn = types.SimpleNamespace(Sequential=_Model, Linear=lambda inputs, outputs: None)
optim = types.SimpleNamespace(SGD=_Optimizer)
