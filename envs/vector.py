"""Many central agents at once: the native batch as a Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.errors import bad_value
from steelyard.envs.native_batch import NativeBatch
from steelyard.envs.scenario import Scenario
from steelyard.envs.spaces import action_space, observation_space


class BatchVectorEnv(VectorEnv):
    """The worlds of a native batch, one central agent each, stepped by native threads.

    Autoreset is NEXT_STEP: after truncation the next step ignores the action, returns the first observation
    of the next episode and reward 0. `reset(seed=s)` gives world i the i-th training seed of run s;
    `reset(seed=[...])` gives each world its own. Infos hold the running statistics of each world's episode
    and its `seed`, each (B,), with Gymnasium's masks `_seed` and so on. Observations are copies unless
    `copy=False`: then they are the buffer that the next call writes.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        batch: NativeBatch,
        observations: spaces.Space,
        actions: spaces.Space,
        copy: bool,
        render_mode: str | None,
    ):
        """observations, actions: of one central agent."""
        if render_mode is not None:
            raise bad_value("render_mode", render_mode, "None for many worlds; render one environment")
        self.batch, self.num_envs, self.render_mode, self._copy = batch, batch.num_envs, None, copy
        self.single_observation_space, self.single_action_space = observations, actions
        self.observation_space = batch_space(observations, self.num_envs)
        self.action_space = batch_space(actions, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts an episode in every world; see the class for seeds."""
        del options
        if seed is None or isinstance(seed, (int, np.integer)):
            super().reset(seed=None if seed is None else int(seed))
            self.batch.reset(seed)
        else:
            self.batch.reset(seeds=seed)
        return self._observations(), self._infos()

    def step(
        self, actions: ArrayLike
    ) -> tuple[
        NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        """Plays one step in every world with the joint actions, (B, ...) of the action space."""
        given = np.asarray(actions)
        if given.shape != self.action_space.shape:
            raise bad_value(
                "actions", f"an array of shape {given.shape}", f"of shape {self.action_space.shape}"
            )
        _, rewards, truncated = self.batch.step(given.reshape(self.num_envs, self.batch.num_agents, -1))
        paid = rewards.mean(axis=1, dtype=np.float64)
        never = np.zeros(self.num_envs, dtype=np.bool_)
        return self._observations(), paid, never, truncated.copy(), self._infos()

    def _observations(self) -> NDArray[np.float32]:
        flat = self.batch.buffers.observations.reshape(self.num_envs, -1)
        return flat.copy() if self._copy else flat

    def _infos(self) -> dict[str, Any]:
        infos: dict[str, Any] = {**self.batch.episode_stats(), "seed": self.batch.seeds}
        return infos | {f"_{name}": ~np.isnan(values) for name, values in infos.items()}


class LoadBalanceVectorEnv(BatchVectorEnv):
    """`num_envs` copies of LoadBalanceCentralEnv, stepped by native threads; actions (B, M N).

    Infos: `sojourn_mean_s`, `flows`, `rejected`, `jain_mean` and `seed`. BatchVectorEnv tells of autoreset,
    seeds and copies.
    """

    def __init__(
        self,
        num_envs: int = 1,
        scenario: Scenario | str = "cluster-a-cpu",
        *,
        overrides: Sequence[str] = (),
        threads: int = 1,
        reward: str | None = None,
        measure: str | None = None,
        discrete: bool = False,
        copy: bool = True,
        render_mode: str | None = None,
    ):
        batch = LoadBalanceBatch(
            scenario,
            num_envs,
            overrides=overrides,
            threads=threads,
            reward=reward,
            measure=measure,
            discrete=discrete,
        )
        self.scenario = batch.scenario
        size = (batch.num_servers, batch.num_agents)
        actions = action_space(*size, discrete=discrete)
        super().__init__(batch, observation_space(*size), actions, copy, render_mode)
