"""Events on a scenario's timetable, and the load that they leave."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from steelyard.envs.errors import UserError, bad_value, unknown_key
from steelyard.envs.scenario_parse import Choice, Flag, Listed, Number, Span, Whole, item
from steelyard.envs.workload import Workload

_SERVER_EVENTS = ("speed", "workers", "leave", "join")
_BALANCER_EVENTS = ("balancer_fail", "balancer_recover")
_VALUED = ("speed", "workers", "arrival_scale")
KINDS = (*_SERVER_EVENTS, *_BALANCER_EVENTS, "arrival_scale")


class Server(Protocol):
    """What the load of a server depends on."""

    @property
    def workers(self) -> int: ...
    @property
    def speed(self) -> float: ...
    @property
    def present(self) -> bool: ...


@dataclass(frozen=True)
class Event:
    """One line of the timetable. A range [low, high] is drawn anew by every seed (domain randomisation)."""

    kind: str = item(
        Choice(KINDS),
        "speed: factor on the configured speed; workers: new number; leave; join; balancer_fail; "
        "balancer_recover; arrival_scale: factor on the arrival rate",
    )
    t_s: tuple[float, float] = item(Span(Number(low=0, high=1e7)), "when; or [low, high]", unit="s")
    value: tuple[float, float] | None = item(
        Span(Number(low=0, high=65536, open_low=True)),
        "of speed, workers, arrival_scale; or [low, high]",
        None,
    )
    log_uniform: bool = item(Flag(), "draw the value uniformly on a logarithmic scale", False)
    targets: tuple[int, ...] | None = item(
        Listed(Whole(0, 4095)), "servers or balancers, counted from 0; all if left out", None
    )
    count: int | None = item(
        Whole(1, 4096), "how many of the targets, drawn by every seed; all if left out", None
    )
    common_value: bool = item(Flag(), "one value for all chosen targets, or one for each", True)
    duration_s: float = item(Number(low=0, high=1e7), "undone after that time; 0: it stays", 0.0, "s")

    def check(self, key: str) -> None:
        """Raises UserError unless the keys suit the kind."""
        if (self.value is not None) != (self.kind in _VALUED):
            if self.value is None:
                raise UserError(
                    f"{key}.value is missing: must be a number > 0, or [low, high], for kind {self.kind!r}"
                )
            raise unknown_key(
                f"{key}.", "value", ("t_s", "targets", "count", "duration_s"), f" for kind {self.kind!r}"
            )
        if self.kind == "workers" and self.value is not None and any(end != int(end) for end in self.value):
            raise bad_value(f"{key}.value", list(self.value), "whole numbers of workers")
        if self.kind == "arrival_scale" and (self.targets is not None or self.count is not None):
            raise unknown_key(
                f"{key}.", "targets", ("t_s", "value", "duration_s"), f" for kind {self.kind!r}"
            )
        if self.targets is not None and len(set(self.targets)) != len(self.targets):
            raise bad_value(f"{key}.targets", list(self.targets), "a list without repetition")

    def check_targets(self, key: str, num_servers: int, num_agents: int) -> None:
        """Raises UserError unless the targets exist and are enough."""
        if self.kind == "arrival_scale":
            return
        what, limit = ("server", num_servers) if self.kind in _SERVER_EVENTS else ("balancer", num_agents)
        for target in self.targets or ():
            if target >= limit:
                raise bad_value(f"{key}.targets", target, f"a {what} from 0 to {limit - 1}")
        available = limit if self.targets is None else len(self.targets)
        if self.count is not None and self.count > available:
            raise bad_value(f"{key}.count", self.count, f"at most the number of targets, {available}")

    def chosen_from(self, num_servers: int, num_agents: int) -> list[int]:
        """The servers or balancers that the event may hit."""
        if self.kind == "arrival_scale":
            return []
        limit = num_servers if self.kind in _SERVER_EVENTS else num_agents
        return list(range(limit) if self.targets is None else self.targets)

    def to_native(self, num_servers: int, num_agents: int) -> Any:
        """The native event."""
        from steelyard import native

        made = native.EventConfig()
        made.kind = self.kind
        made.t_low_s, made.t_high_s = self.t_s
        made.value_low, made.value_high = self.value or (1.0, 1.0)
        made.log_uniform = self.log_uniform
        made.targets = self.chosen_from(num_servers, num_agents)
        made.count = -1 if self.count is None else self.count
        made.common_value = self.common_value
        made.duration_s = self.duration_s
        return made

    def active_at(self, at_s: float) -> bool:
        """Whether some seed has the event in effect at that time."""
        return self.t_s[0] <= at_s and (self.duration_s == 0 or at_s < self.t_s[1] + self.duration_s)


def times_of_change(events: Iterable[Event], horizon_s: float) -> list[float]:
    """Times in [0, horizon) at which the load may change: starts, and ends of what is undone."""
    times = {0.0}
    for event in events:
        times |= {event.t_s[0], event.t_s[1]}
        if event.duration_s:
            times.add(event.t_s[1] + event.duration_s)
    return sorted(t for t in times if t < horizon_s)


def load_at(
    servers: Sequence[Server], workload: Workload, events: Iterable[Event], at_s: float
) -> tuple[float, float]:
    """Offered load of CPU and IO at a time, every range at its worst value and on the targets that cost most.

    An event that undoes another for good (join, speed back to 1) counts only where it does so for every seed.
    """
    speed = [server.speed for server in servers]
    workers = [float(server.workers) for server in servers]
    present = [server.present for server in servers]
    scale = 1.0
    for event in events:
        if not event.active_at(at_s):
            continue
        if event.kind == "arrival_scale" and event.value is not None:
            scale = event.value[1]
        hit = event.chosen_from(len(servers), 0) if event.kind in _SERVER_EVENTS else []
        hit = sorted(hit, key=lambda j: -speed[j] * workers[j] * present[j])[: event.count]
        for j in hit:
            if event.kind == "speed" and event.value is not None:
                speed[j] = servers[j].speed * event.value[0]
            elif event.kind == "workers" and event.value is not None:
                workers[j] = event.value[0]
            else:
                present[j] = event.kind == "join"
    trace = workload.arrival.load_trace()
    rate = workload.arrival.mean_rate(trace) * scale
    demand = {"cpu": 0.0, "io": 0.0}
    for stage in workload.stages:
        demand[stage.kind] += stage.demand.mean(trace)
    capacity = math.fsum(s * w for s, w, there in zip(speed, workers, present, strict=True) if there)
    devices = sum(present)
    return (
        rate * demand["cpu"] / capacity if capacity else math.inf,
        rate * demand["io"] / devices if devices else math.inf,
    )
