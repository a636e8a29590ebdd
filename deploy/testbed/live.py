"""Policies on a testbed: contenders x seeds, one row of results for each episode.

`steelyard testbed run` prints and writes the rows. `steelyard evaluate --live` and `steelyard train --live`
find this module by the entry point `testbed` of the group `steelyard.live`: `play_study` gives the rows,
which are summarised as those of the simulator, and `learning_ground` a place to learn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from steelyard.agents import rules
from steelyard.deploy.testbed import balancers, ground, measure, play, site
from steelyard.deploy.testbed.network import DEFAULT_PREFIX
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario

CONVENTION = "uncensored"
OnProgress = Callable[[int, int, str], None]
"""Called with (episodes done, episodes in all, what runs now)."""


@dataclass(frozen=True)
class Options:
    """How a testbed plays."""

    name: str = DEFAULT_PREFIX
    """Of the testbed."""
    dataplanes: tuple[str, ...] = (balancers.DEFAULT,)
    """What forwards, of balancers.DATAPLANES. Of several, those that only hash play just what they can."""
    keep: bool = True
    """Leave the testbed up if it was brought up here."""
    profile: str | None = None
    """What the servers serve (profiles.NAMES); None: what those of the testbed that is up do, else pages."""


@dataclass(frozen=True)
class Turn:
    """Who plays the episode of a seed, and by what."""

    contender: rules.Contender
    run: int
    dataplane: str

    @property
    def member(self) -> rules.Member:
        """The rule or policy file."""
        return self.contender.members[self.run]


def silent(done: int, total: int, what: str) -> None:
    """Progress that is shown nowhere."""


def run_live(
    scenarios: Sequence[Scenario],
    contenders: Sequence[rules.Contender],
    seeds: range,
    options: Options = Options(),
    on_progress: OnProgress = silent,
) -> list[dict[str, Any]]:
    """One row per scenario, turn and seed, in that order; the testbed is brought up if it is not.

    A row has the keys of a simulated one (trainers.evaluation.run_cells) and `dataplane`, `lag_p99_s` (how
    late requests left), `service_mean_s` (CPU time of a request), `server_flows`, `problems`, `lb_cpu_share`
    (of one processor, all balancers together). UserError before anything is played for a policy or scenario
    that cannot be.
    """
    who = turns(contenders, options.dataplanes)
    for scenario in scenarios:
        site.check_scenario(scenario)
        for turn in who:
            balancers.check(scenario, turn.member.source, turn.dataplane)
    total = len(scenarios) * len(who) * len(seeds)
    rows: list[dict[str, Any]] = []
    for scenario in scenarios:
        played: dict[tuple[int, int], dict[str, Any]] = {}
        with _up(scenario, options) as place:
            # All turns play a seed one after another, so that a machine that slows down does so for all.
            for seed in seeds:
                for index, turn in enumerate(who):
                    what = f"{scenario.name} {turn.member.name} by {turn.dataplane}, seed {seed}"
                    on_progress(len(rows) + len(played), total, what)
                    metrics = run_episode(place, scenario, turn.member.source, seed, turn.dataplane)
                    names = {"policy": turn.member.name, "contender": turn.contender.label, "run": turn.run}
                    fixed = {"scenario": scenario.name, **names, "seed": seed}
                    played[index, seed] = {**fixed, **metrics, "convention": CONVENTION}
        rows += [played[key] for key in sorted(played)]
    on_progress(total, total, "")
    return rows


def turns(contenders: Sequence[rules.Contender], dataplanes: Sequence[str]) -> list[Turn]:
    """Every member by every dataplane; of several dataplanes only those that can run it."""
    found = [
        Turn(contender, run, dataplane)
        for contender in contenders
        for run in range(len(contender.members))
        for dataplane in dataplanes
    ]
    if len(dataplanes) == 1:
        return found
    return [turn for turn in found if balancers.can_run(turn.dataplane, turn.member.source)]


def run_episode(
    place: site.Site, scenario: Scenario, source: str, seed: int, dataplane: str
) -> dict[str, Any]:
    """The metrics of one episode under one rule or policy file."""
    with balancers.forwarding(place, scenario, source, dataplane, seed) as active:
        before_s, began = active.cpu_s(), time.monotonic()
        played = play.play(place, scenario, seed, active.watch)
        lb_cpu_share = (active.cpu_s() - before_s) / (time.monotonic() - began)
        trouble = active.trouble()
    return {
        **measure.row(scenario, played.episode),
        "dataplane": dataplane,
        "lb_cpu_share": lb_cpu_share,
        "problems": ", ".join(filter(None, [play.describe(played.problems), trouble])),
    }


def _up(scenario: Scenario, options: Options) -> AbstractContextManager[site.Site]:
    return site.borrowed(options.name, scenario, options.keep, profile=options.profile)


def play_study(
    scenarios: Sequence[Scenario],
    contenders: Sequence[rules.Contender],
    seeds: range,
    name: str,
    dataplane: str,
    profile: str | None,
    on_progress: OnProgress,
) -> list[dict[str, Any]]:
    """As run_live, on the testbed of that name; if it is not up, on one for the occasion."""
    check_contenders(contenders)
    options = Options(name, (dataplane,), keep=False, profile=profile)
    return run_live(scenarios, contenders, seeds, options, on_progress)


def learning_ground(scenario: Scenario, name: str, dataplane: str) -> AbstractContextManager[ground.Ground]:
    """As ground.ground."""
    return ground.ground(scenario, name, dataplane)


def parse(policies: Sequence[str]) -> list[rules.Contender]:
    """Contenders by name; UserError for one that no testbed can play."""
    contenders = rules.parse_policies(policies)
    check_contenders(contenders)
    return contenders


def check_contenders(contenders: Sequence[rules.Contender]) -> None:
    """UserError for one that no testbed can play."""
    for contender in contenders:
        if contender.tuned_rule:
            raise UserError(
                f"--policy {contender.label}: tuned rules are for the simulator; set rule.weights"
            )
