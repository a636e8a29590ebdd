"""The agent's loop: take the state, decide, answer, in step with the clock."""

from __future__ import annotations

import copy
import logging
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard import native
from steelyard.agents.rules import POLICY_FILE
from steelyard.deploy.agent.link import Link
from steelyard.envs.errors import UserError, bad_value

_LOG = logging.getLogger("steelyard.agent")
_MAX_PERIODS = 4
"""A state that is older than so many periods is not acted on."""


@dataclass(frozen=True)
class Options:
    """As the command takes them."""

    pools: tuple[str, ...]
    policy: str
    period_s: float = 0.25
    index: int = 0
    report_s: float = 10.0
    duration_s: float | None = None

    def check(self) -> None:
        """UserError (one line) for what cannot be."""
        if not self.pools:
            raise UserError("--pool: none given; name the shared-memory file of a dataplane")
        if len(set(self.pools)) != len(self.pools):
            raise UserError("--pool: a file is given twice; give each once")
        for key, value in (("--period", self.period_s), ("--report", self.report_s)):
            if not 0.001 <= value <= 3600:
                raise bad_value(key, value, "in [0.001, 3600] s")
        if self.index < 0:
            raise bad_value("--index", self.index, "0 or more")
        if self.duration_s is not None and not self.duration_s > 0:
            raise bad_value("--duration", self.duration_s, "above 0 s")


@dataclass
class Counts:
    """What a line of metrics says; times are of the time since the last line."""

    steps: int = 0
    """Decisions written, over all pools."""
    waits: int = 0
    """Decisions left out because a dataplane was not there."""
    refused: int = 0
    """Decisions left out because the policy gave no finite action."""
    decide_us: list[float] = field(default_factory=list)
    """From the start of a period to the last action written."""
    late_ms: list[float] = field(default_factory=list)
    """How much later than due a period began."""

    def line(self, links: list[Link]) -> str:
        """The line; the times start anew."""
        decide_us, late_ms = self.decide_us or [0.0], self.late_ms or [0.0]
        self.decide_us, self.late_ms = [], []
        return (
            f"agent pools={len(links)} connections={sum(link.connections for link in links)} "
            f"steps={self.steps} waits={self.waits} refused={self.refused} "
            f"decide_us_median={statistics.median(decide_us):.0f} decide_us_max={max(decide_us):.0f} "
            f"late_ms_max={max(late_ms):.1f}"
        )


class Controller:
    """A policy and the pools that it serves."""

    def __init__(self, options: Options):
        """UserError (one line) for bad options, or a policy that is damaged or for other balancers."""
        options.check()
        self.counts = Counts()
        policy = load_policy(options.policy, options.index + len(options.pools))
        self._central = policy.central_agents > 0
        if self._central and (options.index != 0 or len(options.pools) != policy.central_agents):
            raise UserError(
                f"--pool: the policy decides for {policy.central_agents} load balancers at once; name so many "
                "pools, without --index"
            )
        max_age_s = _MAX_PERIODS * options.period_s
        self.links = [Link(pool, policy.num_servers, max_age_s) for pool in options.pools]
        self._index = options.index
        # A copy has a memory of its own; the weights are shared.
        self._policies = [copy.copy(policy) for _ in self.links] if not self._central else [policy]

    def step(self) -> None:
        """One decision for each pool that is there."""
        began = time.perf_counter()
        if self._central:
            self._step_together()
        else:
            for number, link in enumerate(self.links):
                self._step_alone(link, self._policies[number], self._index + number)
        self.counts.decide_us.append(1e6 * (time.perf_counter() - began))

    def close(self) -> None:
        """Leave every pool to its dataplane."""
        for link in self.links:
            link.close()

    def _step_alone(self, link: Link, policy: native.Policy, agent: int) -> None:
        snapshot = link.state()
        if snapshot is None:
            self.counts.waits += 1
            return
        if link.restarted:
            policy.reset()
        action = self._infer(policy, agent, snapshot.observation())
        if action is not None:
            link.act(action)
            self.counts.steps += 1

    def _step_together(self) -> None:
        """As in the simulator, a balancer that is away is seen as one that has just been started."""
        states = [link.state() for link in self.links]
        there = [link for link, state in zip(self.links, states, strict=True) if state is not None]
        self.counts.waits += len(states) - len(there)
        if not there:
            return
        if all(link.restarted for link in there):
            self._policies[0].reset()
        size = native.observation_size(self._policies[0].num_servers)
        obs = np.zeros((len(states), size), np.float32)
        for row, state in zip(obs, states, strict=True):
            if state is not None:
                row[:] = state.observation()
        actions = self._infer(self._policies[0], 0, obs.reshape(-1))
        if actions is None:
            return
        for link, state, action in zip(self.links, states, actions.reshape(len(states), -1), strict=True):
            if state is not None:
                link.act(action)
                self.counts.steps += 1

    def _infer(self, policy: native.Policy, agent: int, obs: NDArray[np.float32]) -> NDArray[np.float32] | None:
        try:
            return policy.infer(agent, obs)
        except ValueError as error:
            if self.counts.refused == 0:
                _LOG.error("%s; the dataplane goes on without", error)
            self.counts.refused += 1
            return None


def load_policy(source: str, num_balancers: int) -> native.Policy:
    """The policy of a run directory, blob or shared object, for so many balancers. UserError if it is none."""
    path = Path(source)
    path = path / POLICY_FILE if path.is_dir() else path
    try:
        policy = native.Policy(path)
        if policy.central_agents == 0 and policy.num_actors == 1:
            policy = native.Policy(path, num_agents=num_balancers)
    except ValueError as error:
        raise UserError(f"--policy: {error}") from error
    if policy.schema_hash != native.observation_schema_hash(policy.num_servers):
        raise UserError(f"--policy: {path}: made for another observation schema")
    if policy.central_agents == 0 and policy.num_agents < num_balancers:
        raise UserError(
            f"--policy: {path} has {policy.num_agents} actors; the last pool's balancer is number "
            f"{num_balancers - 1}"
        )
    return policy


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    before = {kind: signal.signal(kind, lambda *_: stop.set()) for kind in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def serve(options: Options) -> int:
    """Run until stopped; 0."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    controller = Controller(options)
    with stop_signals() as stop:
        _LOG.info("policy %s, every %g s", options.policy, options.period_s)
        try:
            run(controller, options, stop)
        finally:
            controller.close()
            print(controller.counts.line(controller.links), flush=True)
    return 0


def run(controller: Controller, options: Options, stop: threading.Event) -> None:
    """Step at fixed moments until stopped; a moment that has been missed is left out, not made up for."""
    began = due = reported = time.monotonic()
    while not stop.is_set():
        now = time.monotonic()
        if options.duration_s is not None and now - began >= options.duration_s:
            return
        controller.counts.late_ms.append(1e3 * (now - due))
        controller.step()
        if now - reported >= options.report_s:
            print(controller.counts.line(controller.links), flush=True)
            reported = now
        now = time.monotonic()
        due += options.period_s * max(1, -(-(now - due) // options.period_s))
        stop.wait(max(0.0, due - now))
