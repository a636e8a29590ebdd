"""`steelyard sweep`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from steelyard.trainers.commands import common


@dataclass(kw_only=True)
class Sweep:
    """Search the hyper-parameters of a learner on Ray Tune, as a TOML file says.

    Every trial is a training run; the best hyper-parameters go to DIR/best.toml, for `steelyard train
    --hyper`. Example: steelyard sweep ippo.toml --out sweeps/ippo
    """

    file: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FILE")]]
    """What is trained and over which hyper-parameters; see docs/rllib.md."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Directory of the sweep: trials, results.csv, best.toml."""
    resume: common.Quiet = False
    """Go on: finished trials stay, the others go on from their checkpoints."""
    threads: common.Threads = field(default_factory=common.usable_cores)
    """Trials at the same time."""
    ray_address: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """Head node of a Ray cluster to run on; DIR must be on a file system that its nodes share."""
    quiet: common.Quiet = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Run to the end or to Ctrl-C."""
        from steelyard.trainers.rllib import cluster, sweep, sweep_file

        common.check_threads(self.threads)
        asked, text = sweep_file.read(self.file)
        out = Path(self.out)
        sweep.check_directory(out, text, self.resume)
        cluster.check_address(self.ray_address)
        ended = sweep.run(
            asked,
            text,
            out,
            resume=self.resume,
            cpus=self.threads,
            address=self.ray_address,
            quiet=self.quiet,
        )
        if not ended:
            print(
                f"stopped; to go on: steelyard sweep {self.file} --out {self.out} --resume", file=sys.stderr
            )
            return 130
        if not self.quiet:
            print(f"results: {out / 'results.csv'}; best: {out / 'best.toml'}")
        return 0
