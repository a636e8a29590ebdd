"""What the shared memory between dataplane and agent costs the agent."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from steelyard import native
from steelyard.benchmarks.speed import Measurement, repeat

_SERVERS = 8
_FLOWS = 20_000
_READS = 2000
_PUBLISHED_US = 3800.0
"""What the authors' agent takes to read the features of 8 servers, in Python."""


def measure(repeats: int) -> list[Measurement]:
    """CPU time of one whole reading: a consistent snapshot and its observation; every reservoir is full."""
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="steelyard-bench-", dir=folder) as name:
        path = f"{name}/pool"
        dataplane = native.ShmDataplane(path, _SERVERS)
        for flow in range(_FLOWS):
            server = dataplane.open(flow * 7919, flow * 1000)
            dataplane.close(flow * 7919, server, True, flow * 1000 + 900)
        dataplane.publish(_FLOWS * 1000)
        reader = native.ShmReader(path)

        def once() -> float:
            began = time.thread_time()
            for _ in range(_READS):
                snapshot = reader.snapshot()
                assert snapshot is not None
                snapshot.observation()
            return 1e6 * (time.thread_time() - began) / _READS

        name = f"shared memory, {_SERVERS} servers"
        return [
            Measurement(name, "us", repeat(once, repeats), "lower", 50.0, "Aquarius agent, published"),
            Measurement("Aquarius agent, published", "us", [_PUBLISHED_US], "lower"),
        ]
