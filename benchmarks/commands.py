"""`steelyard bench`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from steelyard.envs.errors import UserError


@dataclass(kw_only=True)
class Bench:
    """Measure the speed of simulator, environment and inference beside references.

    References that are not installed (SimPy, PyTorch) are left out.
    """

    repeats: int = 7
    """How often each quantity is measured; the median counts."""
    json: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Write all repeats, medians, targets and ratios to this file."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Measure, print, write."""
        from steelyard.benchmarks import speed
        from steelyard.trainers import results

        if self.repeats < 1:
            raise UserError(f"--repeats: {self.repeats}; at least 1 is needed")
        target = results.check_file("--json", self.json) if self.json is not None else None
        measurements = speed.measure(self.repeats, self._say)
        if target is not None:
            document = results.provenance(results.command_line("bench", self)) | speed.to_dict(measurements)
            results.write_json("--json", target, document)
        if not self.quiet:
            _print(measurements)
        return 0

    def _say(self, text: str) -> None:
        if not self.quiet:
            print(f"measuring {text} ...", file=sys.stderr)


def _print(measurements: list) -> None:
    from steelyard.benchmarks import speed
    from steelyard.trainers.commands.common import print_table

    found = {m.name: m for m in measurements}
    rows = []
    for m in measurements:
        times = speed.ratio(m, found)
        verdict = {None: "", True: "reached", False: "missed"}[m.reached()]
        target = "" if m.target is None else f"{'<=' if m.better == 'lower' else '>='} {m.target:,.0f}"
        spread = f"{min(m.values):,.1f} to {max(m.values):,.1f}"
        better = "" if times is None else f"{times:,.1f} x {m.reference}"
        rows.append([m.name, m.unit, f"{m.median:,.1f}", spread, target, verdict, better])
    print_table(["what", "unit", "median", "range", "target", "", "better than reference"], rows, left=2)
