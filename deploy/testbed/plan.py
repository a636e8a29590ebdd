"""What an open-loop client will ask, and when: drawn in full before the first request is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

PHP_CLASS = "php"

STATIC_FILES = {
    "static-100k": (100_000, 0.30),
    "static-200k": (200_000, 0.225),
    "static-500k": (500_000, 0.175),
    "static-750k": (750_000, 0.125),
    "static-1m": (1_000_000, 0.10),
    "static-2m": (2_000_000, 0.05),
    "static-5m": (5_000_000, 0.025),
}
"""Size [bytes] and share among static requests of each file.

The sizes are those of Yao, "Autonomous Service Management in the Cloud" (2023), Sec. 3.2.3.
"""

CLASS_NAMES = (PHP_CLASS, *STATIC_FILES)
MAX_ITERATIONS = 100_000_000
"""The PHP page refuses more, so that no request can hold a worker for minutes."""


@dataclass(frozen=True)
class Workload:
    """Parameters of a recording."""

    requests: int
    rate: float
    """Mean arrival rate [1/s]."""
    php_share: float
    """Share of requests to the PHP page; the rest asks for static files."""
    php_mean_s: float
    """Mean CPU time of the loop in the PHP page [s]."""
    swell: float
    """Relative amplitude a of the rate(t) = rate (1 + a sin(2 pi t / swell_period_s)); 0: Poisson."""
    swell_period_s: float
    seed: int


@dataclass(frozen=True)
class Plan:
    """Arrays of shape (n,), in the order of arrival."""

    arrival_us: np.ndarray
    """Scheduled arrival, int64 [us]; the first is 0."""
    class_id: np.ndarray
    """Index into CLASS_NAMES, int64."""
    iterations: np.ndarray
    """Work parameter of the PHP page, int64; 0 for static files."""

    def path(self, index: int) -> str:
        """What request `index` asks for."""
        name = CLASS_NAMES[self.class_id[index]]
        return f"/loop.php?n={self.iterations[index]}" if name == PHP_CLASS else f"/{name}.bin"


def draw_plan(workload: Workload, iterations_per_s: float) -> Plan:
    """Draw arrivals, classes and demands from the workload's seed; each from a stream of its own.

    iterations_per_s: speed of the PHP loop on this machine, so that php_mean_s means the same everywhere.
    """
    import numpy as np

    arrival_stream, class_stream, demand_stream = np.random.default_rng(workload.seed).spawn(3)
    arrival_us = _arrivals_us(workload, arrival_stream)
    shares = [workload.php_share, *((1 - workload.php_share) * share for _, share in STATIC_FILES.values())]
    class_id = class_stream.choice(len(CLASS_NAMES), size=workload.requests, p=shares)
    mean_iterations = workload.php_mean_s * iterations_per_s
    iterations = np.rint(demand_stream.exponential(mean_iterations, size=workload.requests)).astype(np.int64)
    iterations = np.where(class_id == 0, np.clip(iterations, 1, MAX_ITERATIONS), 0)
    return Plan(arrival_us, class_id, iterations)


def _arrivals_us(workload: Workload, stream: np.random.Generator) -> np.ndarray:
    """Arrival times of an inhomogeneous Poisson process by thinning, shifted so that the first is 0.

    Source: Lewis and Shedler (1979), "Simulation of nonhomogeneous Poisson processes by thinning".
    """
    import numpy as np

    peak_rate = workload.rate * (1 + workload.swell)
    kept = np.empty(0)
    time_s = 0.0
    while len(kept) < workload.requests:
        candidate_s = time_s + np.cumsum(stream.exponential(1 / peak_rate, size=workload.requests))
        time_s = candidate_s[-1]
        phase = 2 * np.pi * candidate_s / workload.swell_period_s
        rate = workload.rate * (1 + workload.swell * np.sin(phase))
        kept = np.concatenate([kept, candidate_s[stream.random(workload.requests) * peak_rate < rate]])
    kept = kept[: workload.requests]
    return np.rint((kept - kept[0]) * 1e6).astype(np.int64)
