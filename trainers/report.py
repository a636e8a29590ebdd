"""The report of a comparison: one self-contained HTML file, its figures also as PNG, its numbers as JSON."""

from __future__ import annotations

import base64
import csv
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.agents.rules import file_stem
from steelyard.envs.errors import UserError
from steelyard.trainers import comparison, plots, results
from steelyard.trainers.comparison import Line
from steelyard.trainers.detail import ScenarioDetail
from steelyard.trainers.results import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; display: block; overflow-x: auto }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left; white-space: pre }
img { max-width: 100% } figure { margin: 1.5rem 0 } figcaption { color: #555; font-size: 13px }
pre { background: #f5f5f5; padding: .6rem; overflow-x: auto; font-size: 12px }
"""


@dataclass(frozen=True)
class Report:
    """Everything that a report shows."""

    title: str
    rows: Sequence[Row]
    lines: Sequence[Line]
    reference: str
    """Contender relative to which scores over all scenarios are taken."""
    manifest: Mapping[str, Any]
    details: Sequence[ScenarioDetail] = ()
    groups: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    """Servers that are alike, by scenario."""
    curves: Mapping[str, plots.LearningCurve] = field(default_factory=dict)
    """Learning curves by training run."""


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its PNG file (without suffix) and its caption."""

    name: str
    caption: str
    figure: Figure


def write_report(option: str, directory: Path, report: Report) -> Path:
    """Write report.html, *.png, records.json, rows.csv, summary.json, marl_eval.json and manifest.json.

    Everything is rendered before the first byte is written. Returns the path of the HTML; UserError names the
    option if the disk refuses.
    """
    sections = [(title, [(p, plots.png(p.figure)) for p in found]) for title, found in _sections(report)]
    page = _page(report, sections)
    results.make_directory(option, directory)
    for _, pictures in sections:
        for picture, image in pictures:
            results.write_file(option, directory / f"{picture.name}.png", image)
    results.write_records(option, directory / "records.json", report.rows)
    results.write_table(option, directory / "rows.csv", report.rows)
    results.write_json(option, directory / "marl_eval.json", results.marl_eval(report.rows))
    results.write_json(option, directory / "summary.json", comparison.to_dict(report.lines))
    results.write_json(option, directory / "manifest.json", report.manifest)
    results.write_file(option, directory / "report.html", page.encode())
    return directory / "report.html"


def learning_curve(run: Path) -> plots.LearningCurve | None:
    """Learning curve from the progress of a run directory; None if it has none yet."""
    path = run / "progress.csv"
    if not path.is_file():
        return None
    with open(path, newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    try:
        exploring, evaluated = _column(rows, "sojourn_mean_s"), _column(rows, "eval_sojourn_s")
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    return plots.LearningCurve(exploring, evaluated) if exploring[0].size else None


def _column(rows: Sequence[Mapping[str, str]], name: str) -> plots.Curve:
    """Episode and value of a column wherever both are given: (n,) each."""
    given = [row for row in rows if row.get("episode") and row.get(name)]
    points = np.array([(float(row["episode"]), float(row[name])) for row in given]).reshape(-1, 2)
    return points[:, 0], points[:, 1]


def _sections(report: Report) -> list[tuple[str, list[Picture]]]:
    """Title and pictures of every section, in order."""
    by_name = {detail.scenario: detail for detail in report.details}
    sections = []
    for name in comparison.scenarios(report.rows):
        lines = [line for line in report.lines if line.scenario == name]
        found = [Picture(f"{file_stem(name)}-intervals", "Mean sojourn by policy.", plots.intervals(lines))]
        if name in by_name:
            found += _scenario_pictures(by_name[name], report.groups[name])
        sections.append((f"Scenario {name}", found))
    if report.curves:
        levels = _levels(report)
        caption = (
            "Training episodes, smoothed over a twentieth of the curve; dotted: rules on evaluation seeds."
        )
        picture = Picture("learning-curves", caption, plots.learning_curves(report.curves, levels))
        sections.append(("Learning", [picture]))
    sections.append(("All scenarios", _overall_pictures(report)))
    return sections


def _scenario_pictures(detail: ScenarioDetail, groups: Sequence[Sequence[int]]) -> list[Picture]:
    name = file_stem(detail.scenario)
    found = [
        Picture(
            f"{name}-load",
            "p99 against offered load of the busiest device, arrivals scaled; tuned weights are those of the "
            "scenario as it stands.",
            plots.tail_against_load(detail.loads, detail.tails_s),
        ),
        Picture(
            f"{name}-imbalance",
            "Fullest server minus the mean, flows per unit of capacity, mean over seeds.",
            plots.imbalance_over_time(detail.imbalance),
        ),
    ]
    if detail.sojourns_s:
        caption = "Sojourn of all flows and its tail."
        found.insert(0, Picture(f"{name}-cdf", caption, plots.sojourn_cdf(detail.sojourns_s)))
    if detail.weights:
        caption = "Share of weight of each server, mean over balancers (thin: one server; thick: its group)."
        found.append(Picture(f"{name}-weights", caption, plots.weights_over_time(detail.weights, groups)))
    return found


def _overall_pictures(report: Report) -> list[Picture]:
    everyone = comparison.overall(report.rows, report.reference)
    matrix = comparison.improvement_matrix(report.rows)
    labels = comparison.contenders(report.rows)
    return [
        Picture(
            "profiles",
            "Performance profiles; higher is better.",
            plots.profiles(everyone, report.reference),
        ),
        Picture("improvement", "Probability of improvement.", plots.improvement(labels, matrix)),
    ]


def _levels(report: Report) -> dict[str, float]:
    """Sojourn of the references on the first scenario."""
    first = comparison.scenarios(report.rows)[0]
    return {
        line.contender: line.sojourn_s.value
        for line in report.lines
        if line.scenario == first and line.contender in (*comparison.REFERENCES, "sed", "lsq")
    }


def _page(report: Report, sections: Sequence[tuple[str, Sequence[tuple[Picture, bytes]]]]) -> str:
    title = html.escape(report.title)
    body = "".join(
        f"<h2>{html.escape(name)}</h2>\n"
        + "".join(html_figure(picture, image) for picture, image in pictures)
        for name, pictures in sections
    )
    manifest = html.escape(json.dumps(report.manifest, indent=1, default=str))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head><body>
<h1>{title}</h1>
<p>Every policy met the same flows (common random numbers). Sojourn and p99 are interquartile means over
episodes with 95 % stratified bootstrap intervals; a gap is the ratio of interquartile means to the reference,
minus 1, from paired draws: negative is faster.</p>
{_table(report.lines)}
{_gap_table(report.lines)}
{body}<details><summary>Manifest: command, versions, scenarios</summary><pre>{manifest}</pre></details>
</body></html>
"""


def html_figure(picture: Picture, image: bytes) -> str:
    """A figure with its image inside the page."""
    data = base64.b64encode(image).decode()
    caption = html.escape(picture.caption)
    return (
        f'<figure id="{html.escape(picture.name)}"><img alt="{caption}" src="data:image/png;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def _table(lines: Sequence[Line]) -> str:
    return html_table(*comparison.table(lines))


def _gap_table(lines: Sequence[Line]) -> str:
    """p99 with its interval, paired differences in seconds and the probability of improvement."""
    header = ["scenario and policy", "reference", "difference [s]", "P(faster)", "p99 [s]"]
    cells = [
        [
            f"{line.scenario}, {line.contender}",
            name,
            str(gap.difference_s),
            str(gap.improvement),
            str(line.p99_s),
        ]
        for line in lines
        for name, gap in line.gaps.items()
    ]
    return f"<h2>Paired differences</h2>{html_table(header, cells)}" if cells else ""


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; all text is escaped."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>\n" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
