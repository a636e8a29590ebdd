"""The cells of a study: one policy (for a learner, one training run) on one case, all evaluation seeds.

A cell is a file with the digest of all that it depends on; as long as that stands, it is not computed again.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from steelyard import native
from steelyard.agents import rules
from steelyard.agents.rules import Contender, Member
from steelyard.benchmarks import children, rack_cells, study_runs
from steelyard.benchmarks.study import Case, Study
from steelyard.benchmarks.study_entry import LEARNING, seeds_text
from steelyard.benchmarks.study_runs import Run
from steelyard.benchmarks.sweep import Failure
from steelyard.envs.rack_scenario import RackScenario
from steelyard.envs.scenario_file import RACK
from steelyard.envs.worlds import AnyScenario
from steelyard.trainers import evaluation, malcolm_policy, results, tune
from steelyard.trainers.evaluation import OnProgress, silent
from steelyard.trainers.statistics import Array

Columns = Mapping[str, Sequence[Any]]
"""Metric -> one value per evaluation seed."""
Timeline = Mapping[str, Any]
"""t_s and imbalance_us (T,), load_us of each group of servers: what rack_cells.py has kept."""


@dataclass(frozen=True)
class Cell:
    """One policy on one case, ready to run."""

    case: str
    policy: str
    member: Member
    contender: Contender
    scenario: AnyScenario
    seeds: range
    convention: str
    timeline_s: float = 0.0
    """Racks: bins of loads over time; 0: none."""
    learning: bool = False
    """Racks: what was learned goes on learning."""

    @property
    def name(self) -> str:
        return f"{self.case}, {self.member.name}"

    @property
    def file(self) -> str:
        """Its file's name: readable, and unlike that of any other cell."""
        tag = hashlib.sha256(json.dumps([self.case, self.member.name]).encode()).hexdigest()[:8]
        return f"{rules.file_stem(self.case)}--{rules.file_stem(self.member.name)}--{tag}.json"

    def inputs(self) -> dict[str, Any]:
        """Everything that its numbers depend on."""
        arrival = self.scenario.workload.arrival
        trace = None if arrival is None else arrival.load_trace()
        rack = {"timeline_s": self.timeline_s, "learning": self.learning}
        return {
            "scenario": _tree(self.scenario),
            "trace": None if trace is None else [trace.mean_rate, trace.mean_service_s],
            "policy": self._policy(),
            "seeds": seeds_text(self.seeds),
            "convention": self.convention,
            "native": native_sha256(),
            **(rack if isinstance(self.scenario, RackScenario) else {}),
        }

    def digest(self) -> str:
        """SHA-256 of `inputs`."""
        return hashlib.sha256(json.dumps(self.inputs(), sort_keys=True).encode()).hexdigest()

    def _policy(self) -> dict[str, Any]:
        source, rule = self.member.source, self.contender.tuned_rule
        if isinstance(self.scenario, RackScenario):
            path = Path(source)
            return {"sha256": file_sha256(path)} if path.is_file() else rack_cells.inputs(source)
        if rule is not None:
            digest, places = tune.scenario_digest(self.scenario), rules.tuned_directories()
            stored = rules.stored_weights(self.scenario.name, rule, digest, self.convention, places)
            return {"rule": source, "weights": stored or "searched"}
        if source in rules.rule_names():
            return {"rule": source}
        return {"sha256": file_sha256(Path(source))}


@dataclass(frozen=True)
class Scores:
    """What cells have found: columns by case, policy and training run."""

    columns: dict[str, dict[str, list[Columns]]]
    tuned: dict[str, dict[str, str]] = field(default_factory=dict)
    """By case and policy: what tuning has found (racks)."""
    timelines: dict[str, dict[str, list[Timeline]]] = field(default_factory=dict)
    """By case, policy and training run: loads over time (racks)."""

    def policies(self, case: str) -> list[str]:
        """Policies with at least one cell, in the study's order."""
        return list(self.columns.get(case, {}))

    def metrics(self, case: str, policy: str) -> list[str]:
        """Names of all numbers that every run has."""
        return [
            name
            for name, values in self.columns[case][policy][0].items()
            if not any(isinstance(value, str) for value in values)
        ]

    def matrix(self, case: str, policy: str, metric: str) -> Array:
        """(num_runs, num_seeds) of a metric; NaN where the simulator had nothing to measure."""
        runs = self.columns[case][policy]
        if metric == "rejected_share":
            flows = np.maximum(self.matrix(case, policy, "flows"), 1)
            return self.matrix(case, policy, "rejected") / flows
        return np.array(
            [[np.nan if v is None else float(v) for v in run[metric]] for run in runs], dtype=float
        )


def cells_of(
    study: Study, cases: Sequence[Case], policies: Sequence[str], runs: Mapping[str, Sequence[Run]]
) -> list[Cell]:
    """Every cell of some cases and policies; of a learner, those runs that are finished."""
    cells = []
    for case in cases:
        for label in case.policies:
            if label not in policies:
                continue
            contender = contender_of(study, case, label, runs)
            learns = any(entry.name == label and entry.play == LEARNING for entry in study.entry.learners)
            for member in contender.members:
                entry = study.entry
                cells.append(
                    Cell(
                        *(case.name, label, member, contender, case.scenario),
                        *(entry.seeds, entry.convention, entry.timeline_s, learns),
                    )
                )
    return cells


