"""Throughput of vLLM with a small model of random weights: vllm_test.py SECONDS DIRECTORY.

Prints version= and figure= (tokens a second of the second half). The model's configuration is written to DIRECTORY:
nothing is fetched.
"""
import json
import os
import sys
import time

seconds, directory = float(sys.argv[1]), sys.argv[2]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import vllm  # noqa: E402  (after the variables)

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 32000,
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 16, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}

if __name__ == "__main__":
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(CONFIG, f)
    llm = vllm.LLM(model=directory, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=1024,
                   gpu_memory_utilization=0.8)
    params = vllm.SamplingParams(max_tokens=64, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": list(range(3, 67))}] * 32
    tokens, start, half, before = 0, time.monotonic(), None, 0
    while time.monotonic() < start + seconds:
        tokens += sum(len(r.outputs[0].token_ids) for r in llm.generate(prompts, params, use_tqdm=False))
        if half is None and time.monotonic() >= start + seconds / 2:
            half, before = time.monotonic(), tokens
    rate = (tokens - before) / (time.monotonic() - half) if half and tokens > before else tokens / (time.monotonic() - start)
    print(f"version={vllm.__version__}\nfigure={rate:.1f}")
