"""The training runs of a study: where each one is, how far it has come, what it has cost, and its command.

A run directory is named by everything that decides the course of the run (engine, algorithm, scenario,
hyper-parameters, episodes), so studies that train the same learner share its runs, and no other learner's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.agents.rules import POLICY_FILE, file_stem
from steelyard.benchmarks.study import Learner
from steelyard.benchmarks.study_entry import LOCAL
from steelyard.envs.errors import UserError, shown
from steelyard.envs.rack_scenario import RackScenario
from steelyard.envs.scenario import Scenario
from steelyard.envs.worlds import scenario_from_dict
from steelyard.trainers import malcolm_policy

CONFIG, BUDGET = "config.json", "budget.json"
BUDGET_KEYS = ("env_steps", "cpu_s", "wall_s", "bytes_exchanged", "episodes")
_UNSTARTED = ("manifest.json",)  # all that a run holds that was cut off before it had a configuration


@dataclass(frozen=True)
class Run:
    """One learner with one training seed."""

    learner: Learner
    seed: int
    directory: Path

    @property
    def name(self) -> str:
        return f"{self.learner.name}/s{self.seed}"

    @property
    def policy(self) -> Path:
        racks = isinstance(self.learner.scenario, RackScenario)
        return self.directory / (malcolm_policy.FILE if racks else POLICY_FILE)

    @property
    def log(self) -> Path:
        """What the process printed; beside the run directory, which must be empty at its start."""
        return self.directory.with_name(f"{self.directory.name}.log")

    def arguments(self, resume: bool) -> list[str]:
        """`train` and its options."""
        entry = self.learner.entry
        words = ["train", "--scenario", self.learner.source, "--algo", entry.algo]
        if entry.engine != LOCAL:
            words += ["--engine", entry.engine]
        words += ["--run", str(self.directory), "--episodes", str(entry.episodes), "--seed", str(self.seed)]
        for text in self.learner.overrides:
            words += ["--set", text]
        words += ["--threads", "1", "--quiet"]
        return [*words, "--resume"] if resume else words

    def command(self) -> str:
        """The command that makes this run."""
        return shlex.join(["steelyard", *self.arguments(False)])


def runs_of(learner: Learner, root: Path) -> list[Run]:
    """One run for each training seed."""
    directory = root / directory_name(learner)
    return [Run(learner, seed, directory / f"s{seed}") for seed in learner.entry.seeds]


def directory_name(learner: Learner) -> str:
    """Name of the directory that holds a learner's runs."""
    entry = learner.entry
    decisive = [entry.engine, entry.algo, entry.episodes, learner.hyper, decisive_tree(learner.scenario)]
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    engine = "" if entry.engine == LOCAL else f"{entry.engine}-"
    return file_stem(f"{engine}{entry.algo}-{learner.scenario.name}-{digest[:8]}")


def decisive_tree(table: Any) -> Any:
    """What differs from the defaults in a scenario's tables, descriptions left out.

    A key that the scenario format gains later, left at its default, leaves the tree as it was.
    """
    if isinstance(table, tuple):
        return [decisive_tree(entry) for entry in table]
    if not dataclasses.is_dataclass(table):
        return table
    tree = {}
    for field in dataclasses.fields(table):
        held = getattr(table, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if held != default and not (isinstance(table, (Scenario, RackScenario)) and field.name == "scenario"):
            tree[field.name] = decisive_tree(held)
    return tree


def is_begun(run: Run) -> bool:
    """Whether there is something to resume. UserError if the directory holds anything but a run."""
    if (run.directory / CONFIG).is_file():
        return True
    if run.directory.is_dir():
        found = [path.name for path in run.directory.iterdir() if path.suffix != ".partial"]
        if any(name not in _UNSTARTED for name in found):
            raise UserError(f"--runs: {run.directory} is not empty and no run directory; move it away")
    return False


def clear_unstarted(run: Run) -> None:
    """Remove what a start that was cut off has left in a directory that `is_begun` found without a run."""
    if run.directory.is_dir():
        for path in run.directory.iterdir():
            path.unlink()


def episodes_saved(run: Run) -> int:
    """Episodes of the last checkpoint; 0 if there is none."""
    budget = _json(run.directory / BUDGET)
    if isinstance(budget.get("episodes"), int):
        return int(budget["episodes"])
    for name in ("checkpoint", "checkpoint.old"):
        state = _json(run.directory / name / "state.json").get("state")
        if isinstance(state, dict):
            return int(state.get("trainer", {}).get("episodes", 0))
    return 0


def episodes_played(run: Run) -> int:
    """Episodes so far, by the log of timing; as far as the last checkpoint if that has none."""
    try:
        with open(run.directory / "timing.csv", "rb") as stream:
            stream.seek(max(stream.seek(0, 2) - 4096, 0))
            last = stream.read().decode("utf-8", "replace").strip().splitlines()[-1]
        return int(last.partition(",")[0])
    except (OSError, ValueError, IndexError):
        return episodes_saved(run)


def is_finished(run: Run) -> bool:
    """Whether the checkpoint has reached the study's episodes and the policy file is of that checkpoint."""
    if not run.policy.is_file() or episodes_saved(run) < run.learner.entry.episodes:
        return False
    stamp = run.policy.stat().st_mtime_ns
    marks = [run.directory / BUDGET, run.directory / "checkpoint" / "state.json"]
    return all(stamp >= mark.stat().st_mtime_ns for mark in marks if mark.is_file())


def check_run(run: Run) -> None:
    """UserError, naming the key, if a run that was begun is not the one that the study asks for."""
    if not is_begun(run):
        return
    path = run.directory / CONFIG
    found = _json(path)
    if not found:
        raise UserError(f"{path}: damaged; move the run away to train it again")
    for key, here, wanted in _differences(run, found):
        raise UserError(
            f"--runs: {run.directory} has {key} = {shown(here)}, learner {run.learner.name!r} in the study "
            f"{shown(wanted)}; move the run away or name another --runs"
        )


def budget(run: Run) -> dict[str, float | None]:
    """What training has cost: BUDGET_KEYS, None where unknown."""
    found = _json(run.directory / BUDGET)
    values = {key: found.get(key) for key in BUDGET_KEYS}
    return {key: value if isinstance(value, int | float) else None for key, value in values.items()}


def _differences(run: Run, found: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Key, value in the run directory and value in the study, wherever both say something."""
    entry = run.learner.entry
    wanted: dict[str, Any] = {"seed": run.seed}
    if entry.engine == LOCAL:
        wanted["algorithm"] = entry.algo
    for key, value in wanted.items():
        if found.get(key, value) != value:
            yield key, found[key], value
    hyper = found.get("hyper") or {}
    for name, value in run.learner.hyper.items():
        if name in hyper and not _same(hyper[name], value):
            yield f"hyper.{name}", hyper[name], value
    if isinstance(found.get("scenario"), dict):
        try:  # through the reader: a key that the format has gained since then counts as its default
            here = decisive_tree(scenario_from_dict(found["scenario"]))
        except ValueError as error:
            raise UserError(f"{run.directory / CONFIG}: {error}") from None
        yield from _tree_differences(here, decisive_tree(run.learner.scenario), "scenario")


def _tree_differences(one: Any, other: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from _tree_differences(one.get(key), other.get(key), f"{prefix}.{key}")
    elif one != other:
        yield prefix, one, other


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-12)
    return bool(one == other)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
