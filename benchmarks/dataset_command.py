"""`steelyard dataset`: record what balancers measure, with the truth beside it, and score models on it."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from steelyard.envs.errors import UserError
from steelyard.trainers import results
from steelyard.trainers.commands import common

if TYPE_CHECKING:
    from steelyard.envs.scenario import Scenario

DatasetFile = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
_SUFFIX = ".parquet"


@dataclass(kw_only=True)
class Record:
    """Record a dataset: every kind of traffic under every seed, each episode at a load of its own.

    One row per episode, balancer, step and server: what the balancer sees, and the truth (docs/datasets.md).
    Example: steelyard dataset record --seeds 0:20 --out runs/simulated.parquet
    """

    out: Annotated[str, tyro.conf.arg(metavar="FILE")]
    """The Parquet file to write."""
    scenario: common.ScenarioName = "testbed-2x4"
    """Pool, mean demand, step and horizon; one CPU stage whose demand has a mean, and no events."""
    overrides: common.Overrides = ()
    """Change a value of the scenario (--set episode.horizon_s=60)."""
    traffic: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KIND"), tyro.conf.UseAppendAction] = ()
    """loop, files, heavy or bursts; repeat for more. Without any: all four."""
    policy: Annotated[str, tyro.conf.arg(metavar="RULE")] = "wcmp"
    """The rule that the balancers follow. Those that even out the load leave little to tell."""
    seeds: Annotated[str, tyro.conf.arg(metavar="A:B")] = "0:20"
    """Episodes with seeds A, A+1, ..., B-1 for each kind of traffic."""
    live: common.Quiet = False
    """On a testbed of real servers, in real time; as root."""
    name: Annotated[str, tyro.conf.arg(metavar="NAME")] = "steelyard"
    """Of the testbed."""
    quiet: common.Quiet = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Record and write."""
        from steelyard.benchmarks import dataset

        target = results.check_file("--out", self.out)
        if target.suffix != _SUFFIX:
            raise UserError(f"--out: {target} must end in {_SUFFIX}")
        scenario = common.load_scenarios([self.scenario], self.overrides)[0]
        listed = dataset.plans(
            scenario, self.traffic or tuple(dataset.TRAFFIC), common.parse_seeds(self.seeds)
        )
        scenario.to_rule(self.policy)
        tell = (lambda done, total, what: None) if self.quiet else _progress
        with self._player(scenario) as play:
            data = dataset.record(listed, play, tell)
        facts = {
            **results.provenance(_command_line("record", self)),
            "scenario": scenario.to_dict(),
            "where": "live" if self.live else "simulated",
        }
        dataset.write(target, data, facts)
        if not self.quiet:
            print(f"wrote {target}: {len(data['step']):,} rows of {len(listed)} episodes")
        return 0

    def _player(self, scenario: Scenario) -> Any:
        from steelyard.benchmarks import dataset

        if not self.live:
            return nullcontext(lambda plan: dataset.simulate(plan, self.policy))
        from steelyard.benchmarks import dataset_live

        return dataset_live.playing(self.name, scenario, self.policy)


@dataclass(kw_only=True)
class Score:
    """Train models on a dataset, and score them on seeds that they were not trained on.

    A regressor of each server's load (now and 2 s ahead) by scikit-learn and by MLB's GRU in PyTorch, and a
    classifier of traffic. Example:
    steelyard dataset score runs/simulated.parquet --test runs/live.parquet --out scores
    """

    file: DatasetFile
    """The dataset to learn from."""
    test: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Another dataset, for models of the whole of the first."""
    out: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Also write table.md and scores.json there."""
    quiet: common.Quiet = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Learn, score, print, write."""
        from steelyard.benchmarks import dataset, dataset_models, dataset_scores

        dataset_models.need_sklearn()
        directory = None if self.out is None else results.check_directory("--out", self.out)
        began = time.monotonic()
        data, facts = dataset.read(self.file)
        tested, test_facts = (None, None) if self.test is None else dataset.read(self.test)
        test_series = None if tested is None else dataset_models.series(tested)
        test_flat = None if tested is None else dataset_models.flat(tested)
        with dataset_models.one_thread():
            load = dataset_scores.score_load(dataset_models.series(data), test_series)
            scores: dict[str, Any] = {"load": load}
            if len(set(data["traffic"])) > 1:
                scores["traffic"] = dataset_scores.score_traffic(dataset_models.flat(data), test_flat)
        text = dataset_scores.page(scores)
        if directory is not None:
            results.make_directory("--out", directory)
            facts_of = {"dataset": facts, "test": test_facts, "wall_s": round(time.monotonic() - began, 1)}
            origin = results.provenance(_command_line("score", self)) | facts_of
            results.write_json("--out", directory / "scores.json", scores | {"origin": origin})
            results.write_file("--out", directory / "table.md", text.encode())
        if not self.quiet:
            print(text, end="")
        return 0


Action = Annotated[Record, tyro.conf.subcommand("record")] | Annotated[Score, tyro.conf.subcommand("score")]


@dataclass
class Dataset:
    """What balancers measure as a dataset, the load of the servers beside it, and models that tell it."""

    action: tyro.conf.OmitSubcommandPrefixes[Action]

    def run(self) -> int:
        """Do it; the exit status."""
        return self.action.run()


def _command_line(action: str, options: Record | Score) -> str:
    text = results.command_line("dataset", options).replace(" --file ", " ", 1)
    return text.replace("steelyard dataset ", f"steelyard dataset {action} ", 1)


def _progress(done: int, total: int, what: str) -> None:
    if what:
        print(f"{done} of {total}: {what}", file=sys.stderr)
