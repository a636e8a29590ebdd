"""Episodes on a testbed: a policy decides, a client plays a seed's flows, servers lose capacity on time."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.deploy.testbed import capacity, measure, profiles, servers, site
from steelyard.deploy.testbed.machine import TestbedError, call_in
from steelyard.deploy.testbed.network import HTTP_PORT, VIP
from steelyard.deploy.testbed.schedule import Schedule, schedule
from steelyard.deploy.testbed.wiki import wiki_schedule
from steelyard.envs.scenario import Scenario

if TYPE_CHECKING:
    from steelyard import native
    from steelyard.deploy.testbed.apache import LogLine

MAX_OPEN = 20_000
START_DELAY_S = 0.2
_GRACE_S = 5.0
_LOG_LIMIT_S = 5.0
_POLL_S = 0.02
_FILES = 65_536


@dataclass(frozen=True)
class Played:
    """An episode that was played."""

    requests: Schedule
    episode: measure.Episode
    problems: dict[str, int]
    """How many requests had which problem."""


def play(
    place: site.Site, scenario: Scenario, seed: int, moved: Callable[[float], None] = lambda t_s: None
) -> Played:
    """Play the flows of a seed against whatever forwards now, and wait for all replies.

    `moved` is called about fifty times a second with the time since the start [s]; what it raises ends the
    episode. Servers have their full capacity again at the end.
    """
    from steelyard import native

    draw = wiki_schedule if place.profile == profiles.WIKI else schedule
    requests = draw(scenario, seed, place.calibration)
    client = native.OpenLoopClient(
        VIP,
        HTTP_PORT,
        requests.due_ns.tolist(),
        requests.paths,
        requests.path_of.tolist(),
        _timeout_s(scenario),
        MAX_OPEN,
    )
    _allow_files()
    site.set_shares(place)
    offsets = [servers.log_size(place.folder, j) for j in range(place.network.servers)]
    start_ns = time.monotonic_ns() + round(START_DELAY_S * 1e9)
    try:
        with _running(client, place, start_ns) as finished:
            _conduct(place, scenario, start_ns, finished, moved)
    finally:
        site.set_shares(place)
    results = client.results()
    lines = _lines(place, offsets, int((results["status"] == 200).sum()))
    counts = {name: int((results["problem"] == i).sum()) for i, name in enumerate(measure.PROBLEMS) if i}
    counts["bad status"] = int(((results["problem"] == 0) & (results["status"] != 200)).sum())
    found = measure.episode(requests.due_ns, results, lines)
    return Played(requests, found, {name: count for name, count in counts.items() if count})


def _timeout_s(scenario: Scenario) -> float:
    """A request that takes longer counts as rejected."""
    return min(3600.0, max(1.0, scenario.pool.reject_sojourn_s))


@contextmanager
def _running(client: native.OpenLoopClient, place: site.Site, start_ns: int) -> Iterator[Callable[[], bool]]:
    """The client plays in its namespace on a thread; yields whether it has ended, stops it on the way out."""
    errors: list[BaseException] = []

    def ask() -> None:
        capacity.join_thread(capacity.find_groups(), place.network.prefix)
        client.run(start_ns)

    def run() -> None:
        try:
            call_in(place.network.client, ask)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="client")
    thread.start()
    try:
        yield lambda: not thread.is_alive()
    finally:
        client.stop()
        thread.join()
    if errors:
        raise TestbedError(f"client: {errors[0]}") from errors[0]


def _conduct(
    place: site.Site,
    scenario: Scenario,
    start_ns: int,
    finished: Callable[[], bool],
    moved: Callable[[float], None],
) -> None:
    """Carry out the timetable until the client has ended."""
    changes = timetable(scenario)
    limit_s = scenario.episode.horizon_s + _timeout_s(scenario) + _GRACE_S
    groups = capacity.find_groups()
    while not finished():
        now_s = (time.monotonic_ns() - start_ns) * 1e-9
        while changes and changes[0][0] <= now_s:
            _, j, share = changes.pop(0)
            capacity.set_share(groups, place.network.prefix, j, share)
        if now_s > limit_s:
            raise TestbedError(f"the client has not ended {_GRACE_S:g} s after its last limit")
        moved(now_s)
        time.sleep(_POLL_S)


def timetable(scenario: Scenario) -> list[tuple[float, int, float]]:
    """(time [s], server, new share of a processor), in the order of time."""
    changes = []
    for event in scenario.events:
        assert event.value is not None  # `site.check_scenario` lets no other event through
        for j in event.chosen_from(scenario.num_servers, scenario.num_agents):
            speed = scenario.servers[j].speed
            changes.append((event.t_s[0], j, speed * event.value[0]))
            if event.duration_s:
                changes.append((event.t_s[0] + event.duration_s, j, speed))
    return sorted(changes)


def _lines(place: site.Site, offsets: Sequence[int], expected: int) -> list[LogLine]:
    """What all servers logged since; the last lines may lag behind the replies."""
    deadline = time.monotonic() + _LOG_LIMIT_S
    while True:
        found = [
            line for j, offset in enumerate(offsets) for line in servers.log_since(place.folder, j, offset)
        ]
        if len(found) >= expected or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _allow_files() -> None:
    """Many requests may be open at once, each with a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def describe(problems: dict[str, int]) -> str:
    """Problems in words; empty without any."""
    return ", ".join(f"{count} x {name}" for name, count in problems.items())
