"""A testbed as a place to learn: balancers that follow agents by shared memory, and flows on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from steelyard.deploy.testbed import balancers, lb_config, play, site
from steelyard.deploy.testbed.machine import TestbedError
from steelyard.envs.scenario import Scenario

_BEGIN_LIMIT_S = 30.0


class _EndedError(Exception):
    """Another episode begins."""


@dataclass
class Ground:
    """What `envs.live_v0` needs: `pools`, and itself as `traffic`."""

    place: site.Site
    scenario: Scenario
    active: balancers.Balancers
    pools: list[Path]
    _thread: threading.Thread | None = None
    _end: threading.Event = field(default_factory=threading.Event)
    _errors: list[BaseException] = field(default_factory=list)

    def begin(self, seed: int) -> None:
        """The flows of a seed from now on, with the scenario's timetable; those of an earlier episode end.

        TestbedError if a balancer, a server or the client has failed since the last call.
        """
        self.end()
        begun = threading.Event()
        self._end.clear()

        def moved(t_s: float) -> None:
            self.active.watch(t_s)
            if self._end.is_set():
                raise _EndedError
            if t_s >= 0:
                begun.set()

        def run() -> None:
            try:
                play.play(self.place, self.scenario, seed, moved)
            except _EndedError:
                pass
            except BaseException as error:
                self._errors.append(error)
            finally:
                begun.set()

        self._thread = threading.Thread(target=run, name="traffic", daemon=True)
        self._thread.start()
        if not begun.wait(_BEGIN_LIMIT_S):
            raise TestbedError(f"the flows have not begun within {_BEGIN_LIMIT_S:g} s")
        self._raise()

    def end(self) -> None:
        """No more flows. TestbedError as `begin`."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise()

    def _raise(self) -> None:
        if self._errors:
            error = self._errors.pop()
            raise TestbedError(str(error)) from error


@contextmanager
def ground(scenario: Scenario, name: str, dataplane: str = balancers.DEFAULT) -> Iterator[Ground]:
    """A testbed of that name for this process alone, its balancers waiting for agents.

    Brought up if need be, and then taken down again afterwards. UserError or TestbedError; the former for a
    dataplane that no agent can steer.
    """
    site.check_scenario(scenario)
    balancers.check(scenario, lb_config.AGENT, dataplane)
    with (
        site.borrowed(name, scenario, keep=False) as place,
        balancers.forwarding(place, scenario, lb_config.AGENT, dataplane, 0) as active,
    ):
        pools = [balancers.shared_memory(name, index) for index in range(scenario.num_agents)]
        made = Ground(place, scenario, active, pools)
        try:
            yield made
        finally:
            made.end()
