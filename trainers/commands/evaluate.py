"""`steelyard evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from steelyard.trainers import results
from steelyard.trainers.commands import common

_DEFAULT_POLICIES = {"cluster": ("lsq", "sed"), "rack": ("po2", "jsq", "cfcfs")}


@dataclass(kw_only=True)
class Evaluate(common.StudyOptions):
    """Run policies on scenarios and summarise them with intervals.

    All policies meet the same flows or tasks. Without --policy: lsq and sed, on racks po2, jsq and cfcfs.
    """

    table: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Write all metrics of every episode to this .csv or .parquet file, and beside it a manifest (.json)."""

    def run(self) -> int:
        """Evaluate, write the files, print the summary."""
        from steelyard.trainers import comparison, evaluation, rack_comparison

        json_file = self.json_file()
        table_file = results.check_table("--table", self.table) if self.table is not None else None
        study = self.study(_DEFAULT_POLICIES)
        with common.progress_bar("evaluate", self.quiet) as on_progress:
            rows = evaluation.run_cells(study, evaluation.prepare(study, on_progress), on_progress)
        if json_file is not None:
            results.write_records("--json", json_file, rows)
        if table_file is not None:
            results.write_table("--table", table_file, rows)
            manifest = common.study_manifest("evaluate", self, study)
            results.write_json("--table", table_file.with_suffix(".manifest.json"), manifest)
        if not self.quiet and study.world == "rack":
            common.print_table(*rack_comparison.table(rack_comparison.summarise(rows)))
        elif not self.quiet:
            common.print_table(*comparison.table(comparison.summarise(rows)))
        return 0
