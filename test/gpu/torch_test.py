"""PyTorch under a limit: torch_test.py TEST LIMIT_MIB, or train SECONDS.

Prints figure=, unit= and wanted= lines; ends with 1 if what is wanted does not hold.
"""
import os
import sys
import time

test, argument = sys.argv[1], int(sys.argv[2])
if test == "expandable":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch  # noqa: E402  (after the variable)

MIB = 1 << 20


def result(figure, unit, wanted, held=True):
    print(f"figure={figure}\nunit={unit}\nwanted={wanted}")
    sys.exit(0 if held else 1)


def fill(limit_mib):
    """Allocates until PyTorch is out of memory; what it got, in MiB."""
    held = []
    try:
        while True:
            held.append(torch.empty(16 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        pass
    got = 16 * len(held)
    held.clear()
    torch.cuda.empty_cache()
    return got


def step_of():
    a = torch.randn(2048, 2048, device="cuda")
    b = torch.randn(2048, 2048, device="cuda")

    def step():
        torch.mm(a, b)

    return step


if test in ("limit", "expandable"):
    total = torch.cuda.mem_get_info()[1] // MIB
    got = fill(argument)
    again = fill(argument)
    result(got, "MiB", f"{argument * 80 // 100} to {argument}", total == argument and argument * 0.8 <= got <= argument and again == got)
elif test == "graphs":
    step = step_of()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
    result(100, "replays", "100")
elif test == "compile":
    if not hasattr(torch, "compile"):
        result(0, "", "not in this PyTorch")
    function = torch.compile(lambda x: torch.sin(x) + torch.cos(x))
    x = torch.randn(1 << 20, device="cuda")
    error = (function(x) - (torch.sin(x) + torch.cos(x))).abs().max().item()
    result(f"{error:.1e}", "error", "< 1e-5", error < 1e-5)
elif test == "train":
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(512, 2048, device="cuda")
    for _ in range(5):  # warm
        model(x).square().mean().backward()
    torch.cuda.synchronize()
    start, steps, half, before = time.monotonic(), 0, None, 0
    while time.monotonic() < start + argument:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        steps += 1
        if half is None and time.monotonic() >= start + argument / 2:
            half, before = time.monotonic(), steps
    # Of the second half: by then the agent's loop has corrected the share.
    result(f"{(steps - before) / (time.monotonic() - half):.2f}", "steps/s", "")
else:
    sys.exit(f"unknown test {test}")
