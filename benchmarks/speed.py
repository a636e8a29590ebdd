"""What the native code costs, each number with its reference measured in the same run.

Every measurement is repeated; the median is reported with the least and the largest. CPU time is that of the
calling process, on one thread.
"""

from __future__ import annotations

import importlib.util
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steelyard import native
from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.scenario import Scenario

SCENARIO = "cluster-a-cpu"
_WORLDS = 64
_EPISODES = 100
_HIDDEN = 64
_INFERENCES = 2000


@dataclass(frozen=True)
class Measurement:
    """One quantity: repeats in the given unit, its target if the project has one, and its reference."""

    name: str
    unit: str
    values: list[float]
    better: str
    """lower or higher"""
    target: float | None = None
    reference: str = ""
    """Name of the measurement that this one is compared with."""

    @property
    def median(self) -> float:
        """Median of the repeats."""
        return statistics.median(self.values)

    def reached(self) -> bool | None:
        """Whether the median meets the target; None without one."""
        if self.target is None:
            return None
        return self.median <= self.target if self.better == "lower" else self.median >= self.target


def measure(repeats: int, say: Callable[[str], None] = lambda text: None) -> list[Measurement]:
    """All measurements; those whose package is missing are left out."""
    scenario = Scenario.load(SCENARIO)
    out = []
    for title, parts in (
        ("decision and queueing path", lambda: [path_cost(scenario, repeats, on) for on in (False, True)]),
        ("whole episodes", lambda: [episode_cost(scenario, repeats)]),
        ("batched environment", lambda: [joint_steps(scenario, repeats)]),
        ("SimPy reference", lambda: simpy_cost(scenario, repeats)),
        ("inference", lambda: [native_inference(scenario.num_servers, repeats)]),
        ("eager PyTorch", lambda: torch_inference(scenario.num_servers, repeats)),
        ("rack world", lambda: rack_world(repeats)),
        ("kernels of the rack game", lambda: malcolm_kernels(repeats)),
        ("shared memory", lambda: shared_memory(repeats)),
    ):
        say(title)
        out += parts()
    return out


def path_cost(scenario: Scenario, repeats: int, features: bool) -> Measurement:
    """CPU time per flow of SED where flows are decided and queued: no reset, drain or statistics."""
    config, rule = scenario.to_native(), scenario.to_rule("sed")
    config.features = features
    world = native.World(config, rule, 0)
    horizon_s = scenario.episode.horizon_s

    def once() -> float:
        cpu_s = flows = 0.0
        for seed in range(_EPISODES):
            world.reset(seed)
            began = time.thread_time()
            world.run_until(horizon_s)
            cpu_s += time.thread_time() - began
            flows += world.stats()["arrived"]
        return 1e9 * cpu_s / flows

    name = f"sed path, features {'on' if features else 'off'}"
    target = 400.0 if features else 150.0
    return Measurement(name, "ns/flow", repeat(once, repeats), "lower", target, "simpy sed, no features")


def episode_cost(scenario: Scenario, repeats: int) -> Measurement:
    """CPU time per simulated flow of SED, all told: reset, drain, statistics, reservoirs."""
    config, rule = scenario.to_native(), scenario.to_rule("sed")

    def once() -> float:
        stats = native.simulate(config, rule, list(range(_EPISODES)), threads=1)
        return 1e9 * sum(s["cpu_s"] for s in stats) / sum(s["arrived"] for s in stats)

    return Measurement(
        "simulate sed", "ns/flow", repeat(once, repeats), "lower", None, "simpy sed, no features"
    )


def joint_steps(scenario: Scenario, repeats: int) -> Measurement:
    """Joint steps per second of one core: worlds x steps, observations of all agents written every step."""
    batch = LoadBalanceBatch(scenario, _WORLDS)
    actions = np.zeros((_WORLDS, scenario.num_agents, scenario.num_servers), np.float32)
    steps = round(scenario.episode.horizon_s / scenario.control.step_s)

    def once() -> float:
        batch.reset(seed=0)
        began = time.perf_counter()
        for _ in range(steps):
            batch.step(actions)
        return _WORLDS * steps / (time.perf_counter() - began)

    name = f"batched environment, {_WORLDS} worlds"
    return Measurement(
        name, "joint steps/s", repeat(once, repeats), "higher", 20_000.0, "simpy, no observations"
    )


