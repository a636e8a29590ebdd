"""`steelyard study` and `steelyard leaderboard`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from steelyard.envs.errors import UserError, unknown
from steelyard.trainers import results
from steelyard.trainers.commands import common

if TYPE_CHECKING:
    from steelyard.benchmarks.study import Case
    from steelyard.benchmarks.study import Study as Plan
    from steelyard.benchmarks.study_runs import Run
    from steelyard.benchmarks.sweep import Failure

STATUS_FAILED, STATUS_INTERRUPTED = 1, 130
_RESULTS = Path("benchmarks") / "results"
_MAX_JOBS = 1024


@dataclass(kw_only=True)
class Study:
    """Run a study: train its learners, evaluate everyone, write tables and a report.

    Whatever is finished is kept: a study that was stopped or killed goes on where it stood, and cells whose
    inputs have not changed are not computed again. Example: steelyard study leaderboard --jobs 8
    """

    study: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME|FILE")]]
    """A study that comes with the project (see benchmarks/studies) or a TOML file."""
    out: common.OutputDirectory = None
    """Where results go; without it benchmarks/results/NAME."""
    runs: Annotated[str, tyro.conf.arg(metavar="DIR")] = "runs"
    """Where training runs are kept; studies share them."""
    jobs: Annotated[int, tyro.conf.arg(metavar="N")] = field(default_factory=common.usable_cores)
    """Processes at the same time, for training and for evaluation; results do not depend on it."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME"), tyro.conf.UseAppendAction] = ()
    """Work on this policy or this case only (repeat for more); what else is finished still shows."""
    quiet: common.Quiet = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Train, evaluate, write, print where the report is."""
        from steelyard.benchmarks import study as plans
        from steelyard.benchmarks import study_runs, sweep

        if not 1 <= self.jobs <= _MAX_JOBS:
            raise UserError(f"--jobs: {self.jobs}; allowed: 1 to {_MAX_JOBS}")
        plan = plans.load_study(self.study)
        policies, cases = selected(plan, self.only)
        directory = self._directory(plan)
        runs_root = results.check_directory("--runs", self.runs)
        runs = {learner.name: study_runs.runs_of(learner, runs_root) for learner in plan.learners}
        self._mark(plan, directory, runs)
        try:
            with sweep.interruptible():
                failures = self._work(plan, directory, runs, policies, cases)
                status = self._report(plan, directory, runs, failures)
        except KeyboardInterrupt:
            again = results.command_line("study", self).replace(" --study ", " ")
            print(f"stopped; what is finished is kept; to go on: {again}", file=sys.stderr)
            return STATUS_INTERRUPTED
        return status

    def _work(
        self,
        plan: Plan,
        directory: Path,
        runs: Mapping[str, Sequence[Run]],
        policies: Sequence[str],
        cases: Sequence[Case],
    ) -> list[Failure]:
        from steelyard.benchmarks import cells, sweep

        named = {case.learners[label] for case in cases for label in policies if label in case.learners}
        wanted = [run for name, each in runs.items() if name in named for run in each]
        failures = []
        if wanted:
            with common.progress_bar("train", self.quiet) as on_progress:
                failures = sweep.train(wanted, self.jobs, on_progress)
        todo = cells.cells_of(plan, cases, policies, runs)
        with common.progress_bar("evaluate", self.quiet) as on_progress:
            return failures + cells.evaluate("--out", directory / "cells", todo, self.jobs, on_progress)

    def _report(
        self, plan: Plan, directory: Path, runs: Mapping[str, Sequence[Run]], failures: Sequence[Failure]
    ) -> int:
        """Write all files from what there is; the exit status."""
        from steelyard.benchmarks import cells, study_report, study_tables, summary

        everything = cells.cells_of(plan, plan.cases, plan.policies(), runs)
        scores = cells.scores(directory / "cells", everything)
        found = summary.summarise(plan, scores)
        manifest = study_report.manifest_of(self._command(), plan, runs, everything)
        page = study_report.write("--out", directory, plan, found, scores, manifest, failures, runs)
        if not self.quiet:
            for name, case in found["cases"].items():
                if case["policies"]:
                    table = study_tables.case_table(found, name)
                    common.print_table(
                        table.header, [[str(cell) for cell in row] for row in table.rows], name
                    )
            print(f"report: {page}")
        for failure in failures:
            print(f"steelyard: failed: {failure}", file=sys.stderr)
        return STATUS_FAILED if failures else 0

    def _directory(self, plan: Plan) -> Path:
        """Where results go, checked: absent, empty, or of this study."""
        directory = _RESULTS / plan.name
        if self.out is not None or _RESULTS.is_dir():
            directory = results.check_directory("--out", self.out or directory)
        if not directory.is_dir() or not any(directory.iterdir()):
            return directory
        owner = study_of(directory)
        if owner != plan.name:
            whose = f"results of the study {owner!r}" if owner else "something else than results of a study"
            raise UserError(f"--out: {directory} holds {whose}; name another directory")
        return directory

    def _mark(self, plan: Plan, directory: Path, runs: Mapping[str, Sequence[Run]]) -> None:
        """Make the directories; a manifest says from the start whose they are."""
        from steelyard.benchmarks import study_report

        if self.out is None:
            _RESULTS.mkdir(parents=True, exist_ok=True)
        for option, path in (
            ("--runs", Path(self.runs)),
            ("--out", directory),
            ("--out", directory / "cells"),
        ):
            results.make_directory(option, path)
        if not (directory / "manifest.json").exists():
            manifest = study_report.manifest_of(self._command(), plan, runs)
            results.write_json("--out", directory / "manifest.json", manifest)

    def _command(self) -> str:
        return results.command_line("study", self).replace(" --study ", " ")


@dataclass(kw_only=True)
class Leaderboard:
    """Write the leaderboard pages from the results of a study, and its top into a README.

    The pages are DIR/README.md and DIR/index.html, made from DIR/summary.json and DIR/manifest.json alone.
    """

    directory: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DIR")]] = str(
        _RESULTS / "leaderboard"
    )
    """Results of a study (the --out of `steelyard study`)."""
    readme: common.OutputFile = None
    """Write the top between <!-- leaderboard --> and <!-- /leaderboard --> of this file."""
    top: Annotated[int, tyro.conf.arg(metavar="N")] = 8
    """Rows of the top."""
    quiet: common.Quiet = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Write the pages."""
        from steelyard.benchmarks import leaderboard

        if self.top < 1:
            raise UserError(f"--top: {self.top}; at least 1 is needed")
        directory = Path(self.directory)
        board = leaderboard.load(directory)
        readme = None
        if self.readme is not None:
            readme = results.check_file("--readme", self.readme)
            text = leaderboard.with_top(readme, board, self.top)
        pages = leaderboard.write("DIR", directory, board)
        if readme is not None:
            results.write_file("--readme", readme, text.encode())
        if not self.quiet:
            print("\n".join(str(page) for page in [*pages, *([readme] if readme else [])]))
        return 0


def selected(plan: Plan, only: Sequence[str]) -> tuple[list[str], list[Case]]:
    """Policies and cases that --only leaves; all of a kind if it names none of that kind."""
    policies, cases = plan.policies(), list(plan.cases)
    names = [case.name for case in cases]
    for name in only:
        if name not in policies and name not in names:
            raise unknown("--only", name, [*policies, *names])
    mine = [label for label in policies if label in only] or policies
    return mine, [case for case in cases if case.name in only] or cases


def study_of(directory: Path) -> str | None:
    """Name of the study whose results a directory holds; None if it holds something else."""
    import json

    try:
        found: dict[str, Any] = json.loads((directory / "manifest.json").read_text("utf-8"))
        return str(found["study"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
