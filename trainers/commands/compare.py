"""`steelyard compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from steelyard.envs.errors import UserError
from steelyard.trainers import results
from steelyard.trainers.commands import common

if TYPE_CHECKING:
    from steelyard.trainers.evaluation import Cell, OnProgress, Study
    from steelyard.trainers.plots import LearningCurve
    from steelyard.trainers.report import Report
    from steelyard.trainers.results import Row

    Outcome = tuple[Path, Sequence[Row], tuple[list[str], list[list[str]]]]
    """The page of a report, its rows, and header and cells of its table."""

_DEFAULT_POLICIES = {
    "cluster": ("ecmp", "wcmp", "lsq", "sed", "hlb", "gsq"),
    "rack": ("random", "po2", "jbt", "jsq", "racksched"),
}
REFERENCE = "tuned-sed"


@dataclass(kw_only=True)
class Compare(common.StudyOptions):
    """Compare policies with tuned SED and the oracle, and write a report.

    tuned-sed and oracle always take part; without --policy, ecmp, wcmp, lsq, sed, hlb and gsq too. On racks
    jsq and cfcfs take part, and without --policy random, po2, jbt and racksched; p99 is what counts. The
    report is a directory: report.html (self-contained), the figures as PNG, records.json, rows.csv,
    summary.json, marl_eval.json (for the tools of that name) and manifest.json.
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
        directory = results.check_directory("--out", self.out)
        json_file = self.json_file()
        study = self.study(_DEFAULT_POLICIES)
        page, rows, table = (
            self._racks(study, directory) if study.world == "rack" else self._clusters(study, directory)
        )
        if json_file is not None:
            results.write_records("--json", json_file, rows)
        if not self.quiet:
            common.print_table(*table)
            print(f"report: {page}")
        return 0

    def with_references(self, world: str, policies: Sequence[str]) -> Sequence[str]:
        """The policies, then the references of the world that are missing."""
        return with_references(policies, world)

    def _clusters(self, study: Study, directory: Path) -> Outcome:
        from steelyard.trainers import comparison
        from steelyard.trainers.report import write_report

        report = self.make_report(study)
        page = write_report("--out", directory, report)
        return page, report.rows, comparison.table(report.lines)

    def _racks(self, study: Study, directory: Path) -> Outcome:
        from steelyard.trainers import rack_comparison, rack_report

        if self.learning:
            raise UserError("--learning: only for clusters; racks have no training runs to show")
        with common.progress_bar("compare", self.quiet) as on_progress:
            report = rack_report.make_report(study, self.loads, on_progress)
        manifest = common.study_manifest("compare", self, study)
        page = rack_report.write_report("--out", directory, report, manifest)
        return page, report.rows, rack_comparison.table(report.lines)

    def make_report(self, study: Study) -> Report:
        """Run everything that the report shows of clusters."""
        from steelyard.envs.scenario import Scenario
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
            groups={
                scenario.name: weight_groups(scenario)
                for scenario in study.scenarios
                if isinstance(scenario, Scenario)
            },
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


def with_references(policies: Sequence[str], world: str = "cluster") -> list[str]:
    """The policies, then the references of the world that are missing."""
    from steelyard.trainers import comparison, rack_comparison

    references = rack_comparison.REFERENCES if world == "rack" else comparison.REFERENCES
    return [*policies, *(name for name in references if name not in policies)]


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
