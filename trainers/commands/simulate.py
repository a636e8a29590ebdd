"""`steelyard simulate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from steelyard.envs.errors import UserError
from steelyard.trainers import results
from steelyard.trainers.commands import common
from steelyard.trainers.results import Row

if TYPE_CHECKING:
    from steelyard.trainers.evaluation import Study

_SHOWN = {
    "seed": "{}",
    "flows": "{}",
    "rejected": "{}",
    "sojourn_mean_s": "{:.4f}",
    "sojourn_p50_s": "{:.4f}",
    "sojourn_p90_s": "{:.4f}",
    "sojourn_p99_s": "{:.4f}",
    "waiting_mean_s": "{:.4f}",
    "jain_mean": "{:.4f}",
}
_SHOWN_OF_RACKS = {
    "seed": "{}",
    "tasks": "{}",
    "latency_mean_us": "{:.2f}",
    "latency_p50_us": "{:.2f}",
    "latency_p99_us": "{:.1f}",
    "latency_p999_us": "{:.1f}",
    "slowdown_p99": "{:.2f}",
    "migrations": "{}",
    "steals": "{}",
    "messages": "{}",
    "imbalance_mean_us": "{:.1f}",
}
_COUNTS = ("flows", "rejected", "tasks", "migrations", "steals", "messages")
_DEFAULT_POLICIES = {"cluster": ("sed",), "rack": ("jsq",)}
_MAX_LISTED = 20  # episodes shown one by one; more are summed up


@dataclass(kw_only=True)
class Simulate(common.StudyOptions):
    """Run a policy on a scenario and report every episode.

    Without --policy: sed, on racks jsq. Examples:
    steelyard simulate --scenario cluster-a-cpu --policy sed --seeds 0:50 --json out.json
    steelyard simulate --scenario rack-hom-8x8 --policy jsq --policy po2 --seeds 0:5
    """

    tape: common.OutputFile = None
    """Record what one load balancer sees and decides in the one episode that is simulated; `steelyard replay`
    makes its decisions again."""
    tape_balancer: Annotated[int, tyro.conf.arg(metavar="I")] = 0
    """The balancer of the tape."""

    def run(self) -> int:
        """Simulate, write the records, print the table."""
        from steelyard.trainers import evaluation

        target = self.json_file()
        study = self.study(_DEFAULT_POLICIES)
        if self.tape is not None:
            return self._record(study, target)
        if self.tape_balancer != 0:
            raise UserError("--tape-balancer: only with --tape")
        with common.progress_bar("simulate", self.quiet) as on_progress:
            rows = evaluation.run_cells(study, evaluation.prepare(study, on_progress), on_progress)
        if target is not None:
            results.write_records("--json", target, rows)
        if not self.quiet:
            for _, group in groupby(rows, key=lambda row: (row["scenario"], row["policy"])):
                _print(list(group))
        return 0

    def _record(self, study: Study, target: Path | None) -> int:
        from steelyard.trainers import evaluation, tapes

        file = tapes.check(study, str(self.tape))
        (cell,) = evaluation.prepare(study)
        taped = tapes.record(study, cell, self.tape_balancer, file)
        if target is not None:
            results.write_records("--json", target, [taped.row])
        if not self.quiet:
            _print([taped.row])
            said = "balancer {balancer}: {decisions} decisions, {records} records, digest {digest:016x}"
            print(f"{file}: " + said.format(**taped.tape))
        return 0


def _print(rows: Sequence[Row]) -> None:
    shown = _SHOWN if "flows" in rows[0] else _SHOWN_OF_RACKS
    listed = rows if len(rows) <= _MAX_LISTED else []
    cells = [[form.format(row[key]) for key, form in shown.items()] for row in listed]
    cells.append(_total(rows, shown))
    title = f"{rows[0]['scenario']}, {rows[0]['policy']}, {rows[0]['convention']}"
    common.print_table(["seed", *list(shown)[1:]], cells, title=title)


def _total(rows: Sequence[Row], shown: Mapping[str, str]) -> list[str]:
    """Sums of counts and means of the rest over all episodes."""
    cells = [f"{len(rows)} episodes"]
    for key, form in list(shown.items())[1:]:
        total = sum(row[key] for row in rows)
        cells.append(form.format(total if key in _COUNTS else total / len(rows)))
    return cells
