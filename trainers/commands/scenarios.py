"""`steelyard scenarios`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from steelyard.envs.errors import UserError
from steelyard.envs.rack_scenario import RackScenario, rack_scenario_names
from steelyard.envs.scenario import Scenario, scenario_names
from steelyard.envs.worlds import load_scenario
from steelyard.trainers.commands.common import Overrides, print_table


@dataclass(kw_only=True)
class Scenarios:
    """List the scenarios, or show one in full.

    Without options: every named scenario with its pool or rack, offered load and description.
    """

    scenario: Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")] = None
    """Show this one as TOML, every default written out: a start for a scenario of your own."""
    overrides: Overrides = ()
    """With --scenario: change a value before it is shown, for example --set workload.arrival.rate=12."""

    def run(self) -> int:
        """Print the list or the TOML."""
        if self.scenario is not None:
            print(load_scenario(self.scenario, self.overrides).to_toml(), end="")
            return 0
        if self.overrides:
            raise UserError("--set: only with --scenario")
        clusters = [Scenario.load(name) for name in scenario_names()]
        header = ["scenario", "description", "balancers", "servers", "cpu load", "io load"]
        print_table(header, _clusters(clusters), title="clusters", left=2)
        racks = [RackScenario.load(name) for name in rack_scenario_names()]
        header = ["scenario", "description", "deciders", "servers", "workers", "load"]
        print_table(header, _racks(racks), title="racks", left=2)
        return 0


def _clusters(scenarios: list[Scenario]) -> list[list[str]]:
    rows = []
    for scenario in scenarios:
        load = scenario.offered_load()
        pool = [str(scenario.num_agents), str(scenario.num_servers)]
        loads = [f"{100 * load.cpu:.1f} %", f"{100 * load.io:.1f} %" if load.io else ""]
        rows.append([scenario.name, scenario.scenario.description, *pool, *loads])
    return rows


def _racks(scenarios: list[RackScenario]) -> list[list[str]]:
    rows = []
    for scenario in scenarios:
        workers = sum(server.workers for server in scenario.servers)
        size = [str(scenario.num_deciders), str(scenario.num_servers), str(workers)]
        load = f"{100 * scenario.offered_load():.1f} %"
        rows.append([scenario.name, scenario.scenario.description, *size, load])
    return rows
