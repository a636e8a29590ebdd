"""Service times of racks by name: the laws that papers measure with, as types of tasks."""

from __future__ import annotations

from collections.abc import Sequence

from steelyard.envs.workload import Demand

Types = tuple[tuple[float, Demand], ...]
"""(share of arrivals, service time) of each type."""


def _exponential(mean_us: float) -> Types:
    return ((1.0, Demand(kind="exponential", mean_s=mean_us / 1e6)),)


def _fixed(*modes: tuple[float, float]) -> Types:
    """One type of a fixed service time for each (share, us)."""
    return tuple((share, Demand(kind="deterministic", value_s=us / 1e6)) for share, us in modes)


def _phases(means_us: Sequence[float], probabilities: Sequence[float]) -> Types:
    """One type: nobody can tell the phases apart beforehand."""
    means_s = tuple(mean / 1e6 for mean in means_us)
    return ((1.0, Demand(kind="hyperexponential", means_s=means_s, probabilities=tuple(probabilities))),)


SERVICES: dict[str, Types] = {
    "exp25": _exponential(25),
    "exp50": _exponential(50),
    "exp100": _exponential(100),
    "exp250": _exponential(250),
    "bimodal-90-10": _fixed((0.9, 50), (0.1, 500)),
    "hyperexp-1": _phases((50, 500), (0.5, 0.5)),
    "hyperexp-2": _phases((50, 500, 5000), (0.75, 0.2, 0.05)),
    "rocksdb-90-10": _fixed((0.9, 30), (0.1, 100)),
    "rocksdb-50-50": _fixed((0.5, 30), (0.5, 100)),
    "trimodal": _fixed((1, 5), (1, 50), (1, 500)),
    "tpcc": _fixed((43, 5), (4, 6), (45, 16), (4, 62), (4, 74)),
    "pallas-bimodal-50-50": _fixed((0.5, 10), (0.5, 100)),
    "pallas-bimodal-90-10": _fixed((0.9, 10), (0.1, 100)),
    "pallas-rocksdb-50-50": _fixed((0.5, 12), (0.5, 650)),
    "pallas-rocksdb-90-10": _fixed((0.9, 12), (0.1, 650)),
}
"""Malcolm's (seed 000; RocksDB reads of 16 and 64 values) and Pallas's (seed 003), whose modes are types
that the header of a task tells. Phases of a hyperexponential are not: they are one type."""
