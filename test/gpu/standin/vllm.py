"""Stands for vLLM where `make gpu-test` is tried on the simulated GPU: what ../vllm_test.py uses."""
import types

import torch

__version__ = "stand-in"


class SamplingParams:
    def __init__(self, max_tokens, **_):
        self.max_tokens = max_tokens


class LLM:
    def __init__(self, gpu_memory_utilization, **_):
        available, total = torch.cuda.mem_get_info()
        self.cache = torch.empty(int(total * gpu_memory_utilization) - (total - available))

    def generate(self, prompts, params, **_):
        for _ in range(params.max_tokens):
            torch.mm(self.cache, None)
        torch.cuda.synchronize()
        output = types.SimpleNamespace(token_ids=[0] * params.max_tokens)
        return [types.SimpleNamespace(outputs=[output]) for _ in prompts]