def contender_of(study: Study, case: Case, label: str, runs: Mapping[str, Sequence[Run]]) -> Contender:
    """Who plays a case under a label."""
    if label in case.learners:
        done = [run for run in runs[case.learners[label]] if study_runs.is_finished(run)]
        return Contender(label, tuple(Member(run.name, str(run.policy)) for run in done))
    source = study.sources[label]
    if study.world == RACK:
        path = malcolm_policy.find(source)
        return Contender(label, (Member(label, str(path or source)),))
    if source in rules.rule_names():
        return Contender(label, (Member(label, source),))
    return rules.parse_policy(f"{label}={source}")


def evaluate(
    option: str, directory: Path, cells: Sequence[Cell], jobs: int, on_progress: OnProgress = silent
) -> list[Failure]:
    """Compute what is missing or out of date in a directory, `jobs` processes at a time; what failed.

    UserError names the option if the disk refuses.
    """
    todo = [(cell, digest) for cell in cells if stored(directory, cell, digest := cell.digest()) is None]
    done = len(cells) - len(todo)
    failures = []
    on_progress(done, len(cells), "")
    for (cell, digest), found in _computed(todo, jobs):
        if isinstance(found, Failure):
            failures.append(found)
        else:
            content = {"cell": cell.name, "digest": digest, "inputs": cell.inputs(), **found}
            results.write_json(option, directory / cell.file, content)
        done += 1
        on_progress(done, len(cells), cell.name)
    return failures


def stored(directory: Path, cell: Cell, digest: str) -> Columns | None:
    """The columns of a cell if its file is there and up to date."""
    found = _stored(directory, cell, digest)
    return None if found is None else found["columns"]


def _stored(directory: Path, cell: Cell, digest: str) -> dict[str, Any] | None:
    try:
        found = json.loads((directory / cell.file).read_text("utf-8"))
        return found if found["digest"] == digest and "columns" in found else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def scores(directory: Path, cells: Sequence[Cell]) -> Scores:
    """What all cells that are there and up to date have found."""
    result = Scores({})
    for cell in cells:
        found = _stored(directory, cell, cell.digest())
        if found is None:
            continue
        result.columns.setdefault(cell.case, {}).setdefault(cell.policy, []).append(found["columns"])
        if "tuned" in found:
            result.tuned.setdefault(cell.case, {})[cell.policy] = found["tuned"]["policy"]
        if "timeline" in found:
            result.timelines.setdefault(cell.case, {}).setdefault(cell.policy, []).append(found["timeline"])
    return result


def compute(cell: Cell) -> dict[str, Any]:
    """Columns of a cell, and the weights of a tuned rule. ValueError if the policy does not fit the case."""
    if isinstance(cell.scenario, RackScenario):
        drain = cell.convention == evaluation.UNCENSORED
        more = (cell.timeline_s, cell.learning)
        return rack_cells.compute(cell.scenario, cell.member, cell.seeds, drain, *more)
    rule = evaluation.member_rule(cell.scenario, cell.contender, cell.member, cell.convention, 1)
    config = cell.scenario.to_native()
    rows = [
        {**stat, "digest": f"{stat['digest']:016x}"}
        for stats in evaluation.simulate_seeds(config, rule, cell.seeds, 1, cell.convention)
        for stat in stats
    ]
    found: dict[str, Any] = {"columns": {name: [row[name] for row in rows] for name in rows[0]}}
    if cell.contender.tuned_rule is not None:
        found["weights"] = list(rule.weights)
    return found


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@lru_cache(maxsize=1024)
def _tree(scenario: AnyScenario) -> dict[str, Any]:
    return scenario.to_dict()


@lru_cache(maxsize=1)
def native_sha256() -> str:
    """SHA-256 of the extension module: the version of the simulator."""
    return file_sha256(Path(native._native.__file__))


_Todo = Sequence[tuple[Cell, str]]


def _computed(todo: _Todo, jobs: int) -> Iterator[tuple[tuple[Cell, str], dict[str, Any] | Failure]]:
    """Every cell with what was found or why not, as they come."""
    if jobs == 1 or len(todo) < 2:
        for each in todo:
            yield each, _attempt(each[0])
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(todo)), context, _start_worker, (os.getpid(),))
    try:
        futures: dict[Future[dict[str, Any] | Failure], tuple[Cell, str]] = {}
        for each in todo:
            futures[pool.submit(_attempt, each[0])] = each
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenProcessPool as error:
                yield futures[future], Failure(futures[future][0].name, f"a worker process died ({error})")
    except BaseException:  # Ctrl-C, a full disk: whatever is being computed is of no use
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _attempt(cell: Cell) -> dict[str, Any] | Failure:
    try:
        return compute(cell)
    except (ValueError, OSError) as error:
        return Failure(cell.name, str(error))


def _start_worker(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    children.die_with_parent(parent)
