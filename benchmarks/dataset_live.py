"""Datasets from a testbed: what its balancers publish in shared memory, and what client and servers did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.benchmarks import dataset
from steelyard.deploy.testbed import balancers, capacity, measure, play, site
from steelyard.envs.errors import LiveError
from steelyard.envs.scenario import Scenario

_PATIENCE_S = 5.0


@contextmanager
def playing(
    name: str, scenario: Scenario, policy: str
) -> Iterator[Callable[[dataset.Plan], dataset.Recorded]]:
    """What plays an episode on the testbed of that name, which is brought up if it is not.

    policy: a rule that steelyard-lb follows. UserError, LiveError.
    """
    site.check_scenario(scenario)
    balancers.check(scenario, policy, balancers.LB)
    with site.borrowed(name, scenario, keep=False) as place:
        yield lambda plan: _play(place, plan, policy)


def _play(place: site.Site, plan: dataset.Plan, policy: str) -> dataset.Recorded:
    with balancers.forwarding(place, plan.scenario, policy, balancers.LB, plan.seed, publish=True) as active:
        watcher = _Watcher(place, plan.scenario, active)
        played = play.play(place, plan.scenario, plan.seed, watcher.look)
        watcher.finish()
    return watcher.recorded(played.episode)


@dataclass
class _Watcher:
    """Looks at all balancers and servers at the end of every step."""

    place: site.Site
    scenario: Scenario
    active: balancers.Balancers
    start_ns: int = 0
    snapshots: list[list[Any]] = field(default_factory=list)
    """By step and balancer, one more than steps: the first is of the start."""
    used: list[tuple[float, list[float]]] = field(default_factory=list)
    """Moment [s] and CPU time [s] of every server, as many."""
    _readers: list[Any] = field(default_factory=list)

    def look(self, t_s: float) -> None:
        """Called all the time with the time since the start [s]."""
        self.active.watch(t_s)
        if t_s < 0 or len(self.snapshots) > self._steps or t_s < self._step_s * len(self.snapshots):
            return
        if not self._readers:
            self.start_ns = time.monotonic_ns() - round(t_s * 1e9)
            self._readers = self._open()
        taken = [reader.snapshot() for reader in self._readers]
        if None in taken:
            return
        self.snapshots.append(taken)
        groups, name = capacity.find_groups(), self.place.network.prefix
        now_s = (time.monotonic_ns() - self.start_ns) * 1e-9
        self.used.append((now_s, [capacity.used_s(groups, name, j) for j in range(self._servers)]))

    def finish(self) -> None:
        """Take the looks that were not due yet when the client had its last reply."""
        end_s = time.monotonic() + self._step_s * (self._steps + 1) + _PATIENCE_S
        while len(self.snapshots) <= self._steps and time.monotonic() < end_s:
            self.look((time.monotonic_ns() - self.start_ns) * 1e-9)
            time.sleep(0.005)

    def recorded(self, found: measure.Episode) -> dataset.Recorded:
        """All steps, with the truth from the client's and the servers' records."""
        if len(self.snapshots) <= self._steps:
            raise LiveError(f"{len(self.snapshots)} of {self._steps + 1} looks at the balancers were taken")
        steps = self.snapshots[1:]
        t_s = np.array([[(taken.t_ns - self.start_ns) * 1e-9 for taken in step] for step in steps])
        in_server = [measure.in_system(found, times, self._servers) for times in t_s.T]
        seen = np.array([[taken.observation() for taken in step] for step in steps])
        truth = {"in_server": np.stack(in_server, axis=1), "cpu_busy": self._busy()}
        return dataset.Recorded(seen, t_s, truth, {name: self._grown(name) for name in dataset.COUNTERS})

    @property
    def _steps(self) -> int:
        return round(self.scenario.episode.horizon_s / self.scenario.control.step_s)

    @property
    def _step_s(self) -> float:
        return self.scenario.control.step_s

    @property
    def _servers(self) -> int:
        return self.scenario.num_servers

    def _open(self) -> list[Any]:
        from steelyard import native

        prefix, agents = self.place.network.prefix, self.scenario.num_agents
        try:
            return [native.ShmReader(str(balancers.shared_memory(prefix, i))) for i in range(agents)]
        except ValueError as error:
            raise LiveError(str(error)) from None

    def _busy(self) -> NDArray[np.float64]:
        """(T, M, N) share of its capacity that each server used since the look before; the same for all M."""
        times = np.array([moment for moment, _ in self.used])
        used = np.array([each for _, each in self.used])
        shares = np.array([server.speed for server in self.scenario.servers])
        busy = np.diff(used, axis=0) / (np.diff(times)[:, None] * shares)
        return np.repeat(busy[:, None, :], self.scenario.num_agents, axis=1)

    def _grown(self, name: str) -> NDArray[np.float64]:
        """(T, M, N) growth of a counter since the look before."""
        values = np.array([[taken.servers[name] for taken in step] for step in self.snapshots], np.int64)
        return np.diff(values, axis=0).astype(float)
