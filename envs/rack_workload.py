# ruff: noqa: RUF009  (fields are declared through `item` and `table`, which return dataclasses.field)
"""Tables of a rack scenario: what arrives, service times, and what the network takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from steelyard.envs.errors import UserError, bad_value
from steelyard.envs.rack_services import SERVICES
from steelyard.envs.scenario_parse import Choice, Flag, Listed, Number, Table, item, table
from steelyard.envs.workload import Arrival, Demand

BY_TYPES = "types"
_DELAY = Number(low=0, high=1e3)
_SHARE = Number(low=0, high=65535)


@dataclass(frozen=True)
class TaskType:
    """A class of tasks, which their header tells."""

    service: Demand = item(Table(Demand), "service time at speed 1")
    ratio: float = item(
        Number(low=0, high=1e9, open_low=True), "share of arrivals, in proportion to the others'", 1.0
    )


@dataclass(frozen=True)
class RackWorkload:
    """What arrives, and how long it is served."""

    load: float = item(
        Number(low=0, high=100), "Poisson arrivals at this offered load; 0: as arrival says", 0.0
    )
    arrival: Arrival | None = item(Table(Arrival), "arrival process of tasks, with load = 0", None)
    service: str = item(
        Choice((*SERVICES, BY_TYPES)), "service times by name; types: as the list of types says", BY_TYPES
    )
    types: tuple[TaskType, ...] = item(
        Listed(Table(TaskType), min_items=0, max_items=64), "types of tasks, with service = types", ()
    )
    split: tuple[float, ...] | None = item(
        Listed(_SHARE), "share of each server or dispatcher of the arrivals; equal if left out", None
    )

    def check(self, key: str) -> None:
        """Raises UserError unless arrivals and service times are each said once."""
        if self.load == 0 and self.arrival is None:
            raise UserError(f"{key}.load is missing: must be a number > 0, unless {key}.arrival is given")
        if self.load > 0 and self.arrival is not None:
            raise bad_value(f"{key}.load", self.load, f"0 when {key}.arrival is given, which says the rate")
        if self.service == BY_TYPES and not self.types:
            raise UserError(
                f"{key}.types is missing: must be a list of types, unless {key}.service is a name"
            )
        if self.service != BY_TYPES and self.types:
            raise bad_value(f"{key}.service", self.service, f"'{BY_TYPES}' when {key}.types is given")
        for index, kind in enumerate(self.types):
            if kind.service.kind == "trace":
                allowed = "another kind; a rack does not replay recorded service times"
                raise bad_value(f"{key}.types.{index}.service.kind", "trace", allowed)

    def listed(self) -> list[tuple[float, Demand]]:
        """(ratio, service time) of each type."""
        if self.service != BY_TYPES:
            return list(SERVICES[self.service])
        return [(kind.ratio, kind.service) for kind in self.types]

    def mean_service_s(self) -> float:
        """Over all types, at speed 1 [s]."""
        types = self.listed()
        total = math.fsum(ratio for ratio, _ in types)
        return math.fsum(ratio * service.mean() for ratio, service in types) / total


@dataclass(frozen=True)
class Delay:
    """A delay of the network."""

    constant_s: float = item(_DELAY, "the same for all", 0.0, "s")
    jitter: Demand | None = item(Table(Demand), "added to it, drawn for each", None)

    def check(self, key: str) -> None:
        """Raises UserError for a recorded jitter."""
        if self.jitter is not None and self.jitter.kind == "trace":
            raise bad_value(f"{key}.jitter.kind", "trace", "another kind; delays are not recorded")


@dataclass(frozen=True)
class Network:
    """What moving a task or a message takes."""

    task_delay: Delay = table(Delay, "a task, from its decider to another server")
    message_delay: Delay = table(Delay, "load broadcasts, requests for work, reservations")
    reply_delay: Delay = table(Delay, "from a server to the decider of a task")
    steal_delay: Delay = table(Delay, "a stolen task, to the thief")
    migration_work_s: float = item(
        Number(low=0, high=1e3), "added to the service of a task that its server gave away", 0.0, "s"
    )
    steal_work_s: float = item(Number(low=0, high=1e3), "added to the service of a stolen task", 0.0, "s")
    latency_with_reply: bool = item(
        Flag(), "latency ends with the reply at the decider, not with service", False
    )
