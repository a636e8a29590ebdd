"""Does Malcolm learn to be as good as the best rule? Racks at load .9, fresh and stale loads, shifts.

    python -m steelyard.benchmarks.malcolm_learning --out results.json

Every learner learns at load .9 without the shift, or with the speeds that nobody is told, then plays frozen.
Evaluation is on episodes that no learner saw, the same tasks for all. Of the rules the best *on the
evaluation itself* is shown, so that they are tuned no worse than possible.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import native
from steelyard.envs.rack_scenario import RackScenario
from steelyard.trainers.consensus_ac import Malcolm, MalcolmTrainer

TASKS_US = 4.0
LOAD = 0.9
EVALUATION = range(601000, 601010)
STUDENT = (np.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles by degrees of freedom."""
WAITING = ('loads.measure="waiting"',)
EQUAL = tuple(
    [(f"jbt:threshold={k},increments=true,keep=true,steal=random", WAITING) for k in (1, 2)]
    + [
        (f"jbt:threshold={k},increments=true,keep=true,steal={s}", ())
        for k in (10, 11)
        for s in ("random", "longest")
    ]
    + [("jsq:increments=true,keep=true,steal=random", WAITING), ("local:steal=random", ())]
)
KNOWING = (
    ("sed:increments=true,keep=true,steal=random", WAITING),
    ("sed:increments=true,keep=true,steal=random", ()),
)
ESTIMATING = tuple(
    (
        "sed:increments=true,keep=true,estimated_rates=true,steal=random",
        (*measure, f"loads.rate_ewma={weight}"),
    )
    for measure in (WAITING, ())
    for weight in (0.05, 0.005, 0.001)
)
NOT_ASKING = (*EQUAL[:2], EQUAL[6])
"""Rules that divide by no capacity."""


@dataclass(frozen=True)
class Setting:
    """A rack to be played; `shift` is left out while learning unless `hidden`."""

    name: str
    scenario: str
    period_s: float
    load: float = LOAD
    shift: tuple[str, ...] = ()
    hidden: bool = False
    rules: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]] = field(default_factory=dict)

    def rack(self, extra: Sequence[str] = (), *, learning: bool = False) -> RackScenario:
        """The scenario, with its shift unless learners are not to see it."""
        base = [
            f"workload.load={LOAD if learning else self.load}",
            f"loads.broadcast_period_s={self.period_s}",
            "episode.horizon_s=0.3",
            "episode.warmup_s=0.1",
            f"network.task_delay.constant_s={TASKS_US * 1e-6}",
            f"network.steal_delay.constant_s={TASKS_US * 1e-6}",
        ]
        shift = self.shift if self.hidden or not learning else ()
        return RackScenario.load(self.scenario, [*base, *shift, *extra])


def _speeds(t_s: float, *groups: tuple[float, list[int]]) -> tuple[str, ...]:
    events = [f'{{ kind = "speed", t_s = {t_s}, value = {v}, targets = {to} }}' for v, to in groups]
    return (f"events=[{', '.join(events)}]",)


def settings() -> list[Setting]:
    """The four racks of the table, then capacities that are unknown or shift."""
    hom, het = "rack-hom-8x8", "rack-het-2x14-9x4"
    every = {"no capacity": NOT_ASKING, "told capacities": KNOWING, "estimated rates": ESTIMATING}
    out = []
    for period, of in ((100e-6, "100 us"), (1e-3, "1 ms")):
        out.append(Setting(f"8 x 8, {of}", hom, period, rules={"no capacity": EQUAL}))
        out.append(Setting(f"2 x 14 + 9 x 4, {of}", het, period, rules=every))
        hidden = _speeds(0.01, (1.4, [0, 1, 2, 3]), (0.6, [4, 5, 6, 7]))
        out.append(Setting(f"8 x 8, speeds 1.4 and .6 untold, {of}", hom, period, 0.9, hidden, True, every))
        slow = _speeds(0.2, (0.5, [0, 1]))
        out.append(Setting(f"2 x 14 slow to half, {of}", het, period, 0.7, slow, rules=every))
        more = ('events=[{ kind = "arrival_scale", t_s = 0.2, value = 1.3 }]',)
        out.append(Setting(f"arrivals x 1.3, {of}", het, period, 0.7, more, rules=every))
        shares = [0, 0] + [1] * 9
        split = (f'events=[{{ kind = "split", t_s = 0.2, split = {shares} }}]',)
        out.append(Setting(f"all arrive at the 9 x 4, {of}", het, period, 0.9, split, rules=every))
        always = (split[0].replace("0.2", "0.01"),)
        name = f"all arrive at the 9 x 4, learned there, {of}"
        out.append(Setting(name, het, period, 0.9, always, True, every))
    return out


def learn(setting: Setting, seed: int, episodes: int) -> Any:
    """The rule that plays what was learned in so many episodes of .3 s."""
    trainer = MalcolmTrainer(Malcolm(), setting.rack(learning=True), seed, 1)
    trainer.round(episodes)
    return trainer.frozen_rule()


def play(rack: RackScenario, rule: Any, seeds: Sequence[int]) -> NDArray[np.float64]:
    """(episodes, 2): mean and p99 latency in us."""
    rows = native.simulate_rack(rack.to_native(), rule, list(seeds))
    return np.array([[row["latency_mean_us"], row["latency_p99_us"]] for row in rows])


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and half the width of its 95 % confidence interval (Student)."""
    width = STUDENT[len(values) - 1] * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(width)


def study(setting: Setting, seeds: int, episodes: int) -> dict[str, Any]:
    """One row of the table: the best rule of each kind, and what was learned."""
    tasks = list(EVALUATION)
    row: dict[str, Any] = {"setting": setting.name, "rules": {}}
    played = {}
    for kind, rules in setting.rules.items():
        found = {}
        for text, extra in rules:
            rack = setting.rack(extra)
            found[" ".join([text, *extra])] = play(rack, rack.to_rule(text), tasks)
        best = min(found, key=lambda name: found[name][:, 1].mean())
        played[kind] = found[best]
        row["rules"][kind] = {
            "rule": best,
            "mean_us": found[best][:, 0].mean(),
            "p99_us": interval(found[best][:, 1]),
        }
    rack = setting.rack()
    start = native.malcolm_rule(Malcolm(init_scale=0.0).to_native(rack, 0), frozen=True)
    row["start"] = play(rack, start, tasks).mean(axis=0).tolist()
    learned = np.array([play(rack, learn(setting, seed, episodes), tasks) for seed in range(seeds)])
    row["mean_us"] = float(learned[..., 0].mean())
    row["episodes_p99_us"] = learned[..., 1].tolist()  # learning seeds x episodes
    row["p99_us"] = interval(learned[..., 1].mean(axis=1))  # over learning seeds
    for kind, rule in played.items():  # the same tasks: differences, over episodes
        row["rules"][kind]["learned_less_rule_us"] = interval(learned[..., 1].mean(axis=0) - rule[:, 1])
    return row


def main() -> None:
    """Writes a row per line as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON, one row per line")
    parser.add_argument("--seeds", type=int, default=5, help="of learning")
    parser.add_argument("--episodes", type=int, default=10, help="of .3 s, learned from")
    parser.add_argument("--only", default="", help="settings with this in their name")
    given = parser.parse_args()
    with open(given.out, "a", encoding="utf-8") as stream:
        for setting in settings():
            if given.only in setting.name:
                row = json.dumps(study(setting, given.seeds, given.episodes))
                print(row, flush=True)
                print(row, file=stream, flush=True)


if __name__ == "__main__":
    main()
