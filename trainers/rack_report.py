"""The report of a comparison on racks: tails with intervals and against the load, as HTML, PNG and JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.agents.rules import file_stem
from steelyard.envs.errors import UserError
from steelyard.envs.rack_scenario import RackScenario
from steelyard.trainers import detail, evaluation, plots, rack_comparison, rack_policies, results
from steelyard.trainers import statistics as st
from steelyard.trainers.evaluation import OnProgress, Study
from steelyard.trainers.rack_comparison import TAIL, RackLine
from steelyard.trainers.report import STYLE, Picture, html_figure, html_table
from steelyard.trainers.results import Row

_MAX_SEEDS = 5  # of a point of the sweep: an episode is a million tasks


@dataclass(frozen=True)
class RackReport:
    """Everything that a report shows."""

    rows: Sequence[Row]
    lines: Sequence[RackLine]
    loads: st.Array
    tails_us: Mapping[str, Mapping[str, plots.Band]]
    """p99 [us] at each load with its interval, by scenario and contender."""


def make_report(
    study: Study, loads: Sequence[float], on_progress: OnProgress = evaluation.silent
) -> RackReport:
    """Run everything that the report shows; without loads, those of detail.LOADS."""
    loads = detail.check_loads(loads) or detail.LOADS
    swept = {scenario.name: [at_load(scenario, load) for load in loads] for scenario in study.scenarios}
    rows = evaluation.run_cells(study, evaluation.prepare(study, on_progress), on_progress)
    tails: dict[str, dict[str, plots.Band]] = {}
    total = len(swept) * len(study.contenders)
    for index, (name, scenarios) in enumerate(swept.items()):
        tails[name] = {}
        for place, contender in enumerate(study.contenders):
            on_progress(index * len(study.contenders) + place, total, f"{name} {contender.label}: loads")
            tails[name][contender.label] = _tails(study, contender.members[0], scenarios)
    return RackReport(rows, rack_comparison.summarise(rows), np.array(loads), tails)


def at_load(scenario: Any, load: float) -> RackScenario:
    """The rack with Poisson arrivals at this offered load. UserError if it has another arrival process."""
    if scenario.workload.arrival is not None:
        raise UserError(
            f"scenario {scenario.name}: has workload.arrival; a sweep of loads needs workload.load"
        )
    return scenario.with_overrides([f"workload.load={load!r}"])


def write_report(option: str, directory: Path, report: RackReport, manifest: Mapping[str, Any]) -> Path:
    """Write report.html, *.png, records.json, rows.csv, summary.json, marl_eval.json and manifest.json.

    Everything is rendered before the first byte is written. Returns the path of the HTML; UserError names the
    option if the disk refuses.
    """
    pictures = [(picture, plots.png(picture.figure)) for picture in _pictures(report)]
    page = _page(report, pictures, manifest)
    results.make_directory(option, directory)
    for picture, image in pictures:
        results.write_file(option, directory / f"{picture.name}.png", image)
    results.write_records(option, directory / "records.json", report.rows)
    results.write_table(option, directory / "rows.csv", report.rows)
    metrics = (TAIL, "latency_mean_us", "slowdown_p99")
    results.write_json(option, directory / "marl_eval.json", results.marl_eval(report.rows, metrics))
    results.write_json(option, directory / "summary.json", rack_comparison.to_dict(report.lines))
    results.write_json(option, directory / "manifest.json", manifest)
    results.write_file(option, directory / "report.html", page.encode())
    return directory / "report.html"


def _tails(study: Study, member: Any, scenarios: Sequence[RackScenario]) -> plots.Band:
    """Interquartile mean of p99 [us] at each load with its interval: (L,) each."""
    estimates = []
    for scenario in scenarios:
        config = scenario.to_native()
        rule = rack_policies.member_rule(scenario, member, config)
        seeds = study.seeds[:_MAX_SEEDS]
        stats = evaluation.simulate(config, rule, seeds, study.threads, study.convention)
        scores = np.array([[stat[TAIL] for stat in stats]])
        estimates.append(st.bootstrap(st.iqm, [scores], replicates=500))
    value, low, high = np.array([(e.value, e.low, e.high) for e in estimates]).T
    return value, low, high


def _pictures(report: RackReport) -> list[Picture]:
    found = []
    for name, tails in report.tails_us.items():
        stem = file_stem(name)
        bars = {line.contender: line.p99_us for line in report.lines if line.scenario == name}
        figure = plots.interval_bars(bars, "p99 of latency [us]")
        found.append(Picture(f"{stem}-intervals", f"{name}: p99 by policy.", figure))
        figure = plots.tail_against_load(report.loads, tails, "p99 of latency [us]")
        found.append(Picture(f"{stem}-load", f"{name}: p99 against offered load.", figure))
    return found


def _page(report: RackReport, pictures: Sequence[tuple[Picture, bytes]], manifest: Mapping[str, Any]) -> str:
    title = html.escape("Comparison on " + ", ".join(report.tails_us))
    figures = "".join(html_figure(picture, image) for picture, image in pictures)
    header = ["rack and policy", "reference", "difference of p99 [us]", "P(lower p99)"]
    gaps = [
        [f"{line.scenario}, {line.contender}", name, str(gap.difference_us), str(gap.improvement)]
        for line in report.lines
        for name, gap in line.gaps.items()
    ]
    listed = html.escape(json.dumps(manifest, indent=1, default=str))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head><body>
<h1>{title}</h1>
<p>Every policy met the same tasks (common random numbers). Latencies are interquartile means over episodes
with 95 % stratified bootstrap intervals; a gap is the ratio of interquartile means of p99 to the reference,
minus 1, from paired draws: negative is faster.</p>
{html_table(*rack_comparison.table(report.lines))}
<h2>Paired differences</h2>{html_table(header, gaps)}
{figures}<details><summary>Manifest: command, versions, scenarios</summary><pre>{listed}</pre></details>
</body></html>
"""
