"""Small cluster worlds for the tests, and the comparison of a simulated mean with a known one.

Unless told otherwise a world has no latency, no admission limit and no reservoirs, so that it is the
textbook queue that a test names.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from reference import STREAM_ARRIVAL_STATE, below, draw, stream_key

from steelyard import native

STANDARD_ERRORS = 4.0  # the only tolerance of a test against theory


def distribution(kind: str, a: Sequence[float], b: Sequence[float] = ()) -> native.Distribution:
    """A checked distribution; `a`, `b` as in native/sim/distribution.h."""
    made = native.Distribution()
    made.kind, made.a, made.b = kind, list(a), list(b)
    made.prepare(kind)
    return made


def exponential(mean_s: float = 1.0) -> native.Distribution:
    return distribution("exponential", [mean_s])


def deterministic(value_s: float = 1.0) -> native.Distribution:
    return distribution("deterministic", [value_s])


def hyperexponential(means_s: Sequence[float], probabilities: Sequence[float]) -> native.Distribution:
    return distribution("hyperexponential", means_s, probabilities)


def lognormal(mean_s: float, sigma: float) -> native.Distribution:
    return distribution("lognormal", [mean_s, sigma])


def stage(kind: str, demand: native.Distribution) -> native.StageConfig:
    made = native.StageConfig()
    made.kind, made.demand = kind, demand
    return made


def server(workers: int = 1, speed: float = 1.0, cpu: str = "fifo", ps_cap: int = 0) -> native.ServerConfig:
    made = native.ServerConfig()
    made.workers, made.speed, made.cpu, made.ps_cap = workers, speed, cpu, ps_cap
    return made


def event(kind: str, t_s: float, **fields: Any) -> native.EventConfig:
    """A timetable line at a fixed time; `value` sets both ends of the value's range."""
    made = native.EventConfig()
    made.kind, made.t_low_s, made.t_high_s = kind, t_s, t_s
    if "value" in fields:
        made.value_low = made.value_high = fields.pop("value")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def poisson(rate: float) -> native.ArrivalConfig:
    made = native.ArrivalConfig()
    made.kind, made.rate = "poisson", rate
    return made


def cluster(
    servers: Sequence[native.ServerConfig],
    rate: float = 0.0,
    stages: Sequence[native.StageConfig] | None = None,
    **fields: Any,
) -> native.ClusterConfig:
    """A cluster world; `fields` are attributes of ClusterConfig. `step_s` is a hundredth of the horizon."""
    config = native.ClusterConfig()
    config.servers = list(servers)
    config.stages = list(stages) if stages else [stage("cpu", exponential())]
    config.arrival = poisson(rate)
    config.admission_limit = 60_000
    config.features = False
    for name, value in fields.items():
        setattr(config, name, value)
    if "step_s" not in fields:
        config.step_s = config.horizon_s / 100
    return config


def rule(name: str, weights: Sequence[float] = (), **fields: Any) -> native.RuleConfig:
    made = native.RuleConfig(name)
    made.weights = list(weights)
    for key, value in fields.items():
        setattr(made, key, value)
    return made


def trace(
    arrival_s: Sequence[float], service_s: Sequence[float], class_id: Sequence[int] = ()
) -> native.Trace:
    """A trace of hand-written requests; without class_id all are of class 0."""
    rows = len(arrival_s)
    classes = np.array(class_id if class_id else [0] * rows, np.uint16)
    names = [f"class-{k}" for k in range(int(classes.max()) + 1)]
    return native.Trace(
        np.array(arrival_s, float), classes, np.array(service_s, float), np.zeros(rows, np.uint64), names
    )


def script(
    servers: Sequence[native.ServerConfig],
    arrival_s: Sequence[float],
    service_s: Sequence[float],
    kind: str = "cpu",
    **fields: Any,
) -> native.ClusterConfig:
    """A world with these flows and no other before a million seconds have passed; see `script_seed`.

    arrival_s starts at 0. A last flow, far off, keeps the circular replay from beginning again.
    """
    config = cluster(servers, stages=[stage(kind, distribution("trace", [1.0]))], **fields)
    arrival = native.ArrivalConfig()
    arrival.kind = "trace"
    config.arrival = arrival
    config.trace = trace([*arrival_s, 1e6], [*service_s, 1e-3])
    return config


def script_seed(config: native.ClusterConfig, nth: int = 0) -> int:
    """The nth seed for which the replay of a script starts at its first row (the row is drawn per seed)."""
    rows = len(config.trace)
    starts = (seed for seed in itertools.count() if first_row(seed, rows) == 0)
    return next(itertools.islice(starts, nth, None))


def first_row(seed: int, rows: int) -> int:
    """The row at which a replayed trace starts."""
    return below(draw(stream_key(seed, STREAM_ARRIVAL_STATE), 0), rows)


def replications(
    config: native.ClusterConfig, by: native.RuleConfig, seeds: Sequence[int], key: str = "sojourn_mean_s"
) -> np.ndarray:
    """(R,) one statistic of each of R independent episodes."""
    return np.array([episode[key] for episode in native.simulate(config, by, list(seeds))], float)


def standard_error(samples: np.ndarray) -> float:
    return float(np.std(samples, ddof=1) / math.sqrt(len(samples)))


def assert_mean(samples: np.ndarray, expected: float, precision: float = 0.02) -> None:
    """The mean of independent samples lies within four standard errors of `expected`.

    `precision` bounds the standard error relative to the expected value: a test that could not see an error
    of a few per cent would prove nothing.
    """
    mean, error = float(np.mean(samples)), standard_error(np.asarray(samples))
    assert error <= precision * abs(expected), f"too few samples: {mean} +- {error}"
    assert abs(mean - expected) < STANDARD_ERRORS * error, f"{mean} +- {error}, theory says {expected}"
