# ruff: noqa: RUF009  (fields are declared through `item` and `table`, which return dataclasses.field)
"""Scenarios of the rack world: servers of a few workers each, microsecond tasks, migration and stealing.

    >>> scenario = RackScenario.load("rack-hom-8x8", ["workload.load=0.9"])
    >>> scenario.num_servers, round(scenario.arrival_rate())
    (8, 1152000)

As in scenario.py, the dataclasses below are the only place of defaults, and bad input is a UserError of one
line. A rack scenario is told from one of a cluster by `world = "rack"` in its table `[scenario]`.
`rack_scenario_keys()` lists every key with its default, unit and meaning.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steelyard.envs.errors import bad_value
from steelyard.envs.rack_timetable import RackEvent, capacity_at, check_split, rate_factor_at
from steelyard.envs.rack_workload import Network, RackWorkload
from steelyard.envs.scenario_file import RACK, named_scenarios, read_scenario, refuse_world
from steelyard.envs.scenario_parse import (
    Choice,
    Flag,
    Listed,
    Number,
    Table,
    Text,
    Whole,
    item,
    keys_of,
    read_table,
    table,
    to_tree,
)
from steelyard.envs.toml_text import Tree, apply_override, parse_toml, write_toml

MAX_SERVERS = 4096
INFOS = ("exact", "broadcast", "piggyback", "outstanding")


@dataclass(frozen=True)
class RackAbout:
    """What the scenario is."""

    world: str = item(Choice((RACK,)), "the world that it is of")
    name: str = item(Text(200), "name in reports; the file's name if left out", "")
    description: str = item(Text(), "one line for people", "")


@dataclass(frozen=True)
class RackServers:
    """Servers that are alike."""

    workers: int = item(Whole(1, 4096), "workers of each server")
    count: int = item(Whole(1, MAX_SERVERS), "how many such servers", 1)
    speed: float = item(Number(low=0, high=1e6, open_low=True), "work done per second and worker", 1.0)


@dataclass(frozen=True)
class Rack:
    """Servers, what they do inside, and where tasks come in."""

    servers: tuple[RackServers, ...] = item(Listed(Table(RackServers)), "groups of servers, in order")
    dispatchers: int = item(
        Whole(0, 1024), "who decides: so many dispatchers; 0: the servers, where tasks arrive", 0
    )
    discipline: str = item(
        Choice(("fcfs", "ps", "quantum", "darc")),
        "inside a server: one line for all workers; processor sharing; round robin of quanta; cores by type",
        "fcfs",
    )
    quantum_s: float = item(Number(low=0, high=1e3), "a turn under quantum, more than 0 there", 0.0, "s")
    switch_s: float = item(Number(low=0, high=1e3), "worker's time lost at a preemption (quantum)", 0.0, "s")
    darc_within: float = item(
        Number(low=1, high=1e9), "darc: types whose means are within this factor share a group", 1.2
    )
    darc_shift: float = item(
        Number(low=0, high=1e9, open_low=True),
        "darc: plans anew when a group's demand moved by more than this share",
        0.1,
    )
    darc_window: int = item(
        Whole(1, 10**9), "darc: completions of a server between looks at its demand", 10_000
    )
    steal_threshold: int = item(
        Whole(0, 10**9), "a server may steal when at most this many tasks wait there", 0
    )
    steal_least: int = item(Whole(1, 10**9), "and gets one where at least this many wait", 1)
    steal_from: str = item(Choice(("oldest", "newest")), "which of the waiting is stolen", "oldest")

    def check(self, key: str) -> None:
        """Raises UserError for too many servers, or a quantum of no length."""
        count = sum(group.count for group in self.servers)
        if count > MAX_SERVERS:
            raise bad_value(f"{key}.servers", f"{count} servers in all", f"at most {MAX_SERVERS} servers")
        if self.discipline == "quantum" and self.quantum_s == 0:
            raise bad_value(f"{key}.quantum_s", self.quantum_s, "a number > 0 for discipline 'quantum'")


@dataclass(frozen=True)
class Loads:
    """How those who decide know the load of servers: it decides how well rules do."""

    info: str = item(
        Choice(INFOS),
        "exact: as it is; broadcast: every period; piggyback: with each reply; outstanding: tasks sent and "
        "not answered",
        "broadcast",
    )
    measure: str = item(
        Choice(("tasks", "waiting", "work")),
        "tasks in a server, those that wait, or remaining work per worker and speed",
        "tasks",
    )
    broadcast_period_s: float = item(
        Number(low=1e-9, high=1e3), "period of the broadcasts, and length of a window", 100e-6, "s"
    )
    broadcast_phase: str = item(
        Choice(("together", "staggered", "random")), "when each server broadcasts in the period", "together"
    )
    own_exact: bool = item(Flag(), "a server knows its own load at any instant", True)
    count_in_flight: bool = item(Flag(), "exact: tasks on their way count at their server", True)
    rate_ewma: float = item(
        Number(low=0, high=1, open_low=True),
        "weight of the newest in a server's estimate of its rate",
        0.05,
    )
    rate_of_inverses: bool = item(Flag(), "mean of 1/service (thesis) instead of 1/(mean of service)", False)


@dataclass(frozen=True)
class RackEpisode:
    """How long an episode is."""

    horizon_s: float = item(
        Number(low=0, high=1e6, open_low=True),
        "tasks arrive until then; agents are truncated",
        1.0,
        "s",
    )
    warmup_s: float = item(Number(low=0, high=1e6), "tasks that arrive earlier are not measured", 0.1, "s")

    def check(self, key: str) -> None:
        """Raises UserError unless something is measured."""
        if self.warmup_s >= self.horizon_s:
            raise bad_value(f"{key}.warmup_s", self.warmup_s, f"below horizon_s = {self.horizon_s:g}")


@dataclass(frozen=True)
class RackRuleKeys:
    """Parameters of rules. What is left out is the rule's own; RULE:KEY=VALUE sets it for one policy."""

    d: int | None = item(Whole(1, 64), "power_of_d, racksched: servers drawn; sparrow: reservations; 2", None)
    threshold: float | None = item(
        Number(low=0, high=1e9), "jbt: a server below it will do, in tasks (or in s of work); 30", None
    )
    first: bool | None = item(Flag(), "ties, and jbt's choice: the first, not a random one; false", None)
    increments: bool | None = item(
        Flag(), "who decides adds what it sends to the load that it knows; false", None
    )
    keep: bool | None = item(Flag(), "a server that is among the best itself keeps the task; false", None)
    estimated_rates: bool | None = item(
        Flag(), "sed: rates as servers estimate them, not workers x speed; false", None
    )
    bound: int | None = item(Whole(1, 10**6), "jbsq: tasks in a server per worker; 2", None)
    rtt_s: float | None = item(Number(low=0, high=1e3), "central rules: to a server and back; 0", None, "s")
    info: str | None = item(Choice(INFOS), "instead of loads.info, where the rule leaves it open", None)
    steal: str | None = item(
        Choice(("none", "random", "longest")), "whom an idle server asks for work; none", None
    )
    weights: tuple[float, ...] | None = item(
        Listed(Number(low=1e-4, high=65535)), "weight of each server, instead of workers x speed", None
    )


