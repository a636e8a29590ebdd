"""Many central agents at once: the native batch as a Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.errors import bad_value
from steelyard.envs.scenario import Scenario
from steelyard.envs.spaces import action_space, observation_space


class LoadBalanceVectorEnv(VectorEnv):
    """`num_envs` copies of LoadBalanceCentralEnv, stepped by native threads.

    Autoreset is NEXT_STEP: after truncation the next step ignores the action, returns the first observation
    of the next episode and reward 0. `reset(seed=s)` gives world i the i-th training seed of run s;
    `reset(seed=[...])` gives each world its own. Infos hold the running statistics of each world's episode:
    `sojourn_mean_s`, `flows`, `rejected`, `jain_mean` and `seed`, each (B,), with Gymnasium's masks
    `_sojourn_mean_s` and so on. Observations are copies unless `copy=False`: then they are the buffer that
    the next call writes.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}  # noqa: RUF012

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
        if render_mode is not None:
            raise bad_value(
                "render_mode", render_mode, "None for many worlds; render one LoadBalanceCentralEnv"
            )
        self.batch = LoadBalanceBatch(
            scenario,
            num_envs,
            overrides=overrides,
            threads=threads,
            reward=reward,
            measure=measure,
            discrete=discrete,
        )
        self.scenario = self.batch.scenario
        self.num_envs = self.batch.num_envs
        self.render_mode = None
        self._copy = copy
        size = (self.batch.num_servers, self.batch.num_agents)
        self.single_observation_space = observation_space(*size)
        self.single_action_space = action_space(*size, discrete=discrete)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

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
        """Plays one step in every world with actions (B, M N)."""
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
