"""The central agent: one Gymnasium environment in which a single agent sees every balancer and sets all
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.batch_env import RENDER_MODES, check_render_mode, render_moment, world_info
from steelyard.envs.errors import UserError, bad_value
from steelyard.envs.native_batch import NativeBatch
from steelyard.envs.scenario import Scenario
from steelyard.envs.spaces import action_space, observation_space


class BatchCentralEnv(gym.Env):
    """The world of a native batch with one agent for all: observations end to end, the mean of rewards."""

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 2}  # noqa: RUF012

    def __init__(
        self,
        batch: NativeBatch,
        observations: spaces.Space,
        actions: spaces.Space,
        render_mode: str | None,
    ):
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self._batch = batch
        self.observation_space, self.action_space = observations, actions
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts an episode: of `seed`, or the next one of the stream."""
        super().reset(seed=seed)
        del options
        self._batch.reset(seeds=None if seed is None else [seed])
        self._steps = 0
        return self._observation(), self._info()

    def step(self, action: ArrayLike) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Plays one step with the joint action. Raises UserError for a wrong shape, NaN, or a step after the
        end.
        """
        given = np.asarray(action)
        if given.shape != self.action_space.shape:
            raise bad_value(
                "action", f"an array of shape {given.shape}", f"of shape {self.action_space.shape}"
            )
        if self._steps and self._batch.buffers.truncated[0]:
            raise UserError("step() after the end of the episode: call reset() first")
        joint = given.reshape(self._batch.action_shape)
        _, rewards, truncated = self._batch.step(joint)
        self._steps += 1
        return self._observation(), float(rewards.mean()), False, bool(truncated[0]), self._info()

    def _observation(self) -> NDArray[np.float32]:
        return self._batch.buffers.observations.reshape(-1).copy()

    def _info(self) -> dict[str, Any]:
        raise NotImplementedError


class LoadBalanceCentralEnv(BatchCentralEnv):
    """The load-balancing game with one agent for all M balancers (Centr-LB of Distr-LB, NeurIPS 2022).

    | | |
    |---|---|
    | Observation | `Box`, (M (12 N + 5),) float32: the observations of `lb_0` ... `lb_<M-1>` end to end |
    | Action | `Box(-1, 1, (M N,), float32)`, or `MultiDiscrete([3] * M N)`: weights of `lb_0`, `lb_1`, ... |
    | Reward | mean of the balancers' rewards |
    | End | truncation at `episode.horizon_s`; never termination |

    Indices and units within each observation, the meaning of actions, seeds and infos are those of
    `steelyard.envs.load_balance_v0.LoadBalanceParallelEnv`.
    """

    def __init__(
        self,
        scenario: Scenario | str = "cluster-a-cpu",
        *,
        overrides: Sequence[str] = (),
        reward: str | None = None,
        measure: str | None = None,
        discrete: bool = False,
        render_mode: str | None = None,
    ):
        batch = LoadBalanceBatch(
            scenario,
            1,
            overrides=overrides,
            reward=reward,
            measure=measure,
            discrete=discrete,
            autoreset=False,
        )
        self.scenario, self._game = batch.scenario, batch
        size = (batch.num_servers, batch.num_agents)
        actions = action_space(*size, discrete=discrete)
        super().__init__(batch, observation_space(*size), actions, render_mode)

    def render(self) -> str | NDArray[np.uint8] | None:  # type: ignore[override]
        """The moment as `render_mode` says: text, an image (height, 480, 3) uint8, or printed text."""
        seen = self._game.buffers.observations[0]
        return render_moment(seen, self.scenario, self._time_s(), self.render_mode)

    def _time_s(self) -> float:
        return min(self._steps * self.scenario.control.step_s, self.scenario.episode.horizon_s)

    def _info(self) -> dict[str, Any]:
        return {**world_info(self._game, 0), "t_s": self._time_s()}