@dataclass(frozen=True)
class Game:
    """The game of `rack_v0`: Malcolm's, with the servers as agents."""

    reward: str = item(
        Choice(("payoff", "phi")), "payoff: -I - C_i of each server; phi: the potential, for all", "payoff"
    )
    migration_cost: float = item(Number(low=0, high=1e6), "C of one migration", 1e-4)
    steal_cost: float = item(Number(low=0, high=1e6), "C of one request for work", 1e-4)
    load_unit_s: float = item(
        Number(low=1e-9, high=1e3), "unit of the loads x in observations and rewards", 100e-6, "s"
    )
    logit_scale: float = item(
        Number(low=0, high=40, open_low=True), "logits are this times the action in [-1, 1]", 5.0
    )
    favour: float = item(
        Number(low=0, high=1, open_low=True),
        "discrete actions: probability of the favoured server",
        0.5,
    )


@dataclass(frozen=True)
class RackScenario:
    """One rack, complete. Make one with `load`, `from_toml` or `from_dict`; they check everything."""

    scenario: RackAbout = item(Table(RackAbout), "what it is")
    rack: Rack = item(Table(Rack), "servers")
    workload: RackWorkload = item(Table(RackWorkload), "arrivals and service times")
    network: Network = table(Network, "delays and costs of moves")
    loads: Loads = table(Loads, "what is known of loads")
    episode: RackEpisode = table(RackEpisode, "length of an episode")
    rule: RackRuleKeys = table(RackRuleKeys, "parameters of rules")
    game: Game = table(Game, "the game of the environment")
    events: tuple[RackEvent, ...] = item(Listed(Table(RackEvent), min_items=0), "timetable", ())

    @staticmethod
    def load(source: str | Path, overrides: Iterable[str] = ()) -> RackScenario:
        """Reads a named scenario or a TOML file, with `dotted.key=value` overrides. Raises UserError."""
        found = read_scenario(source, [RACK])
        if found.world != RACK:
            raise refuse_world(str(source), found.world, RACK)
        return RackScenario.from_dict(found.tree, overrides, base=found.base, name=found.name)

    @staticmethod
    def from_toml(text: str, overrides: Iterable[str] = ()) -> RackScenario:
        """Reads TOML text. Raises UserError."""
        return RackScenario.from_dict(parse_toml(text, "the scenario"), overrides)

    @staticmethod
    def from_dict(
        tree: Tree, overrides: Iterable[str] = (), *, base: Path | None = None, name: str = ""
    ) -> RackScenario:
        """Reads a tree as TOML gives it; `base` is the folder of relative trace files. Raises UserError."""
        overrides = list(overrides)
        if overrides:
            tree = copy.deepcopy(tree)
            for override in overrides:
                apply_override(tree, override)
        made = read_table(RackScenario, tree, "")
        about = replace(made.scenario, name=made.scenario.name or name or "unnamed")
        workload = made.workload
        if workload.arrival is not None:
            workload = replace(workload, arrival=workload.arrival.located(base))
        return replace(made, scenario=about, workload=workload)

    def with_overrides(self, overrides: Iterable[str]) -> RackScenario:
        """The same with `dotted.key=value` overrides. Raises UserError."""
        return RackScenario.from_dict(self.to_dict(), overrides)

    def check(self, key: str) -> None:
        """Checks across tables. Raises UserError."""
        weights, split = self.rule.weights, self.workload.split
        if weights is not None and len(weights) != self.num_servers:
            allowed = f"a list of {self.num_servers} numbers, one for each server; {len(weights)} given"
            raise bad_value("rule.weights", list(weights), allowed)
        if split is not None:
            check_split("workload.split", split, self.num_deciders)
        period = self.loads.broadcast_period_s
        if period > self.episode.horizon_s:
            allowed = f"at most episode.horizon_s = {self.episode.horizon_s:g}"
            raise bad_value("loads.broadcast_period_s", period, allowed)
        arrival = self.workload.arrival
        for index, event in enumerate(self.events):
            event.check_targets(f"events.{index}", self.num_servers, self.num_deciders)
            if event.kind == "arrival_scale" and arrival is not None and arrival.kind == "trace":
                allowed = "another kind for a trace, whose rate is set by workload.arrival.time_scale"
                raise bad_value(f"events.{index}.kind", event.kind, allowed)

    @property
    def name(self) -> str:
        return self.scenario.name

    @property
    def num_servers(self) -> int:
        return sum(group.count for group in self.rack.servers)

    @property
    def num_agents(self) -> int:
        """Agents of `rack_v0`: the servers."""
        return self.num_servers

    @property
    def num_deciders(self) -> int:
        """Where tasks come in: dispatchers, or servers."""
        return self.rack.dispatchers or self.num_servers

    @property
    def servers(self) -> tuple[RackServers, ...]:
        """One entry per server, groups written out."""
        return tuple(group for group in self.rack.servers for _ in range(group.count))

    def configured_rate(self) -> float:
        """Long-run tasks per second without the timetable. Raises UserError for a bad trace."""
        arrival = self.workload.arrival
        if arrival is not None:
            return arrival.mean_rate(arrival.load_trace())
        return self.workload.load * capacity_at(self.servers, (), 0.0) / self.workload.mean_service_s()

    def arrival_rate(self, at_s: float = 0.0) -> float:
        """Long-run tasks per second at a time of the timetable. Raises UserError for a bad trace."""
        return self.configured_rate() * rate_factor_at(self.events, at_s)

    def offered_load(self, at_s: float = 0.0) -> float:
        """Arrival rate x mean service / capacity at a time of the timetable; 1 is saturation."""
        work = self.arrival_rate(at_s) * self.workload.mean_service_s()
        return work / capacity_at(self.servers, self.events, at_s)

    def peak_load(self) -> float:
        """The largest offered load by the timetable."""
        times = {0.0, *(event.t_s for event in self.events if event.t_s < self.episode.horizon_s)}
        return max(self.offered_load(at_s) for at_s in times)

    def to_dict(self) -> Tree:
        """A tree of every value, defaults included, for manifests; `from_dict` is its inverse."""
        return to_tree(self)

    def to_toml(self) -> str:
        """TOML text of `to_dict`."""
        return write_toml(self.to_dict())

    def to_native(self) -> Any:
        """The native configuration (native.RackConfig), checked. Raises UserError for a bad trace file."""
        from steelyard.envs.rack_native import rack_config

        return rack_config(self)

    def to_rule(self, name: str) -> Any:
        """The native rule (native.RackRule): a name, or RULE:KEY=VALUE,... whose keys are those of [rule] and
        go before them. Raises UserError for an unknown name, key or value.
        """
        from steelyard.envs.rack_native import rack_rule

        return rack_rule(self, name)


def rack_scenario_names() -> list[str]:
    """Names of the rack scenarios that come with the project."""
    return list(named_scenarios(RACK))


def rack_scenario_keys() -> list[tuple[str, str, str, str, str]]:
    """Every key of a rack scenario: (dotted key, what is allowed, default, unit, meaning)."""
    return list(keys_of(RackScenario))
