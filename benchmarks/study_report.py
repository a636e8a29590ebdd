"""The report of a study: summary.json, manifest.json, table.md, report.html and its figures as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.benchmarks import cells as cells_module
from steelyard.benchmarks import study_racks, study_runs, summary
from steelyard.benchmarks import study_tables as tables
from steelyard.benchmarks.cells import Cell, Scores
from steelyard.benchmarks.page import (
    Block,
    Code,
    Heading,
    Inline,
    Picture,
    Table,
    markdown,
    paragraphs,
    text,
    to_html,
)
from steelyard.benchmarks.study import Learner, Study
from steelyard.benchmarks.study_entry import LOCAL, seeds_text
from steelyard.benchmarks.study_runs import Run
from steelyard.benchmarks.sweep import Failure
from steelyard.envs.scenario_file import RACK
from steelyard.trainers import plots, results
from steelyard.trainers.report import learning_curve


def write(
    option: str,
    directory: Path,
    study: Study,
    found: dict[str, Any],
    scores: Scores,
    manifest: Mapping[str, Any],
    failures: Sequence[Failure],
    runs: Mapping[str, Sequence[Run]],
) -> Path:
    """Write all files; everything is rendered before the first byte is written. Path of the HTML."""
    pictures = figures(study, found, scores, runs)
    blocks = page(study, found, scores, manifest, failures, pictures)
    for picture in pictures:
        if not picture.html_only:
            results.write_file(option, directory / f"{picture.name}.png", picture.png)
    results.write_json(option, directory / "summary.json", found)
    results.write_json(option, directory / "manifest.json", manifest)
    metrics = study.entry.metrics if study.world == RACK else results.MARL_EVAL_METRICS
    rows = _rows(study, scores, metrics)
    results.write_json(option, directory / "marl_eval.json", results.marl_eval(rows, metrics))
    results.write_file(option, directory / "table.md", markdown(study.entry.title, blocks).encode())
    results.write_file(option, directory / "report.html", to_html(study.entry.title, blocks).encode())
    return directory / "report.html"


def manifest_of(
    command: str, study: Study, runs: Mapping[str, Sequence[Run]], cells: Sequence[Cell] = ()
) -> dict[str, Any]:
    """What it takes to repeat a study: command, versions, scenarios in full, seeds, policies, budgets."""
    return {
        **results.provenance(command),
        "study": {"name": study.name, "title": study.entry.title, "sha256": study.sha256},
        "native_sha256": cells_module.native_sha256(),
        "seeds": {"first": study.entry.seeds.start, "end": study.entry.seeds.stop},
        "convention": study.entry.convention,
        "cases": {
            case.name: {
                "source": case.source,
                "set": list(case.overrides),
                "scenario": case.scenario.to_dict(),
            }
            for case in study.cases
        },
        "policies": {
            **{label: _policy(source) for label, source in study.sources.items()},
            **{entry.name: {"learner": entry.name} for entry in study.entry.learners},
        },
        "learners": {learner.name: _learner(learner, runs[learner.name]) for learner in study.learners},
        "cells": {cell.file: cell.digest() for cell in cells},
    }


def figures(
    study: Study, summary_of: Mapping[str, Any], scores: Scores, runs: Mapping[str, Sequence[Run]]
) -> list[Picture]:
    """Profiles, probability of improvement and learning curves; of racks: metrics against axes, loads."""
    if study.world == RACK:
        return study_racks.pictures(study, summary_of, scores)
    found = []
    everyone = summary.profiles(study, scores)
    if everyone:
        what = f"{study.entry.metrics[0]}, {study.entry.reference} / own"
        drawing = plots.profiles(everyone, study.entry.reference)
        caption = f"Performance profiles over all cases (score: {what}); higher is better."
        found.append(Picture("profiles", caption, plots.png(drawing)))
    labels, matrix = summary.improvement_matrix(study, scores)
    if 2 <= len(labels) <= 40:
        caption = "Probability that an episode of the row is better than one of the column, mean over cases."
        found.append(
            Picture("improvement", caption, plots.png(plots.improvement(labels, matrix)), html_only=True)
        )
    curves = {name: curve for name, each in runs.items() if (curve := mean_curve(each)) is not None}
    if curves:
        drawing = plots.learning_curves(curves, {})
        caption = "Training episodes, mean over the runs of a learner; bold: without exploration."
        found.append(Picture("learning-curves", caption, plots.png(drawing), html_only=True))
    return found


def mean_curve(runs: Sequence[Run]) -> plots.LearningCurve | None:
    """Learning curve of a learner, mean over its finished runs; None if none has one."""
    found = [learning_curve(run.directory) for run in runs if study_runs.is_finished(run)]
    curves = [curve for curve in found if curve is not None]
    if not curves:
        return None
    means = []
    for parts in ([c.exploring for c in curves], [c.evaluated for c in curves]):
        same = all(np.array_equal(x, parts[0][0]) for x, _ in parts)
        means.append((parts[0][0], np.mean([y for _, y in parts], axis=0)) if same else parts[0])
    return plots.LearningCurve(*means)


def page(
    study: Study,
    found: Mapping[str, Any],
    scores: Scores,
    manifest: Mapping[str, Any],
    failures: Sequence[Failure],
    pictures: Sequence[Picture],
) -> list[Block]:
    """The report, block by block."""
    entry, met = study.entry, "tasks" if study.world == RACK else "flows"
    blocks: list[Block] = [text(paragraph) for paragraph in paragraphs(entry.description)]
    blocks += [
        Code(manifest["command"]),
        text(
            f"Evaluation seeds {seeds_text(entry.seeds)}, {entry.convention}; all meet the same {met}. "
            "Values are interquartile means with 95 % stratified bootstrap intervals over training runs and "
            "evaluation seeds; a gap is the ratio of interquartile means to another policy, minus 1, from "
            "paired draws; P(better) is the probability that an episode is better than one of the other."
        ),
    ]
    for group, names in _groups(study):
        blocks += _group(found, group, names) if group else _single(found, names[0])
    blocks += study_racks.blocks(study, found, scores)
    if found["overall"]:
        blocks += [Heading("All cases"), tables.overall_table(found)]
    if entry.quoted:
        blocks += [Heading("Beside the papers"), tables.quoted_table(study, found)]
    blocks += _training(study, manifest)
    lost = [
        f"{name}: {', '.join(case['missing'])}" for name, case in found["cases"].items() if case["missing"]
    ]
    if lost:
        blocks += [Heading("Missing"), text("Without a result: " + "; ".join(lost) + ".")]
    if failures:
        blocks += [Heading("Failed"), Table(["what failed"], [[str(failure)] for failure in failures], True)]
    return [*blocks, *pictures]


def _groups(study: Study) -> list[tuple[str, list[str]]]:
    """(group, its cases) in order of appearance; a case without a group stands alone."""
    found: list[tuple[str, list[str]]] = []
    for case in study.cases:
        known = [names for group, names in found if group and group == case.group]
        if known:
            known[0].append(case.name)
        else:
            found.append((case.group, [case.name]))
    return found


def _single(found: Mapping[str, Any], case: str) -> list[Block]:
    if not found["cases"][case]["policies"]:
        return []
    return [Heading(case), tables.case_table(found, case)]


def _group(found: Mapping[str, Any], group: str, names: Sequence[str]) -> list[Block]:
    played = [name for name in names if found["cases"][name]["policies"]]
    if not played:
        return []
    blocks: list[Block] = [Heading(group), tables.group_table(found, played, group=group)]
    gaps = tables.group_table(found, played, relative=True, group=group)
    others = [tables.group_table(found, played, metric=name, group=group) for name in found["metrics"][1:]]
    return blocks + [each for each in (gaps, *others) if any(set(row[1:]) - {"", "0"} for row in each.rows)]


def _training(study: Study, manifest: Mapping[str, Any]) -> list[Block]:
    """What was trained, what it has cost, and the commands."""
    if not study.learners:
        return []
    header = [
        "learner",
        "algorithm",
        "trained on",
        "episodes",
        "seeds",
        "runs",
        *tables.BUDGET_HEADER,
        "note",
    ]
    rows: list[list[Inline]] = []
    commands = []
    for learner in study.learners:
        entry, held = learner.entry, manifest["learners"][learner.name]
        algorithm = entry.algo if entry.engine == LOCAL else f"{entry.algo} ({entry.engine})"
        done = sum(run["finished"] for run in held["runs"])
        rows.append(
            [
                *(
                    learner.name,
                    algorithm,
                    held["source"],
                    str(entry.episodes),
                    seeds_text(entry.seeds),
                    str(done),
                ),
                *(*tables.budget_cells(held), entry.note),
            ]
        )
        commands += [run["command"] for run in held["runs"]]
    return [Heading("Training"), Table(header, rows, words=True), Code("\n".join(commands))]


def _policy(source: str) -> dict[str, str]:
    path = Path(source)
    return {"file": source, "sha256": cells_module.file_sha256(path)} if path.is_file() else {"rule": source}


def _learner(learner: Learner, runs: Sequence[Run]) -> dict[str, Any]:
    entry = learner.entry
    return {
        "algo": entry.algo,
        "engine": entry.engine,
        "source": learner.source,
        "set": list(learner.overrides),
        "episodes": entry.episodes,
        "seeds": {"first": entry.seeds.start, "end": entry.seeds.stop},
        "note": entry.note,
        "scenario": learner.scenario.to_dict(),
        "directory": str(runs[0].directory.parent),
        "runs": [_run(run) for run in runs],
    }


def _run(run: Run) -> dict[str, Any]:
    finished = study_runs.is_finished(run)
    return {
        "name": run.name,
        "seed": run.seed,
        "finished": finished,
        "command": run.command(),
        "manifest": str(run.directory / "manifest.json"),
        "policy_sha256": cells_module.file_sha256(run.policy) if finished else None,
        "budget": study_runs.budget(run),
    }


def _rows(study: Study, scores: Scores, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each case, policy, training run and seed, with these metrics."""
    return [
        {"scenario": case, "contender": policy, "run": run}
        | {metric: columns[metric][index] for metric in metrics}
        for case, policies in scores.columns.items()
        for policy, runs in policies.items()
        for run, columns in enumerate(runs)
        for index in range(len(study.entry.seeds))
    ]
