"""What figures of a report need beyond rows: sojourns flow by flow, timelines, and a sweep of the load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steelyard import native
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers import statistics as st
from steelyard.trainers.evaluation import Cell, OnProgress, Study, silent

LOADS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
"""Offered load of the busiest device in the sweep."""
_MAX_SEEDS = 20
_MAX_SAMPLES = 40_000  # flows drawn in a CDF; more would only make the PNG slower
_DETAIL_SEEDS = 8


@dataclass(frozen=True)
class ScenarioDetail:
    """Data of the figures of one scenario, by contender (its first training run)."""

    scenario: str
    sojourns_s: dict[str, st.Array] = field(default_factory=dict)
    weights: dict[str, tuple[st.Array, st.Array]] = field(default_factory=dict)
    """t_s (T,) and weights (T, M, N) of the first seed, for policies whose weights move."""
    imbalance: dict[str, tuple[st.Array, st.Array]] = field(default_factory=dict)
    loads: st.Array = field(default_factory=lambda: np.empty(0))
    tails_s: dict[str, tuple[st.Array, st.Array, st.Array]] = field(default_factory=dict)
    """p99 of sojourn [s] at each load, with its interval."""


def scenario_detail(
    study: Study, cells: Sequence[Cell], loads: Sequence[float] = LOADS, on_progress: OnProgress = silent
) -> ScenarioDetail:
    """Figures' data of one scenario; cells are its contenders, each by its first run."""
    scenario = cells[0].scenario
    detail = ScenarioDetail(scenario.name, loads=np.array(loads))
    capacity = np.array([server.workers * server.speed for server in scenario.servers])
    total = len(cells) * (1 + len(loads))
    for index, cell in enumerate(cells):
        on_progress(index, total, f"{scenario.name} {cell.member}: timelines")
        seeds = list(study.seeds[:_DETAIL_SEEDS])
        stats = native.simulate(
            cell.config, cell.rule, seeds, threads=study.threads, convention=study.convention, details=True
        )
        sojourns = np.concatenate([s["sojourn_s"] for s in stats])
        if sojourns.size:
            detail.sojourns_s[cell.contender] = _thinned(sojourns)
        detail.imbalance[cell.contender] = _imbalance([s["timeline"] for s in stats], capacity)
        line = stats[0]["timeline"]
        weights = np.asarray(line["weights"], float)
        if weights.size and not np.all(weights == weights[:1]):
            detail.weights[cell.contender] = (np.asarray(line["t_s"], float), weights)
    configs = [at_load(scenario, load).to_native() for load in loads]
    for index, cell in enumerate(cells):
        on_progress(len(cells) + index * len(loads), total, f"{scenario.name} {cell.member}: loads")
        detail.tails_s[cell.contender] = _tails(study, cell.rule, configs)
    return detail


def check_loads(loads: Sequence[float]) -> Sequence[float]:
    """loads, each above 0; UserError otherwise."""
    for load in loads:
        if not 0 < load < math.inf:
            raise UserError(f"--load: {load}; each must be a number above 0")
    return loads


def at_load(scenario: Scenario, load: float) -> Scenario:
    """The scenario with arrivals scaled so that its busiest device is offered `load` at the start."""
    now = scenario.offered_load()
    factor = load / max(now.cpu, now.io)
    arrival = scenario.workload.arrival
    if arrival.kind == "trace":
        change = f"workload.arrival.time_scale={(arrival.time_scale or 1.0) / factor!r}"
    elif arrival.rates is not None:
        change = f"workload.arrival.rates={[rate * factor for rate in arrival.rates]!r}"
    else:
        change = f"workload.arrival.rate={(arrival.rate or 0.0) * factor!r}"
    return scenario.with_overrides([change])


def _tails(
    study: Study, rule: native.RuleConfig, configs: Sequence[native.ClusterConfig]
) -> tuple[st.Array, st.Array, st.Array]:
    """Interquartile mean of p99 [s] at each load with its interval: (L,) each."""
    estimates = []
    for config in configs:
        stats = native.simulate(
            config, rule, list(study.seeds[:_MAX_SEEDS]), threads=study.threads, convention=study.convention
        )
        scores = np.array([[stat["sojourn_p99_s"] for stat in stats]])
        estimates.append(st.bootstrap(st.iqm, [scores], replicates=500))
    value, low, high = np.array([(e.value, e.low, e.high) for e in estimates]).T
    return value, low, high


def _imbalance(timelines: Sequence[dict[str, Any]], capacity: st.Array) -> tuple[st.Array, st.Array]:
    """t_s (T,) and, averaged over seeds, fullest minus mean of in_system / capacity (T,)."""
    steps = min(len(line["t_s"]) for line in timelines)
    filled = [np.asarray(line["in_system"], float)[:steps] / capacity for line in timelines]
    gaps = [per_server.max(axis=1) - per_server.mean(axis=1) for per_server in filled]
    return np.asarray(timelines[0]["t_s"], float)[:steps], np.mean(gaps, axis=0)


def _thinned(values: st.Array) -> st.Array:
    """At most _MAX_SAMPLES order statistics, evenly spaced in rank, extremes kept."""
    ordered = np.sort(values.astype(float))
    if ordered.size <= _MAX_SAMPLES:
        return ordered
    return ordered[np.linspace(0, ordered.size - 1, _MAX_SAMPLES).round().astype(int)]
