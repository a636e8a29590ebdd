"""`steelyard simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from steelyard.trainers import results
from steelyard.trainers.commands import common
from steelyard.trainers.results import Row

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
_MAX_LISTED = 20  # episodes shown one by one; more are summed up


@dataclass(kw_only=True)
class Simulate(common.StudyOptions):
    """Run a policy on a scenario and report every episode.

    Without --policy: sed. Example:
    steelyard simulate --scenario cluster-a-cpu --policy sed --seeds 0:50 --json out.json
    """

    def run(self) -> int:
        """Simulate, write the records, print the table."""
        from steelyard.trainers import evaluation

        target = self.json_file()
        study = self.study(self.policy or ("sed",))
        with common.progress_bar("simulate", self.quiet) as on_progress:
            rows = evaluation.run_cells(study, evaluation.prepare(study, on_progress), on_progress)
        if target is not None:
            results.write_records("--json", target, rows)
        if not self.quiet:
            for _, group in groupby(rows, key=lambda row: (row["scenario"], row["policy"])):
                _print(list(group))
        return 0


def _print(rows: Sequence[Row]) -> None:
    listed = rows if len(rows) <= _MAX_LISTED else []
    cells = [[form.format(row[key]) for key, form in _SHOWN.items()] for row in listed]
    cells.append(_total(rows))
    title = f"{rows[0]['scenario']}, {rows[0]['policy']}, {rows[0]['convention']}"
    common.print_table(["seed", *list(_SHOWN)[1:]], cells, title=title)


def _total(rows: Sequence[Row]) -> list[str]:
    """Sums of counts and means of the rest over all episodes."""
    cells = [f"{len(rows)} episodes"]
    for key, form in list(_SHOWN.items())[1:]:
        total = sum(row[key] for row in rows)
        cells.append(form.format(total if key in ("flows", "rejected") else total / len(rows)))
    return cells