def simpy_cost(scenario: Scenario, repeats: int) -> list[Measurement]:
    """The same world in SimPy: CPU time per flow, and control steps of simulated time per second."""
    if importlib.util.find_spec("simpy") is None:
        return []
    from steelyard.benchmarks import simpy_reference

    outcomes = [simpy_reference.simulate(scenario, seed) for seed in range(max(repeats, 5))]
    steps = scenario.episode.horizon_s / scenario.control.step_s
    return [
        Measurement(
            "simpy sed, no features", "ns/flow", [1e9 * o.cpu_s / o.flows for o in outcomes], "lower"
        ),
        Measurement("simpy, no observations", "joint steps/s", [steps / o.cpu_s for o in outcomes], "higher"),
    ]


def native_inference(servers: int, repeats: int) -> Measurement:
    """One observation through a GRU policy by the native kernel, called from Python."""
    policy = native.Policy(native.encode_policy(policy_spec(servers)))
    obs = np.random.default_rng(0).random(native.observation_size(servers), dtype=np.float32)

    def once() -> float:
        began = time.perf_counter()
        for _ in range(_INFERENCES):
            policy.infer(0, obs)
        return 1e6 * (time.perf_counter() - began) / _INFERENCES

    return Measurement(f"native GRU({_HIDDEN})", "us", repeat(once, repeats), "lower", 10.0, "eager PyTorch")


def torch_inference(servers: int, repeats: int) -> list[Measurement]:
    """The same network in eager PyTorch, one thread, no gradient."""
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    torch.set_num_threads(1)
    dim = native.observation_size(servers)
    cell, head = torch.nn.GRUCell(dim, _HIDDEN), torch.nn.Linear(_HIDDEN, servers)
    obs, state = torch.zeros(1, dim), torch.zeros(1, _HIDDEN)

    def once() -> float:
        hidden = state
        began = time.perf_counter()
        with torch.inference_mode():
            for _ in range(_INFERENCES):
                hidden = cell(obs.clamp(-10, 10), hidden)
                torch.tanh(head(hidden))
        return 1e6 * (time.perf_counter() - began) / _INFERENCES

    return [Measurement("eager PyTorch", "us", repeat(once, repeats), "lower")]


def rack_world(repeats: int) -> list[Measurement]:
    """Time per task and memory per worker."""
    from steelyard.benchmarks import rack_speed

    return rack_speed.measure(repeats)


def malcolm_kernels(repeats: int) -> list[Measurement]:
    """The rack game's kernels, each with PyTorch's."""
    from steelyard.benchmarks import malcolm_speed

    return malcolm_speed.measure(repeats)


def shared_memory(repeats: int) -> list[Measurement]:
    """One reading of what a dataplane publishes."""
    from steelyard.benchmarks import shm_speed

    return shm_speed.measure(repeats)


def policy_spec(servers: int) -> dict[str, Any]:
    """A GRU actor over the whole observation with weights of the size that training gives."""
    rng = np.random.default_rng(0)
    dim = native.observation_size(servers)

    def matrix(*shape: int) -> np.ndarray:
        return rng.uniform(-0.125, 0.125, shape).astype(np.float32)

    gru = {
        "kind": "gru",
        "weight_ih": matrix(3 * _HIDDEN, dim),
        "weight_hh": matrix(3 * _HIDDEN, _HIDDEN),
        "bias_ih": matrix(3 * _HIDDEN),
        "bias_hh": matrix(3 * _HIDDEN),
    }
    head = {
        "kind": "dense",
        "weight": matrix(servers, _HIDDEN),
        "bias": matrix(servers),
        "activation": "none",
    }
    actor = {"mean": np.zeros(dim, np.float32), "inv_std": np.ones(dim, np.float32), "layers": [gru, head]}
    return {"num_servers": servers, "input": "flat", "output": "tanh", "clip": 10.0, "actors": [actor]}


def to_dict(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """As JSON holds them: every measurement with its ratio to its reference, and the machine."""
    found = {m.name: m for m in measurements}
    return {
        "processor": processor(),
        "python": platform.python_version(),
        "measurements": [
            asdict(m) | {"median": m.median, "reached": m.reached(), "ratio": ratio(m, found)}
            for m in measurements
        ],
    }


def ratio(measurement: Measurement, found: dict[str, Measurement]) -> float | None:
    """How many times better than its reference; None without one."""
    reference = found.get(measurement.reference)
    if reference is None:
        return None
    times = reference.median / measurement.median
    return times if measurement.better == "lower" else 1 / times


def processor() -> str:
    """Model name of the processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def repeat(once: Callable[[], float], repeats: int) -> list[float]:
    """A warm-up, then the repeats."""
    once()
    return [once() for _ in range(repeats)]
