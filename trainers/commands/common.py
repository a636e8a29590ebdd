"""Options that commands share, their checks, and the progress bar."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro

from steelyard.envs.errors import UserError, shown
from steelyard.trainers import results

if TYPE_CHECKING:
    from steelyard.agents.rules import Contender
    from steelyard.envs.scenario import Scenario
    from steelyard.envs.worlds import AnyScenario
    from steelyard.trainers.evaluation import OnProgress, Study

Named = TypeVar("Named", "Scenario", "AnyScenario")
Convention = Literal["uncensored", "peer"]
ScenarioName = Annotated[str, tyro.conf.arg(metavar="NAME|FILE")]
Overrides = Annotated[
    tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE"), tyro.conf.UseAppendAction
]
OutputFile = Annotated[str | None, tyro.conf.arg(metavar="FILE")]
OutputDirectory = Annotated[str | None, tyro.conf.arg(metavar="DIR")]
Quiet = Annotated[bool, tyro.conf.FlagCreatePairsOff]
Threads = Annotated[int, tyro.conf.arg(metavar="N")]

SEED_END = 2**63
"""Evaluation seeds lie below; seeds with the top bit set are for training."""
MAX_EPISODES = 1_000_000
"""Episodes of one policy on one scenario: their records are kept in memory."""
_MAX_THREADS = 1024
_WIDEST = 240  # columns of a table; it takes what it needs


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def check_threads(threads: int) -> int:
    """threads, if that many can be started."""
    if not 1 <= threads <= _MAX_THREADS:
        raise UserError(f"--threads: {threads}; allowed: 1 to {_MAX_THREADS}")
    return threads


def parse_seeds(text: str) -> range:
    """Evaluation seeds A, A+1, ..., B-1 of "A:B"."""
    match = re.fullmatch("([0-9]{1,30}):([0-9]{1,30})", text)
    first, end = (int(match[1]), int(match[2])) if match else (0, 0)
    if not first < end <= SEED_END or end - first > MAX_EPISODES:
        allowed = f"A:B with 0 <= A < B <= 2^63, at most {MAX_EPISODES:,} seeds"
        raise UserError(f"--seeds: {shown(text)}; allowed: {allowed}")
    return range(first, end)


def load_scenarios(names: Sequence[str], overrides: Sequence[str]) -> list[Scenario]:
    """Scenarios of clusters with the overrides of `--set` applied to each; names must differ."""
    from steelyard.envs.scenario import Scenario

    return _once([Scenario.load(name, list(overrides)) for name in names])


def load_one_world(names: Sequence[str], overrides: Sequence[str]) -> Sequence[AnyScenario]:
    """As load_scenarios, but of clusters or racks; all must be of one world."""
    from steelyard.envs import worlds

    scenarios = _once([worlds.load_scenario(name, list(overrides)) for name in names])
    for scenario in scenarios[1:]:
        first, other = worlds.world(scenarios[0]), worlds.world(scenario)
        if first != other:
            raise UserError(
                f"--scenario: {scenarios[0].name!r} is of the world {first!r} and {scenario.name!r} of "
                f"{other!r}; give scenarios of one world"
            )
    return scenarios


def _once(scenarios: list[Named]) -> list[Named]:
    seen = set()
    for scenario in scenarios:
        if scenario.name in seen:
            raise UserError(f"--scenario: {scenario.name!r} is given twice; give each scenario once")
        seen.add(scenario.name)
    return scenarios


@dataclass(kw_only=True)
class StudyOptions:
    """Options of the commands that run policies on scenarios."""

    scenario: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME|FILE"), tyro.conf.UseAppendAction] = ()
    """A named scenario (see `steelyard scenarios`) or a TOML file; repeat for more."""
    policy: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="RULE|RUN_DIR|BLOB"), tyro.conf.UseAppendAction
    ] = ()
    """A rule, tuned-sed, a run directory of `steelyard train`, a directory of them (one learner, several
    training seeds), or an exported policy (blob or .so); repeat for more. LABEL=POLICY gives it a name. On
    racks a rule of racks, with parameters if need be: power_of_d:d=3,increments=true."""
    overrides: Overrides = ()
    """Change a value of every scenario, for example --set pool.balancers=4 or --set rule.weights=[2,1]."""
    seeds: Annotated[str, tyro.conf.arg(metavar="A:B")] = "0:50"
    """Evaluation seeds A, A+1, ..., B-1."""
    json: OutputFile = None
    """Write one record per episode to this file."""
    convention: Convention = "uncensored"
    """uncensored: every flow or task that arrives, run to completion; peer: only those completed by the
    horizon."""
    threads: Threads = field(default_factory=usable_cores)
    """Episodes simulated at the same time."""
    quiet: Quiet = False
    """Print nothing but errors."""

    def json_file(self) -> Path | None:
        """Where records go, checked."""
        return None if self.json is None else results.check_file("--json", self.json)

    def study(self, default: Mapping[str, Sequence[str]]) -> Study:
        """The study that the options ask for, checked; `default` policies by world, if none is named."""
        from steelyard.envs.worlds import world
        from steelyard.trainers.evaluation import Study

        if not self.scenario:
            raise UserError("--scenario: none given; name one of `steelyard scenarios` or a TOML file")
        scenarios = load_one_world(self.scenario, self.overrides)
        policies = self.with_references(world(scenarios[0]), self.policy or default[world(scenarios[0])])
        return Study(
            scenarios=scenarios,
            contenders=parse_policies(world(scenarios[0]), policies),
            seeds=parse_seeds(self.seeds),
            convention=self.convention,
            threads=check_threads(self.threads),
        )

    def with_references(self, world: str, policies: Sequence[str]) -> Sequence[str]:
        """The policies, and those that a command always runs."""
        del world
        return policies


def parse_policies(world: str, policies: Sequence[str]) -> list[Contender]:
    """The contenders by the rules of a world. ValueError (one line) for what is none of them."""
    if world == "rack":
        from steelyard.trainers import rack_policies

        return rack_policies.parse_policies(policies)
    from steelyard.agents import rules
    from steelyard.envs.rack_native import rack_rule_names

    for policy in policies:
        name = policy.partition(":")[0]
        if name in rack_rule_names() and name not in rules.rule_names():
            raise UserError(f"policy {name!r}: a rule of racks; the scenario is a cluster")
    return rules.parse_policies(policies)


def study_manifest(name: str, command: StudyOptions, study: Study) -> dict[str, Any]:
    """What it takes to repeat a study."""
    members = {member.name: member.source for contender in study.contenders for member in contender.members}
    line = results.command_line(name, command)
    return results.manifest(line, study.scenarios, members, study.seeds, convention=study.convention)


@contextmanager
def progress_bar(title: str, quiet: bool) -> Iterator[OnProgress]:
    """A function (done, total, what) that draws a bar on stderr, unless quiet or stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, what="")

        def update(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, what=what)

        yield update


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", left: int = 1) -> None:
    """Print a table on stdout, the first `left` columns left-aligned; nothing is cut on a narrow terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=_WIDEST, highlight=False, markup=False).print(table)
