"""Tuned baselines: static weights of a rule found by search on training seeds.

Servers of the same hardware share one weight, and only ratios of weights matter, so the search runs over the
log2 ratio of every group to the first one: coordinate descent, each line search a scan followed by a golden
section. Every candidate is judged on the same training episodes (common random numbers).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from steelyard import native
from steelyard.agents import rules
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario, ServerGroup
from steelyard.trainers import statistics

Objective = Callable[[tuple[float, ...]], float]
OnEvaluation = Callable[[int, str], None]
"""Called with (candidates judged so far, what is searched)."""

_EPISODES = (16, 200)
_FLOWS = 300_000  # with common random numbers, enough to tell weights apart that differ by a few percent
_MAX_EPISODES = 100_000
_SCANS = ((2.0, 0.5), (0.5, 0.25), (0.25, 0.125))  # (reach, spacing) in log2 of the scan, pass by pass
_TOLERANCE = 0.02  # log2: 1.4 % of a weight, far below what moves a sojourn measurably
_GOLDEN = (math.sqrt(5) - 1) / 2
_IRRELEVANT = ("scenario", "rule", "reward", "observation")


@dataclass(frozen=True)
class Tuning:
    """Weights found, and how; `configured` are workers x speed, from which the search starts."""

    scenario: str
    rule: str
    convention: str
    digest: str
    weights: list[float]
    configured: list[float]
    groups: list[list[int]]
    run_seed: int
    episodes: int
    candidates: int
    configured_sojourn_s: float
    tuned_sojourn_s: float
    difference_s: dict[str, float]
    """Paired, tuned minus configured, on the training episodes: value, low, high."""

    def to_dict(self) -> dict[str, Any]:
        """As stored."""
        return asdict(self)


def scenario_digest(scenario: Scenario) -> str:
    """SHA-256 over everything in a scenario that the best static weights depend on."""
    tree = {key: value for key, value in scenario.to_dict().items() if key not in _IRRELEVANT}
    trace = scenario.workload.arrival.load_trace()
    if trace is not None:  # the recording itself, not only its name
        tree["trace"] = [trace.mean_rate, trace.mean_service_s]
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def weight_groups(scenario: Scenario) -> list[list[int]]:
    """Servers of the same hardware: nobody knows beforehand which of them an event will hit."""
    groups: dict[ServerGroup, list[int]] = {}
    for index, server in enumerate(scenario.servers):
        groups.setdefault(replace(server, count=1), []).append(index)
    return list(groups.values())


def default_episodes(scenario: Scenario) -> int:
    """Episodes that hold about _FLOWS flows, within _EPISODES."""
    arrival = scenario.workload.arrival
    flows = arrival.mean_rate(arrival.load_trace()) * scenario.episode.horizon_s
    least, most = _EPISODES
    return min(most, max(least, math.ceil(_FLOWS / flows)))


def tune(
    scenario: Scenario,
    rule: str = "sed",
    *,
    convention: str = "uncensored",
    episodes: int | None = None,
    run_seed: int = 0,
    threads: int = 1,
    on_evaluation: OnEvaluation = lambda count, what: None,
) -> Tuning:
    """Search the weights of a rule that minimise the mean sojourn over training episodes.

    The result is never worse than the configured weights on those episodes. UserError if the rule has no
    weights to tune.
    """
    if rule not in rules.TUNABLE:
        raise UserError(f"--rule: {rule!r} has no weights to tune; allowed: {', '.join(rules.TUNABLE)}")
    episodes = default_episodes(scenario) if episodes is None else episodes
    judge = _Judge(scenario, rule, convention, episodes, run_seed, threads, on_evaluation)
    start = (0.0,) * (len(judge.groups) - 1)
    best = coordinate_search(judge.mean, len(start))
    before, after = judge.sojourns(start), judge.sojourns(best)
    gap = statistics.bootstrap(statistics.difference, [after[None, :]], [before[None, :]])
    return Tuning(
        scenario=scenario.name,
        rule=rule,
        convention=convention,
        digest=scenario_digest(scenario),
        weights=judge.weights(best),
        configured=judge.weights(start),
        groups=judge.groups,
        run_seed=run_seed,
        episodes=episodes,
        candidates=len(judge.judged),
        configured_sojourn_s=float(before.mean()),
        tuned_sojourn_s=float(after.mean()),
        difference_s=asdict(gap),
    )


def tuned_weights(
    scenario: Scenario,
    rule: str,
    convention: str,
    threads: int,
    on_evaluation: OnEvaluation = lambda count, what: None,
) -> list[float]:
    """Tuned weights as stored for exactly this scenario, else searched now with the defaults of `tune`."""
    digest = scenario_digest(scenario)
    stored = rules.stored_weights(scenario.name, rule, digest, convention, rules.tuned_directories())
    if stored is not None:
        return stored
    if (digest, rule, convention) not in _searched:
        found = tune(scenario, rule, convention=convention, threads=threads, on_evaluation=on_evaluation)
        _searched[digest, rule, convention] = found.weights
    return _searched[digest, rule, convention]


_searched: dict[tuple[str, str, str], list[float]] = {}
"""Weights found by this process; a search has one result, so this only saves time."""


def coordinate_search(objective: Objective, dimensions: int) -> tuple[float, ...]:
    """Minimise objective over log2 ratios from the origin; the best point that was judged."""
    best = (0.0,) * dimensions
    for reach, spacing in _SCANS:
        before = best
        for axis in range(dimensions):
            best = _line_search(objective, best, axis, reach, spacing)
        if dimensions == 0 or (best == before and reach != _SCANS[0][0]):
            break
    return best


def _line_search(
    objective: Objective, point: tuple[float, ...], axis: int, reach: float, spacing: float
) -> tuple[float, ...]:
    """Scan point[axis] +- reach, then a golden section around the best of the scan."""

    def at(value: float) -> tuple[float, ...]:
        return (*point[:axis], value, *point[axis + 1 :])

    steps = round(reach / spacing)
    judged = {point[axis] + k * spacing: 0.0 for k in range(-steps, steps + 1)}
    for value in judged:
        judged[value] = objective(at(value))
    centre = min(judged, key=judged.__getitem__)
    low, high = centre - spacing, centre + spacing
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    judged[left], judged[right] = objective(at(left)), objective(at(right))
    while high - low > _TOLERANCE:
        if judged[left] <= judged[right]:
            high, right, left = right, left, right - _GOLDEN * (right - low)
            judged[left] = objective(at(left))
        else:
            low, left, right = left, right, left + _GOLDEN * (high - left)
            judged[right] = objective(at(right))
    return at(min(judged, key=lambda value: (judged[value], abs(value - point[axis]))))


class _Judge:
    """Judges log2 ratios of group weights by the mean sojourn over fixed training episodes."""

    def __init__(
        self,
        scenario: Scenario,
        rule: str,
        convention: str,
        episodes: int,
        run_seed: int,
        threads: int,
        on_evaluation: OnEvaluation,
    ) -> None:
        if not 2 <= episodes <= _MAX_EPISODES:
            raise UserError(f"--episodes: {episodes}; allowed: 2 to {_MAX_EPISODES:,}")
        if not 0 <= run_seed < 2**64:
            raise UserError(f"--seed: {run_seed}; allowed: 0 to 2^64 - 1")
        self.config = scenario.to_native()
        self.config.features = False  # static weights look at no reservoir
        self.rule = scenario.to_rule(rule)
        self.seeds = [native.train_seed(run_seed, episode) for episode in range(episodes)]
        self.convention, self.threads = convention, threads
        self.groups = weight_groups(scenario)
        self.configured = np.array([server.workers * server.speed for server in scenario.servers])
        self.judged: dict[tuple[float, ...], float] = {}
        self.on_evaluation, self.what = on_evaluation, f"{scenario.name} {rules.TUNED}{rule}"

    def weights(self, ratios: Sequence[float]) -> list[float]:
        """Weight of each server: configured x 2^ratio of its group; the first group keeps its weights."""
        weights = self.configured.copy()
        for group, ratio in zip(self.groups[1:], ratios, strict=True):
            weights[group] *= 2.0**ratio
        return [float(weight) for weight in weights]

    def sojourns(self, ratios: Sequence[float]) -> statistics.Array:
        """(episodes,) mean sojourn of each episode [s]."""
        self.rule.weights = self.weights(ratios)
        stats = native.simulate(
            self.config, self.rule, self.seeds, threads=self.threads, convention=self.convention
        )
        sojourns = np.array([stat["sojourn_mean_s"] for stat in stats])
        if not np.isfinite(sojourns).all():
            raise UserError("tuned weights: no flow was measured in some episode; use a longer horizon")
        return sojourns

    def mean(self, ratios: tuple[float, ...]) -> float:
        """Mean sojourn over the episodes [s]; each candidate is simulated once."""
        if ratios not in self.judged:
            self.judged[ratios] = float(self.sojourns(ratios).mean())
            self.on_evaluation(len(self.judged), self.what)
        return self.judged[ratios]
