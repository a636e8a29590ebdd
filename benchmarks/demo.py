"""The main job, `make demo`: train, compare with what production uses, export, run natively.

Every step is a command that a person could type; the demo prints it and runs it.
"""

from __future__ import annotations

import itertools
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from steelyard.envs.errors import UserError
from steelyard.trainers import cli

SCENARIOS = ("cluster-a-cpu", "web-trace")
RULES = ("ecmp", "wcmp", "lsq", "sed", "tuned-sed", "hlb", "gsq", "oracle")
LEARNED = "distr-lb"
CARD_RECORDS = "evaluation.json"
"""Records in a run directory that `steelyard export` sums up in the model card."""


@dataclass(kw_only=True)
class Demo:
    """Train Distr-LB, export it, and run it natively beside the rules on flows it has never seen."""

    episodes: int = 240
    """Training episodes of 60 s."""
    seed: int = 0
    """Training seed; evaluation seeds are others by construction."""
    seeds: str = "0:50"
    """Evaluation seeds A, A+1, ..., B-1."""
    out: str = "runs/demo"
    """Directory of the run, the exported policy and the report; if it is taken, a number is added."""

    def run(self) -> int:
        """Run all steps; the exit status of the first that fails."""
        began = time.monotonic()
        root = fresh_directory(Path(self.out))
        run, exported, report = root / "train", root / "exported", root / "report"
        steps = self.steps(run, exported, report)
        for index, (title, command) in enumerate(steps, 1):
            announce(f"[{index}/{len(steps)}] {title}", command, began)
            status = cli.main(shlex.split(command))
            if status:
                return status
        compiled = compiled_policy(exported)
        same = same_decisions(run / "policy.bin", compiled)
        print(f"compiled policy and blob decide alike on {same:,} flows, to the bit")
        print(f"exported policy: {compiled}")
        print(f"took {(time.monotonic() - began) / 60:.1f} minutes")
        return 0

    def steps(self, run: Path, exported: Path, report: Path) -> list[tuple[str, str]]:
        """Title and command of every step."""
        trained, compiled, page = (
            shlex.quote(str(path)) for path in (run, compiled_policy(exported), report)
        )
        records = shlex.quote(str(run / CARD_RECORDS))
        scenarios = " ".join(f"--scenario {name}" for name in SCENARIOS)
        rules = " ".join(f"--policy {name}" for name in RULES)
        return [
            (
                "two balancers learn to share eight servers they are told nothing about",
                f"train --scenario {SCENARIOS[0]} --algo {LEARNED} --run {trained}"
                f" --episodes {self.episodes} --seed {self.seed}",
            ),
            (
                "evaluate what they learnt on flows never seen in training, for the model card",
                f"evaluate --scenario {SCENARIOS[0]} --seeds {self.seeds} --policy {LEARNED}={trained}"
                f" {rules} --json {records} --quiet",
            ),
            (
                "compile the policy",
                f"export {trained} --to cpp --out {shlex.quote(str(exported))}",
            ),
            (
                "run the compiled policy natively beside the rules, on two scenarios",
                f"compare {scenarios} --seeds {self.seeds} {rules} --policy {LEARNED}={compiled}"
                f" --learning {trained} --out {page}",
            ),
        ]


def fresh_directory(wanted: Path) -> Path:
    """wanted, or wanted-2, wanted-3, ...: the first that does not exist; it is made."""
    for number in itertools.count(1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"--out: cannot make {path}: {error.strerror}") from None
    raise AssertionError("unreachable")


def compiled_policy(directory: Path) -> Path:
    """The shared object of an exported policy."""
    return directory / "policy.so"


def same_decisions(blob: Path, compiled: Path) -> int:
    """Flows of a few episodes on which both files made the same decisions; UserError if any differs."""
    from steelyard import native
    from steelyard.agents.rules import policy_config
    from steelyard.envs.scenario import Scenario

    scenario = Scenario.load(SCENARIOS[0])
    results = [
        native.simulate(
            scenario.to_native(),
            policy_config(str(path), scenario.num_servers, scenario.num_agents),
            list(range(5)),
        )
        for path in (blob, compiled)
    ]
    if [r["digest"] for r in results[0]] != [r["digest"] for r in results[1]]:
        raise UserError(f"{compiled} decides otherwise than {blob}; export again")
    return sum(r["flows"] for r in results[0])


def announce(title: str, command: str, began: float) -> None:
    """Print what comes, when, and the command that does it."""
    minutes, seconds = divmod(int(time.monotonic() - began), 60)
    print(f"\n{title}  ({minutes}:{seconds:02d})\n$ steelyard {command}", flush=True)


def main() -> int:
    """Entry of `python -m steelyard.benchmarks.demo`."""
    try:
        return tyro.cli(Demo).run()
    except ValueError as error:
        return cli.fail(str(error))


if __name__ == "__main__":
    sys.exit(main())
