# ruff: noqa: RUF009  (fields are declared through `item` and `table`, which return dataclasses.field)
"""Scenarios: everything that defines a game, read from TOML, checked, and handed to the native simulator.

    >>> scenario = Scenario.load("cluster-a-cpu", ["workload.arrival.rate=12"])
    >>> scenario.num_agents, scenario.num_servers
    (2, 8)

The dataclasses below are the only place of defaults. An unknown key, a missing one, or an impossible value is
a UserError: one line that names the key, the value and what is allowed. `scenario_keys()` lists every key
with its default, unit and meaning.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steelyard.envs.errors import bad_value
from steelyard.envs.rewards import MEASURES, REWARDS, check_reward
from steelyard.envs.scenario_file import CLUSTER, named_scenarios, read_scenario, refuse_world
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
from steelyard.envs.schema import FEATURE_FAMILIES
from steelyard.envs.timetable import Event, load_at, times_of_change
from steelyard.envs.toml_text import Tree, apply_override, parse_toml, write_toml
from steelyard.envs.workload import Workload

MAX_SERVERS = 4096
MAX_AGENTS = 1024
MAX_DELAY_STEPS = 1000
_LATENCY = Number(low=0, high=10)


@dataclass(frozen=True)
class OfferedLoad:
    """Work that arrives per second over what the servers can do per second, per device; 1 is saturation."""

    cpu: float = item(Number(low=0), "mean CPU demand x arrival rate / sum of workers x speed")
    io: float = item(Number(low=0), "mean IO demand x arrival rate / number of servers", 0.0)


@dataclass(frozen=True)
class About:
    """What the scenario is."""

    name: str = item(Text(200), "name in reports; the file's name if left out", "")
    description: str = item(Text(), "one line for people", "")
    offered_load: OfferedLoad | None = item(
        Table(OfferedLoad), "as stated by the author; `Scenario.offered_load()` computes it", None
    )


@dataclass(frozen=True)
class ServerGroup:
    """Servers that are alike."""

    workers: int = item(Whole(1, 65536), "CPU workers of each server")
    count: int = item(Whole(1, MAX_SERVERS), "how many such servers", 1)
    speed: float = item(Number(low=0, high=1e6, open_low=True), "work done per second and worker", 1.0)
    cpu: str = item(Choice(("fifo", "ps")), "fifo, or blocked processor sharing (Distr-LB, eq. 42)", "fifo")
    ps_cap: int = item(
        Whole(0, 1_000_000), "most flows in service at once (ps), at least workers; 0: no cap", 0
    )
    present: bool = item(Flag(), "false: not there until the timetable lets it join", True)

    def check(self, key: str) -> None:
        """Raises UserError unless all workers fit under the cap."""
        if 0 < self.ps_cap < self.workers:
            raise bad_value(f"{key}.ps_cap", self.ps_cap, f"0 or at least workers = {self.workers}")


@dataclass(frozen=True)
class Pool:
    """Balancers (the agents) and servers; every balancer reaches every server."""

    servers: tuple[ServerGroup, ...] = item(Listed(Table(ServerGroup)), "groups of servers, in order")
    balancers: int = item(Whole(1, MAX_AGENTS), "number of load balancers, one agent each", 2)
    admission_limit: int = item(
        Whole(0, 60_000), "a flow that finds more than this in its server is rejected", 64
    )
    reject_sojourn_s: float = item(
        Number(low=0, high=1e6), "sojourn with which a rejected flow counts", 40.0, "s"
    )

    def check(self, key: str) -> None:
        """Raises UserError for too many servers, or none that is present at the start."""
        count = sum(group.count for group in self.servers)
        if count > MAX_SERVERS:
            raise bad_value(f"{key}.servers", f"{count} servers in all", f"at most {MAX_SERVERS} servers")
        if not any(group.present for group in self.servers):
            raise bad_value(f"{key}.servers.0.present", False, "true for at least one group of servers")


@dataclass(frozen=True)
class Latency:
    """Uniform delays of a network hop and of processing at a node."""

    hop_low_s: float = item(_LATENCY, "least delay of a hop", 1e-4, "s")
    hop_high_s: float = item(_LATENCY, "largest delay of a hop", 1e-3, "s")
    node_low_s: float = item(_LATENCY, "least processing time at a node", 1e-6, "s")
    node_high_s: float = item(_LATENCY, "largest processing time at a node", 1e-5, "s")

    def check(self, key: str) -> None:
        """Raises UserError unless low <= high."""
        for what in ("hop", "node"):
            low, high = getattr(self, f"{what}_low_s"), getattr(self, f"{what}_high_s")
            if low > high:
                raise bad_value(f"{key}.{what}_low_s", low, f"at most {what}_high_s = {high:g}")


@dataclass(frozen=True)
class FlowTable:
    """The finite flow table of each balancer."""

    buckets: int = item(Whole(1, 1 << 24), "buckets, a power of two", 65536)
    ways: int = item(Whole(1, 64), "entries of a bucket", 4)

    def check(self, key: str) -> None:
        """Raises UserError unless buckets is a power of two."""
        if self.buckets & (self.buckets - 1):
            raise bad_value(f"{key}.buckets", self.buckets, "a power of two")


@dataclass(frozen=True)
class Observation:
    """What each balancer measures."""

    features: bool = item(
        Flag(), "reservoirs on; off, the observation holds flow counts and past actions only", True
    )
    reservoir_size: int = item(Whole(1, 128), "entries of each reservoir", 128)
    hide: tuple[str, ...] = item(
        Listed(Choice(FEATURE_FAMILIES), min_items=0), "families of features that agents read as 0", ()
    )
    delay_s: float = item(
        Number(low=0, high=1e6), "age of what agents see, at most 1000 control.step_s", 0.0, "s"
    )


@dataclass(frozen=True)
class Control:
    """When agents act."""

    step_s: float = item(Number(low=1e-6, high=3600), "time between two actions of an agent", 0.5, "s")
    actuation_delay_s: float = item(
        Number(low=0, high=3600), "from an action to its effect, at most step_s", 0.0, "s"
    )


@dataclass(frozen=True)
class Episode:
    """How long an episode is."""

    horizon_s: float = item(
        Number(low=0, high=1e7, open_low=True),
        "flows arrive until then; agents are truncated there",
        60.0,
        "s",
    )
    warmup_s: float = item(Number(low=0, high=1e7), "flows that arrive earlier are not measured", 0.0, "s")

    def check(self, key: str) -> None:
        """Raises UserError unless something is measured."""
        if self.warmup_s >= self.horizon_s:
            raise bad_value(f"{key}.warmup_s", self.warmup_s, f"below horizon_s = {self.horizon_s:g}")


@dataclass(frozen=True)
class Rule:
    """Parameters of the rules that have them."""

    weights: tuple[float, ...] | None = item(
        Listed(Number(low=1e-4, high=65535)), "weight of each server; workers x speed if left out", None
    )
    interval_s: float | None = item(
        Number(low=0, high=1e6),
        "refresh of awcmp and charon weights; 0: every step; the rule's own if left out",
        None,
        "s",
    )
    noise: float | None = item(
        Number(low=0, high=999_999),
        "least_load_noise: half width of the noise, in flows; the rule's own if left out",
        None,
    )
    decay_s: float | None = item(
        Number(low=1e-6, high=1e6), "peak_ewma: mean life of its latency average; 10 if left out", None, "s"
    )
    newest: float | None = item(
        Number(low=1e-6, high=1), "c3: weight of the newest reply in its averages; 0.9 if left out", None
    )
    probes: float | None = item(Number(low=0, high=16), "prequal: probes per flow; 3 if left out", None)
    probe_age_s: float | None = item(
        Number(low=0, high=1e6), "prequal: answers older than this are dropped; 1 if left out", None, "s"
    )
    rif_quantile: float | None = item(
        Number(low=0, high=1), "prequal: hot above this quantile of flows; 0.84 if left out", None
    )
    cycle_actors: bool = item(
        Flag(), "balancer i follows actor i mod K of a policy of K actors; false: K is 1 or all", False
    )


@dataclass(frozen=True)
class Reward:
    """What agents are paid; see envs/rewards.py."""

    kind: str = item(Choice(tuple(REWARDS)), "reward function", "vbf")
    measure: str = item(Choice(tuple(MEASURES)), "the load vector that it sees", "durations")

    def check(self, key: str) -> None:
        """Raises UserError unless the reward is defined on the measure."""
        check_reward(self.kind, self.measure, key)


@dataclass(frozen=True)
class Scenario:
    """One game, complete. Make one with `load`, `from_toml` or `from_dict`; they check everything."""

    pool: Pool = item(Table(Pool), "balancers and servers")
    workload: Workload = item(Table(Workload), "arrivals and demands")
    scenario: About = table(About, "what it is")
    latency: Latency = table(Latency, "network and node delays")
    flow_table: FlowTable = table(FlowTable, "flow table of each balancer")
    observation: Observation = table(Observation, "what balancers measure")
    control: Control = table(Control, "when agents act")
    episode: Episode = table(Episode, "length of an episode")
    rule: Rule = table(Rule, "parameters of rules")
    reward: Reward = table(Reward, "what agents are paid")
    events: tuple[Event, ...] = item(Listed(Table(Event), min_items=0), "timetable", ())

    @staticmethod
    def load(source: str | Path, overrides: Iterable[str] = ()) -> Scenario:
        """Reads a named scenario or a TOML file, with `dotted.key=value` overrides. Raises UserError."""
        found = read_scenario(source, [CLUSTER])
        if found.world != CLUSTER:
            raise refuse_world(str(source), found.world, CLUSTER)
        return Scenario.from_dict(found.tree, overrides, base=found.base, name=found.name)

    @staticmethod
    def from_toml(text: str, overrides: Iterable[str] = ()) -> Scenario:
        """Reads TOML text. Raises UserError."""
        return Scenario.from_dict(parse_toml(text, "the scenario"), overrides)

    @staticmethod
    def from_dict(
        tree: Tree, overrides: Iterable[str] = (), *, base: Path | None = None, name: str = ""
    ) -> Scenario:
        """Reads a tree as TOML gives it; `base` is the folder of relative trace files. Raises UserError."""
        overrides = list(overrides)
        if overrides:
            tree = copy.deepcopy(tree)
            for override in overrides:
                apply_override(tree, override)
        made = read_table(Scenario, tree, "")
        about = replace(made.scenario, name=made.scenario.name or name or "unnamed")
        if overrides:  # the author's statement no longer describes it
            about = replace(about, offered_load=None)
        arrival = made.workload.arrival.located(base)
        return replace(made, scenario=about, workload=replace(made.workload, arrival=arrival))

    def with_overrides(self, overrides: Iterable[str]) -> Scenario:
        """The same with `dotted.key=value` overrides. Raises UserError."""
        return Scenario.from_dict(self.to_dict(), overrides)

    def check(self, key: str) -> None:
        """Checks across tables. Raises UserError."""
        weights = self.rule.weights
        if weights is not None and len(weights) != self.num_servers:
            allowed = f"a list of {self.num_servers} numbers, one for each server; {len(weights)} given"
            raise bad_value("rule.weights", list(weights), allowed)
        if self.control.step_s > self.episode.horizon_s:
            horizon = self.episode.horizon_s
            raise bad_value("control.step_s", self.control.step_s, f"at most episode.horizon_s = {horizon:g}")
        if self.control.actuation_delay_s > self.control.step_s:
            delay, step = self.control.actuation_delay_s, self.control.step_s
            raise bad_value("control.actuation_delay_s", delay, f"at most control.step_s = {step:g}")
        if self.observation.delay_s > MAX_DELAY_STEPS * self.control.step_s:
            allowed = f"at most {MAX_DELAY_STEPS} control.step_s = {MAX_DELAY_STEPS * self.control.step_s:g}"
            raise bad_value("observation.delay_s", self.observation.delay_s, allowed)
        for index, event in enumerate(self.events):
            event.check_targets(f"events.{index}", self.num_servers, self.num_agents)
            if event.kind == "arrival_scale" and self.workload.arrival.kind == "trace":
                allowed = "another kind for a trace, whose rate is set by workload.arrival.time_scale"
                raise bad_value(f"events.{index}.kind", event.kind, allowed)

    @property
    def name(self) -> str:
        return self.scenario.name

    @property
    def num_agents(self) -> int:
        return self.pool.balancers

    @property
    def num_servers(self) -> int:
        return sum(group.count for group in self.pool.servers)

    @property
    def servers(self) -> tuple[ServerGroup, ...]:
        """One entry per server, groups written out."""
        return tuple(group for group in self.pool.servers for _ in range(group.count))

    def configured_weights(self) -> list[float]:
        """Weights that rules use, (num_servers,): `rule.weights`, else workers x speed of each server."""
        if self.rule.weights is not None:
            return list(self.rule.weights)
        return [server.workers * server.speed for server in self.servers]

    def offered_load(self, at_s: float = 0.0) -> OfferedLoad:
        """Offered load at a time of the timetable; ranges count at their worst. Raises UserError for a bad
        trace.
        """
        return OfferedLoad(*load_at(self.servers, self.workload, self.events, at_s))

    def peak_load(self) -> OfferedLoad:
        """The largest offered load that any seed can meet by the timetable, device by device."""
        loads = [self.offered_load(at_s) for at_s in times_of_change(self.events, self.episode.horizon_s)]
        return OfferedLoad(max(load.cpu for load in loads), max(load.io for load in loads))

    def to_dict(self) -> Tree:
        """A tree of every value, defaults included, for manifests; `from_dict` is its inverse."""
        return to_tree(self)

    def to_toml(self) -> str:
        """TOML text of `to_dict`."""
        return write_toml(self.to_dict())

    def to_native(self) -> Any:
        """The native configuration (native.ClusterConfig), checked. Raises UserError for a bad trace file."""
        from steelyard.envs.scenario_native import cluster_config

        return cluster_config(self)

    def to_rule(self, name: str) -> Any:
        """The native rule `name` with this scenario's parameters (native.RuleConfig). Raises UserError for an
        unknown name.
        """
        from steelyard.envs.scenario_native import rule_config

        return rule_config(self, name)


def scenario_names() -> list[str]:
    """Names of the scenarios that come with the project."""
    return list(named_scenarios(CLUSTER))


def scenario_keys() -> list[tuple[str, str, str, str, str]]:
    """Every key of a scenario: (dotted key, what is allowed, default, unit, meaning)."""
    return list(keys_of(Scenario))
