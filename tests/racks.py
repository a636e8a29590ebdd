"""Small racks for the tests: unless told otherwise no delay, and loads known exactly."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from worlds import deterministic, exponential, poisson

from steelyard import native

US = 1e-6


def exp_type(mean_us: float, ratio: float = 1.0) -> native.RackType:
    return native.RackType(exponential(mean_us * US), ratio)


def fixed_type(value_us: float, ratio: float = 1.0) -> native.RackType:
    return native.RackType(deterministic(value_us * US), ratio)


# The workloads of seed 000 Sec. 7.1.2, every part a type of its own.
WORKLOADS = {
    "exp50": [exp_type(50)],
    "bimodal": [fixed_type(50, 0.9), fixed_type(500, 0.1)],
    "h1": [exp_type(50, 0.5), exp_type(500, 0.5)],
    "h2": [exp_type(50, 0.75), exp_type(500, 0.2), exp_type(5000, 0.05)],
}


def rack(
    workers: Sequence[int],
    types: Sequence[native.RackType],
    load: float,
    tasks: float,
    **fields: Any,
) -> native.RackConfig:
    """Servers of so many workers at this part of capacity; about `tasks` measured after a tenth of them.

    `fields` are attributes of RackConfig; `speeds` those of the servers.
    """
    config = native.RackConfig()
    speeds = fields.pop("speeds", [1.0] * len(workers))
    config.servers = [native.RackServer(c, v) for c, v in zip(workers, speeds, strict=True)]
    config.types = list(types)
    rate = load * sum(c * v for c, v in zip(workers, speeds, strict=True)) / config.mean_service_s()
    config.arrival = poisson(rate)
    config.warmup_s = 0.1 * tasks / rate
    config.horizon_s = 1.1 * tasks / rate
    config.load_info = "exact"
    config.broadcast_period_s = max(100e-6, config.horizon_s / 1e5)
    for name, value in fields.items():
        setattr(config, name, value)
    return config


def runs(
    config: native.RackConfig, rule: native.RackRule | str, seeds: Sequence[int] = range(8)
) -> list[dict[str, Any]]:
    made = native.RackRule(rule) if isinstance(rule, str) else rule
    return native.simulate_rack(config, made, list(seeds))


def column(records: Sequence[dict[str, Any]], key: str = "latency_mean_us") -> np.ndarray:
    """(R,) one statistic of each episode."""
    return np.array([record[key] for record in records], float)


def by_type(records: Sequence[dict[str, Any]], type_: int, key: str = "latency_mean_us") -> np.ndarray:
    """(R,) one statistic of one type of tasks in each episode."""
    return np.array([record["by_type"][type_][key] for record in records], float)
