"""What the rack game's kernels cost beside PyTorch: drawing up both distributions, and one AdamW step.

Targets are those of the thesis's table (seed 000, Table 6.1) as measured for this project's design; the
kernels that take a few nanoseconds are timed by `steelyard_bench --benchmark_filter=Rack` alone.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from steelyard import native
from steelyard.benchmarks.speed import Measurement, repeat

SERVERS = (4, 8, 16, 32)
# ns for 4, 8, 16, 32 servers; a quadratic critic is part of the AdamW step.
DISTRIBUTIONS_NS = (33.0, 35.0, 55.0, 120.0)
ADAMW_NS = (128.0, 170.0, 466.0, 1418.0)
_NATIVE_CALLS = 20_000
_TORCH_CALLS = 200


def measure(repeats: int) -> list[Measurement]:
    """Every kernel for every size, PyTorch's first where it is installed. CPU time of one thread."""
    out = []
    for n, distributions, adamw in zip(SERVERS, DISTRIBUTIONS_NS, ADAMW_NS, strict=True):
        out += _torch_rows(n, repeats)
        out.append(_row("distributions", n, distributions, native.malcolm_distributions_ns, repeats))
        out.append(_row("AdamW", n, adamw, native.malcolm_adamw_ns, repeats))
    return out


def _row(what: str, n: int, target: float, time_ns: Callable[[int, int], float], repeats: int) -> Measurement:
    values = repeat(partial(time_ns, n, _NATIVE_CALLS), repeats)
    return Measurement(f"{what}, {n} servers", "ns", values, "lower", target, f"PyTorch {what}, {n} servers")


def _torch_rows(n: int, repeats: int) -> list[Measurement]:
    if importlib.util.find_spec("torch") is None:
        return []
    rows = []
    for what, call in (("distributions", _torch_distributions(n)), ("AdamW", _torch_adamw(n))):
        values = repeat(partial(_time_ns, call), repeats)
        rows.append(Measurement(f"PyTorch {what}, {n} servers", "ns", values, "lower"))
    return rows


def _time_ns(call: Callable[[], Any]) -> float:
    began = time.thread_time()
    for _ in range(_TORCH_CALLS):
        call()
    return 1e9 * (time.thread_time() - began) / _TORCH_CALLS


def _torch_distributions(n: int) -> Callable[[], Any]:
    """Two linear layers and softmaxes from all loads, as a PyTorch program would write it."""
    import torch

    torch.set_num_threads(1)
    actors = [torch.nn.Linear(n, n) for _ in range(2)]
    loads = torch.rand(n)

    def call() -> None:
        with torch.inference_mode():
            for actor in actors:
                torch.softmax(actor(loads), -1)

    return call


def _torch_adamw(n: int) -> Callable[[], Any]:
    import torch

    from steelyard.agents.linear_critic import LinearCritic

    modules = [torch.nn.Linear(n, n), torch.nn.Linear(n, n), LinearCritic("quadratic", n)]
    parameters = [p for module in modules for p in module.parameters()]
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)
    return torch.optim.AdamW(parameters, fused=True).step
