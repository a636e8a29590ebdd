"""The runner of studies: scenarios x policies x seeds, by native simulation.

The arrival and demand stream of a scenario depends on (scenario, seed) alone, so policies of one study are
compared on the same flows. Learned policies run as their exported artefact, with no Python in the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from steelyard import native
from steelyard.agents import rules
from steelyard.envs.rack_scenario import RackScenario
from steelyard.envs.scenario import Scenario
from steelyard.envs.worlds import AnyScenario, world
from steelyard.trainers import rack_policies, tune
from steelyard.trainers.results import Row

UNCENSORED = "uncensored"
OnProgress = Callable[[int, int, str], None]
"""Called with (episodes done, episodes in all, what runs now)."""

_CHUNK_S = 0.5  # a native call should take about this long, so that progress and Ctrl-C stay live


@dataclass(frozen=True)
class Study:
    """What is compared with what, on which episodes; all scenarios are of one world."""

    scenarios: Sequence[AnyScenario]
    contenders: Sequence[rules.Contender]
    seeds: range
    convention: str = UNCENSORED
    threads: int = 1

    @property
    def world(self) -> str:
        """The world of its scenarios: `cluster` or `rack`."""
        return world(self.scenarios[0])


@dataclass(frozen=True)
class Cell:
    """One member on one scenario, ready to run."""

    scenario: Any
    contender: str
    member: str
    run: int
    config: Any
    """native.ClusterConfig, or RackConfig of a rack."""
    rule: Any
    """native.RuleConfig, or RackRule of a rack."""


def silent(done: int, total: int, what: str) -> None:
    """Progress that is shown nowhere."""


def prepare(study: Study, on_progress: OnProgress = silent) -> list[Cell]:
    """Every member on every scenario, loaded and checked; ValueError if a policy does not fit a scenario."""
    return list(_cells(study, on_progress))


def run_cells(study: Study, cells: Sequence[Cell], on_progress: OnProgress = silent) -> list[Row]:
    """One row per cell and seed, in that order.

    A row has scenario, policy (the member), contender, run (index of the training run), convention and all
    metrics of native.simulate, for racks of native.simulate_rack; digest (of all decisions) in hexadecimal.
    """
    total = len(cells) * len(study.seeds)
    rows: list[Row] = []
    for cell in cells:
        what = f"{cell.scenario.name} {cell.member}"
        on_progress(len(rows), total, what)
        fixed = {
            "scenario": cell.scenario.name,
            "policy": cell.member,
            "contender": cell.contender,
            "run": cell.run,
        }
        for stats in simulate_seeds(cell.config, cell.rule, study.seeds, study.threads, study.convention):
            rows += [
                {**fixed, **stat, "digest": f"{stat['digest']:016x}", "convention": study.convention}
                for stat in stats
            ]
            on_progress(len(rows), total, what)
    return rows


def simulate_seeds(
    config: Any, rule: Any, seeds: range, threads: int, convention: str
) -> Iterator[list[dict[str, Any]]]:
    """Statistics of every seed, in chunks that take about half a second each."""
    start, count = 0, threads
    while start < len(seeds):
        began = time.monotonic()
        chunk = list(seeds[start : start + count])
        yield simulate(config, rule, chunk, threads, convention)
        start += len(chunk)
        seconds = max(time.monotonic() - began, 1e-3)
        count = max(threads, min(4 * count, int(count * _CHUNK_S / seconds)))


def simulate(
    config: Any, rule: Any, seeds: Sequence[int], threads: int, convention: str
) -> list[dict[str, Any]]:
    """Statistics of every seed, in the world of the configuration."""
    if isinstance(config, native.RackConfig):
        drain = convention == UNCENSORED
        return native.simulate_rack(config, rule, list(seeds), threads=threads, drain=drain)
    return native.simulate(config, rule, list(seeds), threads=threads, convention=convention)


def member_rule(
    scenario: Scenario,
    contender: rules.Contender,
    member: rules.Member,
    convention: str,
    threads: int,
    on_progress: OnProgress = silent,
) -> native.RuleConfig:
    """What runs a member on a cluster: a rule, a tuned rule or a policy file."""
    if contender.tuned_rule:
        on_progress(0, 0, f"{scenario.name} {member.name}: weights")
        rule = scenario.to_rule(contender.tuned_rule)
        rule.weights = tune.tuned_weights(scenario, contender.tuned_rule, convention, threads)
        return rule
    if member.source in rules.rule_names():
        return scenario.to_rule(member.source)
    size = (scenario.num_servers, scenario.num_agents)
    return rules.policy_config(member.source, *size, cycle_actors=scenario.rule.cycle_actors)


def _cells(study: Study, on_progress: OnProgress) -> Iterator[Cell]:
    for scenario in study.scenarios:
        config = scenario.to_native()
        for contender in study.contenders:
            for run, member in enumerate(contender.members):
                rule = _rule(study, scenario, contender, member, config, on_progress)
                yield Cell(scenario, contender.label, member.name, run, config, rule)


def _rule(
    study: Study,
    scenario: AnyScenario,
    contender: rules.Contender,
    member: rules.Member,
    config: Any,
    on_progress: OnProgress,
) -> Any:
    if isinstance(scenario, RackScenario):
        return rack_policies.member_rule(scenario, member, config)
    return member_rule(scenario, contender, member, study.convention, study.threads, on_progress)
