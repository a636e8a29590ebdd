"""A running testbed as a world that a batch can step: what balancers publish in shared memory, in real time.

A balancer with the rule `policy` and no policy of its own shares one file per pool: it publishes what it has
measured and takes over the weights that an agent writes (native/shm). This world is all the agents' side.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.envs.errors import LiveError, UserError, bad_value
from steelyard.envs.rewards import REWARDS, check_reward
from steelyard.envs.scenario import Scenario
from steelyard.envs.schema import SERVER_FEATURES

WDMEAN_DURATION = 5
"""Where a server's weighted discounted mean flow duration stands among its features."""
FRESH_LIMIT_S = 5.0
"""A balancer that publishes nothing new for so long is taken for dead."""
_POLL_S = 0.002


class Traffic(Protocol):
    """Whoever sends the flows of an episode."""

    def begin(self, seed: int) -> None:
        """The flows of that seed from now on; those of an earlier episode end."""


class NoTraffic:
    """Flows come from elsewhere."""

    def begin(self, seed: int) -> None:
        """Nothing."""


class LiveWorld:
    """What `NativeBatch` steps in the place of the simulator: one world, in real time.

    Step k ends `control.step_s` x k after the reset by the machine's clock, however long the agents thought.
    """

    def __init__(
        self,
        scenario: Scenario,
        pools: Sequence[str | Path],
        reward: str,
        measure: str,
        traffic: Traffic | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """pools: the shared-memory file of each balancer. UserError for what a live world cannot be."""
        check_reward(reward, measure)
        if measure != "durations":
            raise bad_value("reward.measure", measure, "'durations' live: no balancer can measure the others")
        if len(pools) != scenario.num_agents:
            allowed = f"{scenario.num_agents} files, one for each balancer of {scenario.name}"
            raise bad_value("pools", [str(pool) for pool in pools], allowed)
        self.scenario, self.reward = scenario, reward
        self.pools = [str(pool) for pool in pools]
        self._traffic: Traffic = traffic or NoTraffic()
        self._sleep = sleep
        self._readers: list[Any] = []
        self._snapshots: list[Any] = []
        self._ended_at = 0.0
        self._steps = 0
        self._capacity = np.array(scenario.configured_weights())
        self.late_steps = 0
        """Steps of the episode at whose end the clock was already past the next one."""

    # --- the face of native.ClusterBatch ---

    def bind(
        self, observations: NDArray[np.float32], rewards: NDArray[np.float32], truncated: NDArray[np.uint8]
    ) -> None:
        """Arrays (1, M, D), (1, M), (1,) that reset and step write."""
        self._observations, self._rewards, self._truncated = observations, rewards, truncated

    def reset(self, seeds: NDArray[np.uint64]) -> None:
        """Start an episode: neutral weights, the flows of the seed, the first fresh observation.

        LiveError if a balancer does not publish.
        """
        self._open()
        self._traffic.begin(int(seeds[0]))
        self._act(np.zeros((len(self.pools), self.scenario.num_servers), np.float32))
        self._snapshots = [self._fresh(agent, self._snapshots[agent]) for agent in range(len(self.pools))]
        self._steps, self.late_steps = 0, 0
        self._ended_at = time.monotonic()
        self._begin_statistics()
        self._observe()
        self._rewards[:] = 0
        self._truncated[:] = 0

    def reset_world(self, index: int, seed: int) -> None:
        """As reset; there is one world."""
        self.reset(np.array([seed], np.uint64))

    def step(self, actions: NDArray[np.float32], active: NDArray[np.bool_] | None = None) -> None:
        """Actions (1, M, N) into force, then wait for the step's end. LiveError if a balancer is gone."""
        del active  # the batch asks for a step of its only world, or for none
        self._act(actions[0])
        step_s = self.scenario.control.step_s
        self._steps += 1
        self._ended_at += step_s
        late_s = time.monotonic() - self._ended_at
        if late_s < 0:
            self._sleep(-late_s)
        elif late_s > step_s:
            self.late_steps += 1
            self._ended_at += late_s
        self._snapshots = [self._fresh(agent, self._snapshots[agent]) for agent in range(len(self.pools))]
        self._observe()
        self._pay()
        self._count()
        self._truncated[:] = self._steps * step_s >= self.scenario.episode.horizon_s - 1e-9

    def episode_stats(self) -> dict[str, NDArray[Any]]:
        """Of the flows that balancers saw end since the reset, each (1,): sojourn_mean_s is the mean flow
        completion time (SYN to FIN) of the samples, flows, rejected (resets), jain_mean of the flows on each
        server over its configured capacity.
        """
        flows, resets = self._totals() - self._first
        sojourn = self._fct_sum / self._fct_count if self._fct_count else math.nan
        jain = self._jain_sum / self._steps if self._steps else math.nan
        return {
            "sojourn_mean_s": np.array([sojourn]),
            "flows": np.array([flows + resets]),
            "rejected": np.array([resets]),
            "jain_mean": np.array([jain]),
        }

    def remaining_time(self) -> NDArray[np.float64]:
        """UserError: nobody knows it."""
        raise UserError(
            "the true remaining time is known in the simulator alone; no learner can have it live"
        )

    def close(self) -> None:
        """Balancers go on without these agents."""
        for reader in self._readers:
            reader.withdraw()
        self._readers, self._snapshots = [], []

    # --- parts ---

    def _open(self) -> None:
        """Attach as the agent of every pool, anew where a balancer has made another file."""
        if self._readers and all(reader.is_current and reader.writer_lives for reader in self._readers):
            return
        from steelyard import native

        self._readers = []  # first of all gives back what was held
        try:
            self._readers = [native.ShmReader(pool, agent=True) for pool in self.pools]
        except ValueError as error:
            raise UserError(
                f"pools: {error}; is the balancer up, with shared_memory in its configuration?"
            ) from None
        for reader in self._readers:
            if reader.num_servers != self.scenario.num_servers:
                found = f"{reader.path} of {reader.num_servers} servers"
                raise bad_value(
                    "pools", found, f"of {self.scenario.num_servers} servers, as {self.scenario.name}"
                )
        self._snapshots = [self._fresh(agent, None) for agent in range(len(self.pools))]

    def _act(self, actions: NDArray[np.float32]) -> None:
        for reader, snapshot, action in zip(self._readers, self._snapshots, actions, strict=True):
            reader.act(action.tolist(), snapshot)

    def _fresh(self, agent: int, before: Any) -> Any:
        """A snapshot that was published after `before`."""
        reader = self._readers[agent]
        deadline = time.monotonic() + FRESH_LIMIT_S
        while True:
            snapshot = reader.snapshot()
            if snapshot is not None and (before is None or snapshot.publication > before.publication):
                return snapshot
            if not reader.writer_lives or time.monotonic() > deadline:
                raise LiveError(f"{reader.path}: the balancer publishes nothing any more")
            self._sleep(_POLL_S)

    def _observe(self) -> None:
        for agent, snapshot in enumerate(self._snapshots):
            self._observations[0, agent] = snapshot.observation()

    def _pay(self) -> None:
        from steelyard import native

        servers = self.scenario.num_servers
        seen = self._observations[0, :, : SERVER_FEATURES * servers]
        durations = seen.reshape(-1, servers, SERVER_FEATURES)[:, :, WDMEAN_DURATION].astype(float)
        if REWARDS[self.reward].team:
            durations[:] = durations.mean(0)
        for agent, loads in enumerate(durations):
            self._rewards[0, agent] = native.reward(self.reward, loads)

    def _totals(self) -> NDArray[np.int64]:
        """Flows that ended by FIN and by reset, over all balancers and servers."""
        counters = [snapshot.servers for snapshot in self._snapshots]
        completed = sum(int(each["flows_completed"].sum()) for each in counters)
        return np.array([completed, sum(int(each["resets"].sum()) for each in counters)], np.int64)

    def _begin_statistics(self) -> None:
        self._first = self._totals()
        self._fct_sum, self._fct_count, self._jain_sum = 0.0, 0, 0.0
        self._fct_since = [snapshot.t_ns for snapshot in self._snapshots]

    def _count(self) -> None:
        for agent, snapshot in enumerate(self._snapshots):
            for server in range(self.scenario.num_servers):
                samples = snapshot.samples("fct", server)
                new = samples["value"][samples["t_ns"] > self._fct_since[agent]]
                self._fct_sum += float(new.sum())
                self._fct_count += len(new)
            self._fct_since[agent] = snapshot.t_ns
        flows_on = np.sum([snapshot.servers["n_flow_on"] for snapshot in self._snapshots], axis=0)
        loads = flows_on / self._capacity
        squares = float((loads**2).sum())
        self._jain_sum += float(loads.sum()) ** 2 / (len(loads) * squares) if squares else 1.0
