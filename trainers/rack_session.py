"""A training run on a rack: session.py's directory, rounds, Ctrl-C and resume, with a rack's records.

RUN/episodes.csv     one row per training episode: latencies while learning, moves, imbalance
RUN/curves.csv       means over parts of each episode: reward, potential, imbalance, TD error, moves
RUN/progress.csv     one row per round; evaluation of the frozen policy against JSQ with increments
RUN/policy.npz       parameters of the last checkpoint
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from steelyard import native
from steelyard.envs.rack_scenario import RackScenario
from steelyard.trainers import malcolm_policy
from steelyard.trainers.run_logger import WandbLog
from steelyard.trainers.session import Session

_EPISODE_KEYS = (
    "tasks",
    "latency_mean_us",
    "latency_p50_us",
    "latency_p99_us",
    "slowdown_p99",
    "imbalance_mean_us",
    "migrations",
    "steals",
)
REFERENCE = "jsq:increments=true"
"""The rule beside which the policy is shown. It knows the same loads, and does not steal."""


class RackSession(Session):
    """Runs a MalcolmTrainer to the end of its plan."""

    LOGS = ("episodes", "progress", "timing", "curves")
    POLICY = malcolm_policy.FILE

    def _reference_s(self) -> float:
        assert isinstance(self.plan.scenario, RackScenario)
        rows = self._simulate(self.plan.scenario.to_rule(REFERENCE))
        return 1e-6 * _mean(rows, "latency_p99_us")

    def _steps(self) -> int:
        scenario = self.plan.scenario
        assert isinstance(scenario, RackScenario)
        return max(1, round(scenario.episode.horizon_s / scenario.loads.broadcast_period_s))

    def _summary(self) -> dict[str, float]:
        return {"eval_p99_us": 1e6 * self.learned_s, "reference_p99_us": 1e6 * self.reference_s}

    def _record(self, played: Any, wandb: WandbLog, due: bool) -> None:
        episode = self.trainer.episodes
        first = episode - len(played.seeds)
        for index, (seed, stats, curve) in enumerate(
            zip(played.seeds, played.stats, played.curves, strict=True)
        ):
            number = {"episode": first + index + 1}
            self.logs["episodes"].write(
                number | {"seed": int(seed)} | {key: stats[key] for key in _EPISODE_KEYS}
            )
            for point in range(len(curve["t_s"])):
                self.logs["curves"].write(
                    number | {name: float(values[point]) for name, values in curve.items()}
                )
        row: dict[str, Any] = {"episode": episode}
        for key in ("latency_mean_us", "latency_p99_us", "imbalance_mean_us"):
            row[key] = _mean(played.stats, key)
        row |= played.learning
        row |= {"eval_mean_us": None, "eval_p99_us": None, "reference_p99_us": 1e6 * self.reference_s}
        if due:
            rows = self._simulate(self._rule())
            row["eval_mean_us"] = _mean(rows, "latency_mean_us")
            row["eval_p99_us"] = _mean(rows, "latency_p99_us")
            self.learned_s = 1e-6 * row["eval_p99_us"]
            self.on_evaluation(episode, self.learned_s)
        self.logs["progress"].write(row)
        wandb.log(row)

    def _rule(self) -> Any:
        return self.trainer.frozen_rule()  # type: ignore[attr-defined]

    def _simulate(self, rule: Any) -> list[dict[str, Any]]:
        return list(native.simulate_rack(self.config, rule, self.seeds, threads=self.plan.threads))

    def _text(self, played: Any) -> str:
        imbalance, p99 = _mean(played.stats, "imbalance_mean_us"), _mean(played.stats, "latency_p99_us")
        learned = "" if math.isnan(self.learned_s) else f"policy {1e6 * self.learned_s:.0f}, "
        reference = f"JSQ with increments {1e6 * self.reference_s:.0f}"
        return f"imbalance {imbalance:.0f} us, p99 {p99:.0f} us learning; {learned}{reference}"


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([row[key] for row in rows]))
