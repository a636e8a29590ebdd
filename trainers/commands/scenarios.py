"""`steelyard scenarios`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from steelyard.envs.scenario import Scenario, scenario_names
from steelyard.trainers.commands.common import Overrides, print_table


@dataclass(kw_only=True)
class Scenarios:
    """List the scenarios, or show one in full.

    Without options: every named scenario with its pool, offered load and description.
    """

    scenario: Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")] = None
    """Show this one as TOML, every default written out: a start for a scenario of your own."""
    overrides: Overrides = ()
    """With --scenario: change a value before it is shown, for example --set workload.arrival.rate=12."""

    def run(self) -> int:
        """Print the list or the TOML."""
        if self.scenario is not None:
            print(Scenario.load(self.scenario, self.overrides).to_toml(), end="")
            return 0
        loaded = [Scenario.load(name, self.overrides) for name in scenario_names()]
        print_table(
            ["scenario", "description", "balancers", "servers", "cpu load", "io load"], _rows(loaded), left=2
        )
        return 0


def _rows(scenarios: list[Scenario]) -> list[list[str]]:
    rows = []
    for scenario in scenarios:
        load = scenario.offered_load()
        pool = [str(scenario.num_agents), str(scenario.num_servers)]
        loads = [f"{100 * load.cpu:.1f} %", f"{100 * load.io:.1f} %" if load.io else ""]
        rows.append([scenario.name, scenario.scenario.description, *pool, *loads])
    return rows
