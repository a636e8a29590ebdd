"""Events on a rack's timetable: shifts of the arrival split, the arrival rate, speeds and workers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from steelyard.envs.errors import bad_value
from steelyard.envs.scenario_parse import Choice, Listed, Number, Whole, check_keys_of_kind, item

_KEYS = {
    "split": ("t_s", "split"),
    "arrival_scale": ("t_s", "value"),
    "speed": ("t_s", "value", "targets"),
    "workers": ("t_s", "value", "targets"),
}


class Server(Protocol):
    """What the capacity of a server depends on."""

    @property
    def workers(self) -> int: ...
    @property
    def speed(self) -> float: ...


@dataclass(frozen=True)
class RackEvent:
    """One line of the timetable. Which keys are needed depends on `kind`."""

    kind: str = item(
        Choice(tuple(_KEYS)),
        "split: shares of the arrivals; arrival_scale: factor on the configured rate; speed: factor on the "
        "configured speed; workers: new number",
    )
    t_s: float = item(Number(low=0, high=1e6), "when", unit="s")
    value: float | None = item(
        Number(low=0, high=1e6, open_low=True), "of arrival_scale, speed, workers", None
    )
    targets: tuple[int, ...] | None = item(
        Listed(Whole(0, 4095)), "servers, counted from 0; all if left out (speed, workers)", None
    )
    split: tuple[float, ...] | None = item(
        Listed(Number(low=0, high=65535)), "share of each server or dispatcher (split)", None
    )

    def check(self, key: str) -> None:
        """Raises UserError unless the keys suit the kind."""
        check_keys_of_kind(self, key, _KEYS, optional=("targets",))
        value = self.value if self.kind == "workers" else None
        if value is not None and (value != int(value) or value > 4096):
            raise bad_value(f"{key}.value", value, "a whole number of workers, at most 4096")
        if self.targets is not None and len(set(self.targets)) != len(self.targets):
            raise bad_value(f"{key}.targets", list(self.targets), "a list without repetition")

    def check_targets(self, key: str, num_servers: int, num_deciders: int) -> None:
        """Raises UserError unless servers and shares fit the rack."""
        for target in self.targets or ():
            if target >= num_servers:
                raise bad_value(f"{key}.targets", target, f"a server from 0 to {num_servers - 1}")
        if self.split is not None:
            check_split(f"{key}.split", self.split, num_deciders)

    def chosen_from(self, num_servers: int) -> list[int]:
        """The servers that it changes."""
        if self.kind not in ("speed", "workers"):
            return []
        return list(range(num_servers) if self.targets is None else self.targets)

    def to_native(self, num_servers: int) -> Any:
        """The native event."""
        from steelyard import native

        return native.RackEvent(
            self.kind,
            self.t_s,
            value=1.0 if self.value is None else self.value,
            targets=self.chosen_from(num_servers),
            split=list(self.split or ()),
        )


def check_split(key: str, split: Sequence[float], num_deciders: int) -> None:
    """Raises UserError unless there is one share for each place where tasks come in, and any arrives."""
    if len(split) != num_deciders:
        raise bad_value(
            key, list(split), f"a list of {num_deciders} shares, one for each; {len(split)} given"
        )
    if not math.fsum(split) > 0:
        raise bad_value(key, list(split), "a list of shares that are not all 0")


def rate_factor_at(events: Iterable[RackEvent], at_s: float) -> float:
    """Factor on the configured arrival rate at a time."""
    return _latest(((e.t_s, e.value) for e in events if e.kind == "arrival_scale"), at_s, 1.0)


def capacity_at(servers: Sequence[Server], events: Sequence[RackEvent], at_s: float) -> float:
    """Sum of workers x speed at a time."""
    capacity = []
    for j, server in enumerate(servers):
        changes = [event for event in events if j in event.chosen_from(len(servers))]
        workers = _latest(((e.t_s, e.value) for e in changes if e.kind == "workers"), at_s, server.workers)
        factor = _latest(((e.t_s, e.value) for e in changes if e.kind == "speed"), at_s, 1.0)
        capacity.append(workers * server.speed * factor)
    return math.fsum(capacity)


def _latest(changes: Iterable[tuple[float, float | None]], at_s: float, before: float) -> float:
    """The value of the last change until a time; at equal times the later in the list."""
    value, since = before, -math.inf
    for t_s, changed in changes:
        if since <= t_s <= at_s and changed is not None:
            value, since = changed, t_s
    return value
