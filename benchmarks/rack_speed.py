"""What the rack world costs: time per task with JSQ over stale loads, and memory per worker."""

from __future__ import annotations

import subprocess
import sys
import time

from steelyard import native
from steelyard.benchmarks.speed import Measurement, repeat

SERVERS = (8, 16, 32)
WORKERS = 8
_TASK_S = 50e-6
_HORIZON_S = 0.2
_GOAL_NS = 90.0
_WORLDS = 100
_CHILD = "from steelyard.benchmarks import rack_speed; print(rack_speed.resident({servers}))"


def measure(repeats: int) -> list[Measurement]:
    """CPU time per task of one thread, reset and all, and what a world that has run takes, per worker."""
    times = [task_cost(servers, repeats) for servers in SERVERS]
    return [*times, *(memory(servers) for servers in SERVERS)]


def rack(servers: int) -> native.RackConfig:
    """Exponential tasks of 50 us at 85 % load on servers of 8 workers; loads told every 100 us."""
    service = native.Distribution()
    service.kind, service.a = "exponential", [_TASK_S]
    config = native.RackConfig()
    config.servers = [native.RackServer(workers=WORKERS) for _ in range(servers)]
    config.types = [native.RackType(service)]
    arrival = native.ArrivalConfig()
    arrival.rate = 0.85 * servers * WORKERS / _TASK_S
    config.arrival = arrival
    config.task_delay = config.message_delay = native.RackDelay(2e-6)
    config.horizon_s, config.warmup_s = _HORIZON_S * 8 / servers, 0.0
    return config


def world(servers: int, seed: int) -> native.RackWorld:
    """JSQ that counts what it sends."""
    return native.RackWorld(rack(servers), native.RackRule("jsq", increments=True), seed=seed)


def task_cost(servers: int, repeats: int) -> Measurement:
    """An episode in which about 220,000 tasks arrive."""
    played = world(servers, 0)

    def once() -> float:
        began = time.thread_time()
        played.reset(1)
        played.drain()
        return 1e9 * (time.thread_time() - began) / played.stats()["tasks"]

    name = f"rack jsq, {servers} x {WORKERS}"
    return Measurement(name, "ns/task", repeat(once, repeats), "lower", _GOAL_NS, "simulate sed")


def memory(servers: int) -> Measurement:
    """Of a process of its own, so that nothing that was freed before is used again."""
    code = _CHILD.format(servers=servers)
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    value = int(found.stdout) / _WORLDS / (servers * WORKERS)
    return Measurement(f"rack memory, {servers} x {WORKERS}", "B/worker", [value], "lower")


def resident(servers: int) -> int:
    """Bytes by which the process grows for so many worlds that have run."""
    before = _resident()
    worlds = [world(servers, seed) for seed in range(_WORLDS)]
    for one in worlds:
        one.run_until(0.002)
    return _resident() - before


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * 4096
