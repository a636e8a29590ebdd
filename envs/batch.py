"""B worlds of the load-balancing game, stepped by native threads that write into the caller's arrays.

This is the game itself; the PettingZoo, Gymnasium and TorchRL environments are thin faces of it.

    >>> import numpy as np
    >>> batch = LoadBalanceBatch("cluster-a-cpu", num_envs=4)
    >>> batch.reset(seed=1).shape
    (4, 2, 101)
    >>> observations, rewards, truncated = batch.step(np.zeros((4, 2, 8), dtype=np.float32))

Buffers have the layout (num_envs, num_agents, features), C order. They are bound once and written in place by
every `reset` and `step`: what these return are the buffers themselves, so copy what must outlive the next
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.envs.native_batch import Buffers, NativeBatch, positive, world_seed
from steelyard.envs.rack_scenario import RackScenario
from steelyard.envs.rewards import check_reward
from steelyard.envs.scenario import Scenario
from steelyard.envs.scenario_file import CLUSTER, RACK, refuse_world
from steelyard.envs.schema import observation_size
from steelyard.envs.spaces import DISCRETE_ACTIONS

__all__ = ["Buffers", "LoadBalanceBatch", "load_scenario", "world_seed"]


class LoadBalanceBatch(NativeBatch):
    """The load-balancing game: actions (B, M, N), float in [-1, 1] (clipped) or, if discrete, 0, 1, 2.

    NativeBatch tells of seeds, `reset`, `step` and autoreset.
    """

    def __init__(
        self,
        scenario: Scenario | str,
        num_envs: int,
        *,
        overrides: Sequence[str] = (),
        threads: int = 1,
        reward: str | None = None,
        measure: str | None = None,
        discrete: bool = False,
        autoreset: bool = True,
        buffers: Buffers | None = None,
    ):
        """Makes the worlds; `reward` and `measure` replace the scenario's. Raises UserError for bad input."""
        from steelyard import native

        self.scenario = load_scenario(scenario, overrides)
        self.reward = reward if reward is not None else self.scenario.reward.kind
        self.measure = measure if measure is not None else self.scenario.reward.measure
        check_reward(self.reward, self.measure)
        self.discrete = discrete
        config, worlds, crew = (
            self.scenario.to_native(),
            positive("num_envs", num_envs),
            positive("threads", threads),
        )
        agents = [f"lb_{agent}" for agent in range(self.scenario.num_agents)]
        servers = self.scenario.num_servers
        shape = (worlds, len(agents), servers)
        super().__init__(
            native.ClusterBatch(config, worlds, crew, self.reward, self.measure),
            agents,
            (worlds, servers, observation_size(servers)),
            shape,
            np.zeros(shape, dtype=np.float32),
            buffers,
            autoreset,
        )

    def episode_stats(self) -> dict[str, NDArray[Any]]:
        """Statistics of the flows that have completed so far in each world's episode, each (B,).

        sojourn_mean_s [s] (NaN as long as none has), flows, rejected (counted in flows), jain_mean of the
        servers' loads at the steps.
        """
        return super().episode_stats()

    def remaining_time(self) -> NDArray[np.float64]:
        """True remaining time of every server [s], all flows together, (B, N): for a trainer in the
        simulator; no balancer sees it.
        """
        return self._native.remaining_time()

    def _take_actions(self, actions: ArrayLike) -> None:
        if self.discrete:
            np.take(DISCRETE_ACTIONS, self._numbers(actions, len(DISCRETE_ACTIONS)), out=self._joint)
        else:
            np.clip(self._numbers(actions), -1.0, 1.0, out=self._joint, casting="same_kind")


def load_scenario(scenario: Scenario | str, overrides: Sequence[str] = ()) -> Scenario:
    """A scenario of a cluster from itself, its name or its file, with overrides. Raises UserError."""
    if isinstance(scenario, RackScenario):
        raise refuse_world(scenario.name, RACK, CLUSTER)
    if isinstance(scenario, Scenario):
        return scenario.with_overrides(overrides) if overrides else scenario
    return Scenario.load(scenario, overrides)
