"""The central agent: one Gymnasium environment in which a single agent sees every balancer and sets all
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.errors import UserError, bad_value
from steelyard.envs.load_balance_v0 import RENDER_MODES, check_render_mode, render_moment, world_info
from steelyard.envs.scenario import Scenario
from steelyard.envs.spaces import action_space, observation_space


class LoadBalanceCentralEnv(gym.Env):
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

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 2}  # noqa: RUF012

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
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self._batch = LoadBalanceBatch(
            scenario,
            1,
            overrides=overrides,
            reward=reward,
            measure=measure,
            discrete=discrete,
            autoreset=False,
        )
        self.scenario = self._batch.scenario
        size = (self._batch.num_servers, self._batch.num_agents)
        self.observation_space = observation_space(*size)
        self.action_space = action_space(*size, discrete=discrete)
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
        """Plays one step with the action (M N,). Raises UserError for a wrong shape, NaN, or a step after the
        end.
        """
        given = np.asarray(action)
        if given.shape != self.action_space.shape:
            allowed = f"of shape {self.action_space.shape}, one number for each server of each balancer"
            raise bad_value("action", f"an array of shape {given.shape}", allowed)
        if self._steps and self._batch.buffers.truncated[0]:
            raise UserError("step() after the end of the episode: call reset() first")
        joint = given.reshape(1, self._batch.num_agents, self._batch.num_servers)
        _, rewards, truncated = self._batch.step(joint)
        self._steps += 1
        return self._observation(), float(rewards.mean()), False, bool(truncated[0]), self._info()

    def render(self) -> str | NDArray[np.uint8] | None:  # type: ignore[override]
        """The moment as `render_mode` says: text, an image (height, 480, 3) uint8, or printed text."""
        return render_moment(
            self._batch.buffers.observations[0], self._batch, self._time_s(), self.render_mode
        )

    def _observation(self) -> NDArray[np.float32]:
        return self._batch.buffers.observations.reshape(-1).copy()

    def _time_s(self) -> float:
        return min(self._steps * self.scenario.control.step_s, self.scenario.episode.horizon_s)

    def _info(self) -> dict[str, Any]:
        return {**world_info(self._batch, 0), "t_s": self._time_s()}
