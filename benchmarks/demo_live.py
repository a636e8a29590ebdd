"""From a simulator to real packets, `make demo-live`: train, compile, and balance real Apache servers.

Every step is a command that a person could type; the demo prints it and runs it. Needs root.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from steelyard.benchmarks.demo import announce, compiled_policy, fresh_directory
from steelyard.benchmarks.live_figure import live_beside_simulated
from steelyard.trainers import cli, results

SCENARIO = "testbed-2x4"
LEARNED = "distr-lb"
RULES = ("ecmp", "lsq", "sed")
SIDES = ("simulated", "live")


@dataclass(kw_only=True)
class DemoLive:
    """Train Distr-LB in the simulation of a testbed, then run it on real packets beside the rules."""

    episodes: int = 64
    """Training episodes of 30 s, simulated."""
    seed: int = 0
    """Training seed."""
    seeds: str = "0:1"
    """Live episodes with seeds A, A+1, ..., B-1."""
    horizon_s: float = 20.0
    """Length of a live episode [s]."""
    out: str = "runs/demo-live"
    """Directory of the run and the exported policy; if it is taken, a number is added."""
    name: str = "steelyard"
    """Of the testbed."""

    def run(self) -> int:
        """Run all steps; the exit status of the first that fails. The testbed is taken down in any case."""
        from steelyard.deploy.testbed import machine

        machine.require_root()
        began = time.monotonic()
        root = fresh_directory(Path(self.out))
        steps = self.steps(root)
        try:
            for index, (title, command) in enumerate(steps, 1):
                announce(f"[{index}/{len(steps)}] {title}", command, began)
                status = cli.main(shlex.split(command))
                if status:
                    return status
        finally:
            down = f"testbed down --name {self.name}"
            announce("take the testbed down", down, began)
            cli.main(shlex.split(down))
        figure = root / "live.png"
        results.write_file("--out", figure, live_beside_simulated(_records(root)))
        print(f"\nfigure: {figure}\ndeployed policy: {compiled_policy(root / 'exported')}")
        print(f"took {(time.monotonic() - began) / 60:.1f} minutes; docs/testbed.md tells more")
        return 0

    def steps(self, root: Path) -> list[tuple[str, str]]:
        """Title and command of every step but the last."""
        exported = root / "exported"
        trained, folder, compiled = (
            shlex.quote(str(path)) for path in (root / "train", exported, compiled_policy(exported))
        )
        simulated, live = (shlex.quote(str(root / f"{side}.json")) for side in SIDES)
        policies = " ".join(f"--policy {name}" for name in RULES)
        episode = f"--seeds {self.seeds} --set episode.horizon_s={self.horizon_s:g}"
        return [
            (
                "two balancers learn, in the simulator, to share four servers of which two are twice as fast",
                f"train --scenario {SCENARIO} --algo {LEARNED} --run {trained} --episodes {self.episodes}"
                f" --seed {self.seed}",
            ),
            ("compile the policy", f"export {trained} --to cpp --out {folder}"),
            (
                "what the simulator says",
                f"evaluate --scenario {SCENARIO} {episode} {policies} --policy {LEARNED}={compiled}"
                f" --json {simulated}",
            ),
            (
                "a real cluster: an edge router, two balancers, four Apache servers",
                f"testbed up --scenario {SCENARIO} --name {self.name}",
            ),
            (
                "the same policies on the same flows, with real packets",
                f"testbed run --scenario {SCENARIO} --name {self.name} {episode} {policies}"
                f" --policy {LEARNED}={compiled} --json {live}",
            ),
        ]


def _records(root: Path) -> dict[str, list[dict[str, Any]]]:
    return {side: json.loads((root / f"{side}.json").read_text()) for side in SIDES}


def main() -> int:
    """Entry of `python -m steelyard.benchmarks.demo_live`."""
    try:
        return tyro.cli(DemoLive).run()
    except ValueError as error:
        return cli.fail(str(error))


if __name__ == "__main__":
    sys.exit(main())
