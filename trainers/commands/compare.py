"""`steelyard compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from steelyard.trainers import results
from steelyard.trainers.commands import common

if TYPE_CHECKING:
    from steelyard.trainers.evaluation import Cell, OnProgress, Study
    from steelyard.trainers.plots import LearningCurve
    from steelyard.trainers.report import Report

_DEFAULT_POLICIES = ("ecmp", "wcmp", "lsq", "sed", "hlb", "gsq")
REFERENCE = "tuned-sed"


@dataclass(kw_only=True)
class Compare(common.StudyOptions):
    """Compare policies with tuned SED and the oracle, and write a report.

    tuned-sed and oracle always take part; without --policy, ecmp, wcmp, lsq, sed, hlb and gsq too. The report
    is a directory: report.html (self-contained), the figures as PNG, records.json, rows.csv, summary.json,
    marl_eval.json (for the tools of that name) and manifest.json.
    """

    learning: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN_DIR"), tyro.conf.UseAppendAction] = ()
    """Show the learning curve of this run too; run directories given as --policy show theirs anyway."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")] = "report"
    """Directory of the report; made if missing, files of an earlier report in it are replaced."""
    loads: Annotated[
        tuple[float, ...], tyro.conf.arg(name="load", metavar="RHO"), tyro.conf.UseAppendAction
    ] = ()
    """Offered load at which the tail is measured; repeat for more. Without any: 0.5 to 0.95."""

    def run(self) -> int:
        """Compare, write the report, print the summary and where the report is."""
        from steelyard.trainers import comparison
        from steelyard.trainers.report import write_report

        directory = results.check_directory("--out", self.out)
        json_file = self.json_file()
        study = self.study(with_references(self.policy or _DEFAULT_POLICIES))
        report = self.make_report(study)
        page = write_report("--out", directory, report)
        if json_file is not None:
            results.write_records("--json", json_file, report.rows)
        if not self.quiet:
            common.print_table(*comparison.table(report.lines))
            print(f"report: {page}")
        return 0

    def make_report(self, study: Study) -> Report:
        """Run everything that the report shows."""
        from steelyard.trainers import comparison, evaluation
        from steelyard.trainers.report import Report
        from steelyard.trainers.tune import weight_groups

        curves = learning_curves([*self.policy, *self.learning])
        with common.progress_bar("compare", self.quiet) as on_progress:
            cells = evaluation.prepare(study, on_progress)
            rows = evaluation.run_cells(study, cells, on_progress)
            details = self._details(study, cells, on_progress)
        return Report(
            title="Comparison on " + ", ".join(scenario.name for scenario in study.scenarios),
            rows=rows,
            lines=comparison.summarise(rows),
            reference=REFERENCE,
            manifest=common.study_manifest("compare", self, study),
            details=details,
            groups={scenario.name: weight_groups(scenario) for scenario in study.scenarios},
            curves=curves,
        )

    def _details(self, study: Study, cells: Sequence[Cell], on_progress: OnProgress) -> list:
        from steelyard.trainers import detail

        loads = detail.check_loads(self.loads) or detail.LOADS
        first_runs = [cell for cell in cells if cell.run == 0]
        return [
            detail.scenario_detail(
                study, [cell for cell in first_runs if cell.scenario is scenario], loads, on_progress
            )
            for scenario in study.scenarios
        ]


def with_references(policies: Sequence[str]) -> list[str]:
    """The policies, then the references that are missing."""
    from steelyard.trainers.comparison import REFERENCES

    return [*policies, *(name for name in REFERENCES if name not in policies)]


def learning_curves(texts: Sequence[str]) -> dict[str, LearningCurve]:
    """Learning curves of all run directories among texts, by their path."""
    from steelyard.trainers.report import learning_curve

    curves = {}
    for text in texts:
        path = Path(text if Path(text).exists() else text.partition("=")[2])
        for run in [path, *sorted(path.iterdir())] if path.is_dir() and path != Path() else []:
            curve = learning_curve(run)
            if curve is not None:
                curves[str(run)] = curve
    return curves
