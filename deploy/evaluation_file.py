"""Evaluation records beside a run: the file of `steelyard evaluate --json`, summed up."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.envs.errors import UserError

EVALUATION_FILE = "evaluation.json"
_RESAMPLES = 4000

Record = dict[str, Any]


@dataclass(frozen=True)
class Metrics:
    """What is told of an episode, by the keys of its record."""

    mean: str
    tail: str
    compared: str
    """One of the two, in which policies are compared."""
    count: str
    what: str
    """What the first two are of."""
    unit: str
    form: str
    """How a number of them is written."""


CLUSTER = Metrics("sojourn_mean_s", "sojourn_p99_s", "sojourn_mean_s", "rejected", "sojourn", "s", ".4f")
RACK = Metrics("latency_mean_us", "latency_p99_us", "latency_p99_us", "migrations", "latency", "us", ".1f")


@dataclass(frozen=True)
class Estimate:
    """A mean over episodes with its 95 % percentile-bootstrap interval (Efron, Tibshirani 1993, ch. 13)."""

    mean: float
    low: float
    high: float

    def shown(self, form: str) -> str:
        """With its interval, every number written by `form`."""
        return f"{self.mean:{form}} [{self.low:{form}}, {self.high:{form}}]"


@dataclass(frozen=True)
class Summary:
    """One policy on one scenario."""

    scenario: str
    policy: str
    episodes: int
    seeds: str
    mean: Estimate
    tail: Estimate
    count: int


@dataclass(frozen=True)
class Gap:
    """How much longer a policy takes than a rival, over the episodes that both ran."""

    scenario: str
    policy: str
    rival: str
    difference: Estimate


def read_records(path: Path, metrics: Metrics) -> list[Record]:
    """The records of an evaluation file; none if there is no such file. UserError if it is damaged."""
    if not path.is_file():
        return []
    keys = (metrics.mean, metrics.tail)
    try:
        records = json.loads(path.read_text("utf-8"))
        for record in records:
            str(record["scenario"]), str(record["policy"]), int(record["seed"]), int(record[metrics.count])
            [_number(record[key]) for key in keys]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not a file of `steelyard evaluate --json` ({type(error).__name__}: {error}); "
            "evaluate again"
        ) from error
    return [{**record, **{key: _number(record[key]) for key in keys}} for record in records]


def summarise(records: Sequence[Record], metrics: Metrics) -> list[Summary]:
    """One line per scenario and policy, in the order of the records."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record["scenario"], record["policy"]].append(record)
    return [_summary(scenario, policy, rows, metrics) for (scenario, policy), rows in groups.items()]


def gaps(records: Sequence[Record], policy: str, metrics: Metrics) -> list[Gap]:
    """`policy` against every other policy, paired by seed, wherever they share a scenario and two seeds."""
    values: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for record in records:
        values[record["scenario"], record["policy"]][record["seed"]] = record[metrics.compared]
    found = []
    for (scenario, rival), other in values.items():
        own = values.get((scenario, policy), {})
        shared = sorted(own.keys() & other.keys())
        if rival != policy and len(shared) > 1:
            differences = np.array([own[seed] - other[seed] for seed in shared])
            found.append(Gap(scenario, policy, rival, estimate(differences)))
    return found


def estimate(values: NDArray[np.float64]) -> Estimate:
    """Mean of (n,) values and its interval; the draws depend on nothing but n."""
    draw = np.random.default_rng(0).integers(0, values.size, (_RESAMPLES, values.size))
    low, high = np.quantile(values[draw].mean(axis=1), (0.025, 0.975))
    return Estimate(float(values.mean()), float(low), float(high))


def _number(value: float | None) -> float:
    """A metric of a record; null, which stands for the mean of no flow at all, is NaN."""
    return math.nan if value is None else float(value)


def _summary(scenario: str, policy: str, rows: list[Record], metrics: Metrics) -> Summary:
    seeds = sorted(row["seed"] for row in rows)
    return Summary(
        scenario,
        policy,
        len(rows),
        f"{seeds[0]}..{seeds[-1]}",
        estimate(np.array([row[metrics.mean] for row in rows], np.float64)),
        estimate(np.array([row[metrics.tail] for row in rows], np.float64)),
        sum(row[metrics.count] for row in rows),
    )
