"""`steelyard evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from steelyard.envs.errors import UserError
from steelyard.trainers import results
from steelyard.trainers.commands import common

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.trainers.evaluation import Study
    from steelyard.trainers.results import Row

_DEFAULT_POLICIES = {"cluster": ("lsq", "sed"), "rack": ("po2", "jsq", "cfcfs")}


@dataclass(kw_only=True)
class Evaluate(common.StudyOptions):
    """Run policies on scenarios and summarise them with intervals.

    All policies meet the same flows or tasks. Without --policy: lsq and sed, on racks po2, jsq and cfcfs.
    With --live the flows are real requests to a testbed on this machine (docs/testbed.md), at real time:
    steelyard evaluate --live --scenario testbed-2x4 --policy lsq --policy sed --seeds 0:3
    """

    live: common.Quiet = False
    """Play on a testbed in the place of the simulator; needs root, and scenarios that a testbed can be."""
    dataplane: Literal["lb", "kernel", "vpp", "vpp-lb"] = "lb"
    """With --live: lb, steelyard-lb in every balancer; vpp, VPP with the plugin; and two that only hash
    (ecmp, wcmp): kernel, by routes; vpp-lb, VPP's own balancer."""
    profile: Literal["pages", "wiki"] | None = None
    """With --live: what servers serve: a PHP loop and files, or MediaWiki; default: as the one that is up."""
    testbed: Annotated[str, tyro.conf.arg(metavar="NAME")] = "steelyard"
    """With --live: name of the testbed; if it is not up, it is brought up, and taken down at the end."""

    table: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Write all metrics of every episode to this .csv or .parquet file, and beside it a manifest (.json)."""

    def run(self) -> int:
        """Evaluate, write the files, print the summary."""
        from steelyard.trainers import comparison, rack_comparison

        json_file = self.json_file()
        table_file = results.check_table("--table", self.table) if self.table is not None else None
        study = self.study(_DEFAULT_POLICIES)
        rows = self._rows(study)
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

    def _rows(self, study: Study) -> Sequence[Row]:
        """One row per member and seed, simulated or played."""
        from steelyard.trainers import evaluation, live

        with common.progress_bar("evaluate", self.quiet) as on_progress:
            if not self.live:
                if self.dataplane != "lb":
                    raise UserError(f"--dataplane {self.dataplane}: only with --live")
                if self.profile is not None:
                    raise UserError(f"--profile {self.profile}: only with --live")
                return evaluation.run_cells(study, evaluation.prepare(study, on_progress), on_progress)
            if self.convention != evaluation.UNCENSORED:
                raise UserError(f"--convention {self.convention}: live, every request counts (uncensored)")
            return live.run(study, self.testbed, self.dataplane, self.profile, on_progress)
