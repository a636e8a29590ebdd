"""Cells of studies of racks: which policy it is, what is kept of its episodes, loads over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from steelyard import native
from steelyard.agents.rules import TUNED, Member
from steelyard.envs.errors import UserError, unknown
from steelyard.envs.rack_native import parse_rule, rack_rule_names
from steelyard.envs.rack_scenario import RackScenario
from steelyard.trainers import evaluation, malcolm_policy, rack_policies, rack_tune
from steelyard.trainers.rack_tune import RackTuning
from steelyard.trainers.statistics import Array

BY_TYPE = ("tasks", "latency_mean_us", "latency_p99_us", "slowdown_p99")
"""What is kept of each type of task, as KEY_typeK, if there are several."""
_HIDDEN = ("seed", "digest", "cpu_s")
_DIGITS = 5


def metric_names() -> list[str]:
    """Metrics of an episode of a rack with one type of task, as the simulator names them."""
    tiny = RackScenario.from_toml(
        'scenario.world = "rack"\nrack.servers = [{ workers = 1 }]\n'
        'workload = { load = 0.5, service = "exp50" }\nepisode = { horizon_s = 0.01, warmup_s = 0 }\n'
    )
    (stats,) = native.simulate_rack(tiny.to_native(), tiny.to_rule("jsq"), [0])
    return [name for name in row_of(stats) if name not in _HIDDEN]


def source(base: Path, what: str, text: str, learners: Sequence[str]) -> str:
    """The rule with its parameters, the tuned rule or the path behind a policy's text. UserError if none."""
    if text.startswith(TUNED):
        rack_tune.check(text)
        return text
    for path in (base / text, Path(text)):
        if malcolm_policy.find(path) is not None:
            return str(path)
    if text.partition(":")[0] not in rack_rule_names():
        raise unknown(
            what, text, [*rack_rule_names(), *(TUNED + rule for rule in rack_tune.GRIDS), *learners]
        )
    parse_rule(text)
    return text


def inputs(text: str) -> dict[str, Any]:
    """What the numbers of a rule depend on besides the scenario."""
    if text.startswith(TUNED):
        rule = text.removeprefix(TUNED).partition(":")[0]
        grid = {key: list(values) for key, values in rack_tune.GRIDS[rule].items()}
        return {"rule": text, "grid": grid, "episodes": rack_tune.EPISODES}
    return {"rule": text}


def row_of(stats: dict[str, Any]) -> dict[str, Any]:
    """The numbers of an episode, flat."""
    row = {name: value for name, value in stats.items() if isinstance(value, int | float)}
    types = stats["by_type"] if len(stats["by_type"]) > 1 else []
    for index, each in enumerate(types):
        row |= {f"{name}_type{index}": each[name] for name in BY_TYPE}
    return row


def compute(
    scenario: RackScenario, member: Member, seeds: range, drain: bool, timeline_s: float, learning: bool
) -> dict[str, Any]:
    """Columns of a cell, what tuning found, loads over time. UserError if the policy does not fit."""
    config = scenario.to_native()
    found: dict[str, Any] = {}
    if member.source.startswith(TUNED):
        tuning: RackTuning = rack_tune.tune(scenario, member.source)
        found["tuned"] = {"policy": tuning.policy, "p99_us": tuning.p99_us, "candidates": tuning.candidates}
        member = replace(member, source=tuning.policy)
    rule = rack_policies.member_rule(scenario, member, config, learning=learning)
    if timeline_s == 0:
        convention = evaluation.UNCENSORED if drain else "peer"
        chunks = evaluation.simulate_seeds(config, rule, seeds, 1, convention)
        rows = [row_of(stats) for chunk in chunks for stats in chunk]
    else:
        rows, loads = [], []
        for seed in seeds:
            (stats,) = native.simulate_rack(config, rule, [seed], drain=drain, timeline=True)
            rows.append(row_of(stats))
            loads.append(_bins(stats["timeline"], timeline_s))
        found["timeline"] = _timeline(scenario, loads)
    if not all(row["tasks"] for row in rows):
        raise UserError(f"policy {member.name}: no task was measured in some episode; use a longer horizon")
    found["columns"] = {name: [_plain(row[name]) for row in rows] for name in rows[0]}
    return found


def groups_of(scenario: RackScenario) -> dict[str, list[int]]:
    """Servers that are alike, by a name for figures."""
    found: dict[str, list[int]] = {}
    for index, server in enumerate(scenario.servers):
        speed = "" if server.speed == 1 else f" at speed {server.speed:g}"
        found.setdefault(f"{server.workers} workers{speed}", []).append(index)
    return found


def imbalance(x: Array) -> Array:
    """I = 1 / (N - 1) sum over ordered pairs |x_j - x_k| of loads (..., N) -> (...)."""
    ranked = np.sort(x, axis=-1)
    n = x.shape[-1]
    order = 2 * np.arange(n) - (n - 1)
    return np.asarray(2 * (ranked * order).sum(axis=-1) / max(n - 1, 1))


def _bins(timeline: dict[str, Any], width_s: float) -> tuple[Array, Array, Array]:
    """(T,) starts of bins [s], (T,) imbalance and (T, N) loads in us, means over each bin."""
    t, x = np.asarray(timeline["t_s"]), np.asarray(timeline["expected_wait_us"], dtype=float)
    place = np.floor(t / width_s + 1e-9).astype(int)
    starts = np.unique(place)
    inside = [place == start for start in starts]
    wrong = imbalance(x)
    return (
        starts * width_s,
        np.array([wrong[each].mean() for each in inside]),
        np.array([x[each].mean(axis=0) for each in inside]),
    )


def _timeline(scenario: RackScenario, loads: Sequence[tuple[Array, Array, Array]]) -> dict[str, Any]:
    """Means over seeds: imbalance, load of each group of servers, and of the most loaded server."""
    t = loads[0][0]
    x = np.mean([each[2] for each in loads], axis=0)
    return {
        "t_s": _rounded(t),
        "imbalance_us": _rounded(np.mean([each[1] for each in loads], axis=0)),
        "load_us": {name: _rounded(x[:, group].mean(axis=1)) for name, group in groups_of(scenario).items()},
        "first_seed_us": {
            name: _rounded(loads[0][2][:, group].mean(axis=1)) for name, group in groups_of(scenario).items()
        },
    }


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]


def _plain(value: Any) -> Any:
    """As JSON holds it: digests as words, since they pass 2^53."""
    return f"{value:016x}" if isinstance(value, int) and value >= 2**53 else value
