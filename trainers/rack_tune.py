"""Tuned rules of racks: the parameters that a rule leaves open, by coordinate search on training seeds.

`tuned-RULE:KEY=VALUE,...` keeps the keys that it names and searches the others that the rule has: threshold
of jbt, d of power_of_d, weights of sed, and for each of them increments, keep and whom idle servers ask for
work. Every candidate is judged by p99 of latency on the same training episodes (common random numbers),
whose seeds no evaluation uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard import native
from steelyard.agents.rules import TUNED
from steelyard.envs.errors import UserError, unknown
from steelyard.envs.rack_native import parse_rule, rack_rule
from steelyard.envs.rack_scenario import RackScenario

TAIL = "latency_p99_us"
EPISODES = 2
_STEALS = {"steal": ("random", "longest", "none")}
_SENDERS = {"increments": ("true", "false"), "keep": ("true", "false"), **_STEALS}
_WEIGHTS = "weights"
GRIDS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "local": _STEALS,
    "jsq": _SENDERS,
    "sed": {_WEIGHTS: ("1.0", "0.8", "0.9", "1.1", "1.2", "1.4"), **_SENDERS},
    "jbt": {"threshold": ("10", "6", "8", "14", "20", "28", "38"), **_SENDERS},
    "power_of_d": {"d": ("2", "3", "4", "6", "8"), **_SENDERS},
}
"""Values that are tried, the first one at the start. Of weights it is the exponent e of (workers x speed)^e:
above 1 fast servers get more than their share."""
_RUN_SEED = 0x5ACC_0F5E_D000  # of the training episodes
_PASSES = 2

Objective = Callable[[str], float]


@dataclass(frozen=True)
class RackTuning:
    """What a search has found."""

    policy: str
    """RULE:KEY=VALUE,... as --policy takes it."""
    p99_us: float
    """Mean over the training episodes."""
    candidates: int


def check(text: str) -> None:
    """UserError unless `text` is tuned-RULE or tuned-RULE:KEY=VALUE,... of a rule that can be tuned."""
    name = text.removeprefix(TUNED).partition(":")[0]
    if name not in GRIDS:
        raise unknown("policy", text, [TUNED + rule for rule in GRIDS])
    parse_rule(text.removeprefix(TUNED))


def tune(scenario: RackScenario, text: str, episodes: int = EPISODES) -> RackTuning:
    """Search what `tuned-RULE:...` leaves open. UserError if it is no rule that can be tuned."""
    check(text)
    rule, _, given = text.removeprefix(TUNED).partition(":")
    fixed = {part.partition("=")[0].strip() for part in given.split(",") if given}
    grid = {key: values for key, values in GRIDS[rule].items() if key not in fixed}
    if scenario.rack.dispatchers:  # servers that are no deciders keep nothing
        grid.pop("keep", None)
    capacity = np.array([server.workers * server.speed for server in scenario.servers], dtype=float)
    if np.ptp(capacity) == 0:
        grid.pop(_WEIGHTS, None)
    config = scenario.to_native()
    seeds = [native.train_seed(_RUN_SEED, episode) for episode in range(episodes)]

    def name_of(point: Mapping[str, str]) -> str:
        parts = [given] if given else []
        for key, value in point.items():
            if key == _WEIGHTS:
                if value == "1.0":  # the rule's own
                    continue
                scaled = capacity ** float(value)
                value = "[" + ", ".join(f"{weight:.4g}" for weight in scaled) + "]"
            parts.append(f"{key}={value}")
        return f"{rule}:{','.join(parts)}" if parts else rule

    def judge(policy: str) -> float:
        made = rack_rule(scenario, policy)
        try:
            made.check(config)
        except ValueError:  # such as d above the number of servers
            return np.inf
        stats = native.simulate_rack(config, made, seeds)
        tails = [stat[TAIL] if stat["tasks"] else np.inf for stat in stats]
        return float(np.mean(tails))

    best, tail, count = _search(grid, name_of, judge)
    if not np.isfinite(tail):
        raise UserError(f"policy {text}: no task was measured while tuning; use a longer horizon")
    return RackTuning(best, tail, count)


def _search(
    grid: Mapping[str, Sequence[str]], name_of: Callable[[Mapping[str, str]], str], judge: Objective
) -> tuple[str, float, int]:
    """Coordinate descent over the grid: the best policy, its tail, and how many were judged."""
    judged: dict[str, float] = {}

    def at(point: Mapping[str, Any]) -> float:
        policy = name_of(point)
        if policy not in judged:
            judged[policy] = judge(policy)
        return judged[policy]

    point = {key: values[0] for key, values in grid.items()}
    at(point)
    for _ in range(_PASSES):
        before = dict(point)
        for key, values in grid.items():
            point[key] = min(values, key=lambda value, key=key: at({**point, key: value}))  # type: ignore[misc]
        if point == before:
            break
    return name_of(point), at(point), len(judged)
