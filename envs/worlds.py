"""Scenarios of either world by name or file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from steelyard.envs.rack_scenario import RackScenario
from steelyard.envs.scenario import Scenario
from steelyard.envs.scenario_file import CLUSTER, RACK, WORLDS, named_scenarios, read_scenario, world_of
from steelyard.envs.toml_text import Tree

AnyScenario = Scenario | RackScenario


def load_scenario(source: str | Path, overrides: Iterable[str] = ()) -> AnyScenario:
    """A named scenario or a TOML file of the world that it declares, with overrides. Raises UserError."""
    found = read_scenario(source)
    cls = RackScenario if found.world == RACK else Scenario
    return cls.from_dict(found.tree, overrides, base=found.base, name=found.name)


def scenario_from_dict(tree: Tree, overrides: Iterable[str] = ()) -> AnyScenario:
    """A scenario of the world that a tree declares. Raises UserError."""
    return (RackScenario if world_of(tree) == RACK else Scenario).from_dict(tree, overrides)


def world(scenario: AnyScenario) -> str:
    """The world that a scenario is of: `cluster` or `rack`."""
    return RACK if isinstance(scenario, RackScenario) else CLUSTER


def all_scenario_names() -> list[str]:
    """Names of the scenarios of every world that come with the project, world by world."""
    return [name for each in WORLDS for name in named_scenarios(each)]
