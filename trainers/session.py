"""A training run: its directory, rounds, evaluation, logs, checkpoints, Ctrl-C and resume.

RUN/config.json      what was asked for; its presence marks a run directory
RUN/manifest.json    command, versions
RUN/episodes.csv     one row per training episode
RUN/progress.csv     one row per round: losses, temperatures, evaluation of the policy against SED
RUN/timing.csv       wall clock, apart since it is all that differs between two runs of one seed
RUN/budget.json      what training has cost: episodes, env_steps (joint), cpu_s, wall_s, bytes_exchanged
RUN/checkpoint/      arrays.npz and state.json; what the engine keeps of its own
RUN/policy.bin       the policy of the last checkpoint
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from steelyard import native
from steelyard.envs.errors import UserError, shown
from steelyard.envs.scenario import Scenario
from steelyard.envs.worlds import AnyScenario
from steelyard.trainers import checkpoint, results
from steelyard.trainers.rounds import KeepsFiles, Round, Trainer
from steelyard.trainers.run_logger import CsvLog, LiveLine, WandbLog, WandbMode

_VALIDATION_RUN = 0x5EED_0F5E_D000  # run seed of the validation episodes; training runs have small ones
_MARK = "config.json"
STATUS_INTERRUPTED = 130


@dataclass(frozen=True)
class Plan:
    """How a run goes, apart from the algorithm."""

    scenario: AnyScenario
    algorithm: str
    directory: Path
    episodes: int
    seed: int
    num_envs: int  # episodes per round
    hyper: dict[str, Any]  # of the algorithm, as JSON
    command: str
    eval_rounds: int = 5  # rounds between two evaluations
    eval_episodes: int = 10
    wandb: WandbMode = "disabled"
    threads: int = 1
    quiet: bool = False
    engine: str = "local"

    def config(self) -> dict[str, Any]:
        """What decides the course of the run; `--resume` must agree with it."""
        evaluation = {"rounds": self.eval_rounds, "episodes": self.eval_episodes}
        engine = {} if self.engine == "local" else {"engine": self.engine}
        return {
            **engine,
            "algorithm": self.algorithm,
            "seed": self.seed,
            "episodes": self.episodes,
            "hyper": self.hyper,
            "evaluation": evaluation,
            "scenario": self.scenario.to_dict(),
        }


def open_run(plan: Plan, resume: bool) -> Any:
    """Make or check the run directory; the state to go on from, or None. UserError overwrites nothing."""
    check_run(plan, resume)
    run, mark = plan.directory, plan.directory / _MARK
    if not resume:
        results.make_directory("--run", run)
    results.write_json("--run", mark, plan.config())  # of a resumed run, `episodes` may be another
    manifest = run / "manifest.json"
    if not manifest.is_file():  # new, or killed before this line
        results.write_json("--run", manifest, results.provenance(plan.command))
    if not resume or checkpoint.find(run / "checkpoint") is None:
        return None  # new, or stopped before its first checkpoint: from the start
    return checkpoint.load(run / "checkpoint")


def check_run(plan: Plan, resume: bool) -> None:
    """UserError unless the run can start (or go on) in its directory; writes nothing."""
    run, config = plan.directory, json.loads(json.dumps(plan.config()))
    mark = run / _MARK
    if not resume:
        if run.is_dir() and any(run.iterdir()):
            hint = "add --resume to go on with it" if mark.is_file() else "it is not a run directory"
            raise UserError(f"--run: {run} is not empty; {hint}, or name another directory")
        results.check_directory("--run", run)
        return
    if not mark.is_file():
        raise UserError(
            f"--run: {run} has no config.json, so there is no run to resume; drop --resume to start one"
        )
    try:
        found = json.loads(mark.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{mark}: damaged ({error}); the run cannot be resumed") from error
    for key, here, there in _differences(found, config):
        if key != "episodes":
            raise UserError(
                f"--resume: {key} is {shown(there)}, but {run} has {shown(here)}; allowed: the same"
            )


def _differences(one: Any, other: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from _differences(one.get(key), other.get(key), f"{prefix}.{key}" if prefix else key)
    elif one != other:
        yield prefix, one, other


class Budget:
    """What training has cost so far, over all the processes that a run was resumed in."""

    def __init__(self) -> None:
        self.env_steps, self.bytes_exchanged = 0, 0
        self._cpu_s, self._wall_s = -time.process_time(), -time.monotonic()

    @classmethod
    def read(cls, path: Path, episodes: int) -> Budget:
        """Go on from what was spent on the first `episodes`; from nothing if none were played."""
        budget = cls()
        if not episodes or not path.is_file():
            return budget
        try:
            spent = json.loads(path.read_text("utf-8"))
            budget.env_steps, budget.bytes_exchanged = int(spent["env_steps"]), int(spent["bytes_exchanged"])
            budget._cpu_s += float(spent["cpu_s"])
            budget._wall_s += float(spent["wall_s"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: not the budget of a training run; delete it to count anew") from error
        return budget

    def add(self, played: Round, steps: int) -> None:
        """Count a round of `steps` joint steps of the environment each, and what agents would have sent."""
        self.env_steps += len(played.seeds) * steps
        self.bytes_exchanged += played.bytes_exchanged
        self._cpu_s += played.cpu_s

    def now(self) -> dict[str, float]:
        """env_steps, bytes_exchanged, cpu_s (of all processes that play or learn), wall_s."""
        return {
            "env_steps": self.env_steps,
            "bytes_exchanged": self.bytes_exchanged,
            "cpu_s": self._cpu_s + time.process_time(),
            "wall_s": self._wall_s + time.monotonic(),
        }


class Session:
    """Runs a trainer to the end of its plan; see the module for the files."""

    LOGS: tuple[str, ...] = ("episodes", "progress", "timing")
    POLICY = "policy.bin"

    def __init__(self, plan: Plan, trainer: Trainer, saved: Any) -> None:
        self.plan, self.trainer = plan, trainer
        if saved is not None:
            trainer.load(saved["trainer"])
            if isinstance(trainer, KeepsFiles):
                found = checkpoint.find(plan.directory / "checkpoint")
                assert found is not None  # `saved` comes from there
                trainer.load_files(found)
        start = trainer.episodes
        self.logs = {name: CsvLog(plan.directory / f"{name}.csv", start) for name in self.LOGS}
        self.config: Any = plan.scenario.to_native()
        self.seeds = [native.train_seed(_VALIDATION_RUN, index) for index in range(plan.eval_episodes)]
        self.reference_s = self._reference_s()
        self.learned_s = math.nan
        if saved is not None:
            self.learned_s = saved["learned_s"]
        self.budget = Budget.read(plan.directory / "budget.json", start)
        self.on_evaluation: Callable[[int, float], None] = lambda episode, sojourn_s: None

    def run(self) -> int:
        """Train; 0, or 130 after Ctrl-C. A checkpoint is left in both cases."""
        plan, trainer = self.plan, self.trainer
        name = f"{plan.algorithm}-{plan.scenario.name}-{plan.seed}"
        wandb = WandbLog(plan.wandb, plan.directory, plan.config(), name)
        with _interruptible() as stopped, LiveLine(name, plan.episodes, trainer.episodes, plan.quiet) as live:
            while trainer.episodes < plan.episodes and not stopped():
                before = trainer.episodes // (plan.num_envs * plan.eval_rounds)
                played = trainer.round(min(plan.num_envs, plan.episodes - trainer.episodes))
                self.budget.add(played, self._steps())
                after = trainer.episodes // (plan.num_envs * plan.eval_rounds)
                due = after > before or trainer.episodes >= plan.episodes
                self._record(played, wandb, due)
                self.logs["timing"].write({"episode": trainer.episodes, **self.budget.now()})
                if due:
                    self.save()
                    self.on_evaluation(trainer.episodes, self.learned_s)  # who listens may end the process
                live.update(trainer.episodes, self._text(played), due)
            self.save()
        wandb.finish(plan.directory / self.POLICY, self._summary())
        return STATUS_INTERRUPTED if trainer.episodes < plan.episodes else 0

    def save(self) -> None:
        """Checkpoint and policy file, each replaced as a whole."""
        trainer = self.trainer
        policy = trainer.policy()
        state = {"trainer": trainer.state(), "learned_s": self.learned_s}
        more = trainer.save_files if isinstance(trainer, KeepsFiles) else None
        checkpoint.save(self.plan.directory / "checkpoint", state, more)
        spent = {"episodes": trainer.episodes, **self.budget.now()}
        results.write_json("--run", self.plan.directory / "budget.json", spent)
        results.write_file("--run", self.plan.directory / self.POLICY, policy)

    def _reference_s(self) -> float:
        """What the policy is shown beside: the mean sojourn time of SED on the validation episodes."""
        return self._mean_sojourn(self._simulate(self.plan.scenario.to_rule("sed")))

    def _steps(self) -> int:
        """Joint steps of an episode."""
        scenario = self.plan.scenario
        assert isinstance(scenario, Scenario)
        return round(scenario.episode.horizon_s / scenario.control.step_s)

    def _summary(self) -> dict[str, float]:
        return {"eval_sojourn_s": self.learned_s, "sed_sojourn_s": self.reference_s}

    def _record(self, played: Round, wandb: WandbLog, due: bool) -> None:
        episode = self.trainer.episodes
        first = episode - len(played.seeds)
        for index in range(len(played.seeds)):
            self.logs["episodes"].write(_episode_row(played, index, first + index + 1))
        row: dict[str, Any] = {
            "episode": episode,
            "sojourn_mean_s": float(np.mean(played.stats["sojourn_mean_s"])),
            "return_mean": float(np.mean(played.returns)),
            **played.learning,
            "eval_sojourn_s": None,
            "sed_sojourn_s": self.reference_s,
        }
        if due:
            rows = self._simulate(self._rule())
            row["eval_sojourn_s"] = self.learned_s = self._mean_sojourn(rows)
            details = rows[0]
            wandb.evaluation(
                episode,
                np.concatenate([each["sojourn_s"] for each in rows]),
                np.asarray(details["timeline"]["t_s"]),
                np.asarray(details["timeline"]["weights"]),
            )
        self.logs["progress"].write(row)
        wandb.log(row | {f"weight_{j}": float(w) for j, w in enumerate(played.weights.mean(0))})

    def _rule(self) -> Any:
        rule = self.plan.scenario.to_rule("policy")
        rule.policy = native.Policy(self.trainer.policy(), num_agents=self.plan.scenario.num_agents)
        return rule

    def _simulate(self, rule: Any) -> list[dict[str, Any]]:
        return list(native.simulate(self.config, rule, self.seeds, threads=self.plan.threads, details=True))

    @staticmethod
    def _mean_sojourn(rows: list[dict[str, Any]]) -> float:
        return float(np.mean([row["sojourn_mean_s"] for row in rows]))

    def _text(self, played: Round) -> str:
        training = float(np.mean(played.stats["sojourn_mean_s"]))
        learned = "" if math.isnan(self.learned_s) else f"policy {self.learned_s:.3f}, "
        return f"sojourn {training:.3f} s exploring; {learned}SED {self.reference_s:.3f}"


def _episode_row(played: Round, index: int, number: int) -> dict[str, Any]:
    row: dict[str, Any] = {"episode": number, "seed": int(played.seeds[index])}
    row |= {key: value[index].item() for key, value in played.stats.items()}
    row |= {f"return_{agent}": float(value) for agent, value in enumerate(played.returns[index])}
    return row | {f"weight_{server}": float(value) for server, value in enumerate(played.weights[index])}


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C (or SIGTERM) within is noted, so that the round ends whole; a second one ends at
    once."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: nobody to interrupt us
        before = {}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
